"""Translating lines of text with trained models: what ``fairseq-ext translate`` is made of.

:mod:`~fairseq_ext.translating.translator` loads models and translates tokens,
:mod:`~fairseq_ext.translating.stream` goes through a file or a pipe, line by line,
:mod:`~fairseq_ext.translating.consensus` chooses among samples.
"""
