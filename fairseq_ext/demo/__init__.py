"""A web page on which several models translate a sentence: ``fairseq-ext demo``.

:mod:`~fairseq_ext.demo.systems` loads the models that the command names, and translates a sentence
with them,
:mod:`~fairseq_ext.demo.page` builds and serves the page.
"""
