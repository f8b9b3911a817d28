"""Bundles of trained models: one form to keep, ship, serve and take apart.

- :mod:`fairseq_ext.checkpoints.bundle` has the format, and reads it as a checkpoint of fairseq;
- :mod:`~fairseq_ext.model.write` makes a bundle from a checkpoint;
- :mod:`~fairseq_ext.model.program_file` reads a bundle for the engine, without torch;
- :mod:`~fairseq_ext.model.export` turns it back into a checkpoint;
- :mod:`~fairseq_ext.model.other_tools` writes a Transformer for CTranslate2 or Hugging Face;
- :mod:`~fairseq_ext.model.describe` says what is in it;
- :mod:`~fairseq_ext.model.card` has its model card;
- :mod:`~fairseq_ext.model.hub` exchanges bundles with the Hugging Face Hub;
- :mod:`~fairseq_ext.model.find_model` finds models by name.
"""
