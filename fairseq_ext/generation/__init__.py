"""Additions to ``fairseq-generate`` and ``fairseq-interactive``.

- :mod:`~fairseq_ext.generation.translation_ext`: a task with options for epsilon sampling and
  GNMT's length penalty.
- :mod:`~fairseq_ext.generation.generators`: the computation of this sampling and this penalty.
- :mod:`~fairseq_ext.generation.option_checks`: checks that refuse options that cannot work.
- :mod:`~fairseq_ext.generation.on_engine`: our engine in place of fairseq's generator.

The plugin and :mod:`fairseq_ext.decoding`, our own translator, import these modules. None of them
imports the plugin.
"""
