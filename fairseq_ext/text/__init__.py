"""Check text, and turn it into a model's tokens and back.

:mod:`~fairseq_ext.text.reading` reads text and tables, compressed or not,
:mod:`~fairseq_ext.text.checks` finds what fairseq would misread in a corpus,
:mod:`~fairseq_ext.text.pipeline` applies and undoes the steps that made a corpus, which its
``text.json`` lists,
:mod:`~fairseq_ext.text.cleaning`, :mod:`~fairseq_ext.text.moses` and
:mod:`~fairseq_ext.text.subwords` do these steps.
"""
