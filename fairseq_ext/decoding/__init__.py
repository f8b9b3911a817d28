"""From a trained model to translations: loading, search, and choosing among samples.

:mod:`~fairseq_ext.decoding.translator` loads models and translates tokens, as a
:mod:`~fairseq_ext.decoding.search` says; :mod:`~fairseq_ext.decoding.engine_translator` does so
without torch and fairseq, with bundles that :mod:`fairseq_ext.model` reads.
:mod:`~fairseq_ext.decoding.stream` goes through a file or a pipe, line by line.
:mod:`~fairseq_ext.decoding.mbr` is minimum Bayes risk decoding, of files and of samples that were
just drawn, with the :mod:`~fairseq_ext.decoding.mbr_utilities`.
"""
