"""A web page on which several models translate a sentence: ``fairseq-ext demo``.

:mod:`~fairseq_ext.demo.systems` reads the names of the models on the command line, and translates
a sentence with them,
:mod:`~fairseq_ext.demo.page` builds and serves the page.
"""
