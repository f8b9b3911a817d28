"""Translate with trained models: loading, search, and choosing among samples.

:mod:`~fairseq_ext.decoding.translator` loads models and translates tokens by the options of a
:mod:`~fairseq_ext.decoding.search`; :mod:`~fairseq_ext.decoding.engine_translator` does so without
torch and fairseq, with bundles that :mod:`fairseq_ext.model` reads.
:mod:`~fairseq_ext.decoding.stream` translates a file or a pipe, line by line.
:mod:`~fairseq_ext.decoding.mbr` is minimum Bayes risk decoding, for files and for new samples, with
the :mod:`~fairseq_ext.decoding.mbr_utilities`.
"""
