"""A web page on which several models translate a sentence: ``fairseq-ext demo``.

:mod:`~fairseq_ext.demo.systems` parses the models on the command line, and translates with them;
:mod:`~fairseq_ext.demo.page` builds and serves the page.
"""
