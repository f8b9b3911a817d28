"""The engine in place of fairseq.

:mod:`~fairseq_ext.decoding.on_engine.generator` and
:mod:`~fairseq_ext.decoding.on_engine.scorer` have the interfaces of fairseq's generator and scorer,
:mod:`~fairseq_ext.decoding.on_engine.batches` what both need;
:mod:`~fairseq_ext.decoding.on_engine.translator` needs neither torch nor fairseq.
"""
