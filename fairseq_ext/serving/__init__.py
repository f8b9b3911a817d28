"""Serve translations over HTTP, with LibreTranslate's interface: ``fairseq-ext serve``.

- :mod:`~fairseq_ext.serving.settings`: the options.
- :mod:`~fairseq_ext.serving.pairs`: the models, one for each language pair.
- :mod:`~fairseq_ext.serving.batching`: translating the sentences of concurrent requests together.
- :mod:`~fairseq_ext.serving.requests`: reading requests, which may be hostile.
- :mod:`~fairseq_ext.serving.metrics`: counting requests and sentences.
- :mod:`~fairseq_ext.serving.origins`: which web pages may use the server.
- :mod:`~fairseq_ext.serving.app`: the application, which answers requests.
- :mod:`~fairseq_ext.serving.server`: running the application in one process or several.
"""
