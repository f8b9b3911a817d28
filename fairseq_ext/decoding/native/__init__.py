"""The engine in place of fairseq.

:mod:`~fairseq_ext.decoding.native.generator` and :mod:`~fairseq_ext.decoding.native.scorer` have
the interfaces of fairseq's generator and scorer, :mod:`~fairseq_ext.decoding.native.batches` what
both need; :mod:`~fairseq_ext.decoding.native.translator` needs neither torch nor fairseq.
"""
