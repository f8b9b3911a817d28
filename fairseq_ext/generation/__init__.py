"""Additions to ``fairseq-generate`` and ``fairseq-interactive``, and replacements of their parts.

- :mod:`~fairseq_ext.generation.translation_ext`: a task with options for epsilon sampling and
  GNMT's length penalty.
- :mod:`~fairseq_ext.generation.generators`: the computation of this sampling and this penalty.
- :mod:`~fairseq_ext.generation.option_checks`: checks that refuse options that cannot work.
- :mod:`~fairseq_ext.generation.on_engine`: our engine in place of fairseq's generator.

The plugin imports these modules, and none of them imports the plugin.
:mod:`fairseq_ext.decoding`, our own translator, uses them, too.
"""
