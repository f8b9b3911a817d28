"""Turn archives, tables and text of any origin into the files that fairseq-preprocess reads.

:mod:`~fairseq_ext.corpora.catalogue` lists the corpora of the literature,
:mod:`~fairseq_ext.corpora.official` prepares a corpus of the catalogue,
:mod:`~fairseq_ext.corpora.own_text` checks, copies and splits a user's own text,
:mod:`~fairseq_ext.corpora.split_pairs` splits sentence pairs without leaks,
:mod:`~fairseq_ext.corpora.tatoeba` is the corpus that comes with the package.
"""

SPLITS = ("train", "valid", "test")  # parts of every corpus
