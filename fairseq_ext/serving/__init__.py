"""Serve translations over HTTP, with LibreTranslate's interface: ``fairseq-ext serve``.

:mod:`~fairseq_ext.serving.settings` declares the options,
:mod:`~fairseq_ext.serving.pairs` loads the models, one for each language pair,
:mod:`~fairseq_ext.serving.batching` translates the sentences of concurrent requests together,
:mod:`~fairseq_ext.serving.requests` reads requests, which may be hostile,
:mod:`~fairseq_ext.serving.query` checks the fields of a request for translations,
:mod:`~fairseq_ext.serving.metrics` counts requests and sentences,
:mod:`~fairseq_ext.serving.app` answers requests, and
:mod:`~fairseq_ext.serving.server` runs this application in one process or several.
"""
