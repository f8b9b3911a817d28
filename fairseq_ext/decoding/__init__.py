"""From a trained model to translations: search, sampling, and choosing among samples.

:mod:`~fairseq_ext.decoding.translator` loads models and translates tokens, as a
:mod:`~fairseq_ext.decoding.search` says,
:mod:`~fairseq_ext.decoding.stream` goes through a file or a pipe, line by line,
:mod:`~fairseq_ext.decoding.translation_ext` is the task that has
:mod:`~fairseq_ext.decoding.sampling` and the :mod:`~fairseq_ext.decoding.length_penalty` as
options, :mod:`~fairseq_ext.decoding.mbr` is minimum Bayes risk decoding with the
:mod:`~fairseq_ext.decoding.mbr_utilities`, :mod:`~fairseq_ext.decoding.mbr_rerank` the same for
samples that were just drawn. :mod:`~fairseq_ext.decoding.on_engine` does the same on our engine,
whose models :mod:`~fairseq_ext.decoding.packing` makes.
"""
