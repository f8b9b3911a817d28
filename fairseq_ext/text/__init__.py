"""Check text, and turn it into a model's tokens and back.

:mod:`~fairseq_ext.text.checks` reads text the way fairseq will,
:mod:`~fairseq_ext.text.pipeline` records how a corpus was made, in ``text.json`` with the data,
:mod:`~fairseq_ext.text.cleaning`, :mod:`~fairseq_ext.text.moses` and
:mod:`~fairseq_ext.text.subwords` are the pipeline's steps.
"""
