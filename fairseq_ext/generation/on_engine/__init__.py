"""fairseq's generator and scorer, run by our engine.

:mod:`~fairseq_ext.generation.on_engine.generator` and
:mod:`~fairseq_ext.generation.on_engine.scorer` have the interfaces of fairseq's generator and
scorer, :mod:`~fairseq_ext.generation.on_engine.batches` holds what both need. Files of the engine,
which need neither torch nor fairseq, are translated by
:mod:`fairseq_ext.decoding.engine_translator`.
"""
