"""Additions to ``fairseq-generate`` and ``fairseq-interactive``, and replacements of their parts.

:mod:`~fairseq_ext.generation.translation_ext` is a task with options for epsilon sampling and
GNMT's length penalty; :mod:`~fairseq_ext.generation.generators` computes both.
:mod:`~fairseq_ext.generation.option_checks` refuses options that cannot work.
:mod:`~fairseq_ext.generation.on_engine` replaces fairseq's generator with our engine.
The plugin registers these modules, so none of them imports the plugin.
:mod:`fairseq_ext.decoding`, our own translator, uses them.
"""
