"""A trained model to use: one form to keep, ship, serve and take apart.

- :mod:`fairseq_ext.checkpoints.bundle` has the format, and reads it as a checkpoint of fairseq;
- :mod:`~fairseq_ext.model.write` makes a bundle of a checkpoint;
- :mod:`~fairseq_ext.model.program_file` reads it for the engine, without torch;
- :mod:`~fairseq_ext.model.export` makes a checkpoint of it again;
- :mod:`~fairseq_ext.model.describe` says what is in it;
- :mod:`~fairseq_ext.model.card` has its model card;
- :mod:`~fairseq_ext.model.hub` exchanges it with the Hugging Face Hub;
- :mod:`~fairseq_ext.model.find_model` finds the models that have a name.
"""
