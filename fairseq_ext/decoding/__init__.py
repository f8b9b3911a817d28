"""From a trained model to translations: loading, search, and choosing among samples.

:mod:`~fairseq_ext.decoding.translator` loads models and translates tokens, as a
:mod:`~fairseq_ext.decoding.search` says; :mod:`~fairseq_ext.decoding.engine_translator` does so
without torch and fairseq, with bundles that :mod:`fairseq_ext.model` reads.
:mod:`~fairseq_ext.decoding.stream` goes through a file or a pipe, line by line.
:mod:`~fairseq_ext.decoding.mbr` is minimum Bayes risk decoding with the
:mod:`~fairseq_ext.decoding.mbr_utilities`, and :mod:`~fairseq_ext.decoding.mbr_rerank` applies it
to samples that were just drawn.
"""
