"""Check text, and turn it into a model's tokens and back.

- :mod:`~fairseq_ext.text.reading` reads text and tables, compressed or not.
- :mod:`~fairseq_ext.text.checks` refuses files that fairseq would misread.
- :mod:`~fairseq_ext.text.pipeline` turns text into tokens by the steps that ``text.json`` lists,
  and tokens back into text.
- :mod:`~fairseq_ext.text.cleaning`, :mod:`~fairseq_ext.text.moses` and
  :mod:`~fairseq_ext.text.subwords` do the single steps.
"""
