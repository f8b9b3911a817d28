"""Parts of fairseq's own ``generate`` and ``interactive`` that this plugin adds or replaces.

:mod:`~fairseq_ext.generation.translation_ext` is the task with
:mod:`~fairseq_ext.generation.generators` as options,
:mod:`~fairseq_ext.generation.option_checks` refuses options that cannot work, and
:mod:`~fairseq_ext.generation.on_engine` replaces fairseq's generator with our engine.
The plugin registers all of it, so nothing here imports the plugin;
:mod:`fairseq_ext.decoding`, our own translator, is built on both.
"""
