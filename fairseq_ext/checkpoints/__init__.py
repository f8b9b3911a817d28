"""Checkpoints: the only room that knows what such a file looks like.

- ``storage.py`` loads and saves them safely;
- ``untrusted.py`` says what a file may hold, ``registered.py`` what it may name;
- ``layout.py`` names the parts of a checkpoint, and those that this plugin adds;
- ``describe.py`` counts what is in one;
- ``dictionaries.py`` compares the words that a model was trained with;
- ``averaging.py`` takes the mean of several.

Packed binary models are files of their own: :mod:`fairseq_ext.binary.packed`.
"""
