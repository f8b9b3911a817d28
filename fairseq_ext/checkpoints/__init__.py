"""Checkpoints: the only package that knows the format of these files.

:mod:`~fairseq_ext.checkpoints.storage` loads and saves a checkpoint, with these modules:

- :mod:`~fairseq_ext.checkpoints.safe_load`: reads a file of unknown origin, with checks;
- :mod:`~fairseq_ext.checkpoints.registry_checks`: the classes, options and sizes of fairseq's
  models that a file may name;
- :mod:`~fairseq_ext.checkpoints.layout`: a checkpoint's parts, some of which this plugin adds;
- :mod:`~fairseq_ext.checkpoints.dictionaries`: the words that a model was trained with;
- :mod:`~fairseq_ext.checkpoints.published`: models that fairseq's authors have published;
- :mod:`~fairseq_ext.checkpoints.size`: the size of a checkpoint, and its number of updates;
- :mod:`~fairseq_ext.checkpoints.averaging`: the mean of several checkpoints.

A trained model is moved to other machines as a :mod:`~fairseq_ext.checkpoints.bundle`;
:mod:`fairseq_ext.model` makes and uses bundles.
"""
