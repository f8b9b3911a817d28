"""Turn archives, tables and text of any origin into the files that fairseq-preprocess reads.

:mod:`~fairseq_ext.corpora.catalogue` lists the corpora of the literature,
:mod:`~fairseq_ext.corpora.official` prepares a corpus of the catalogue,
:mod:`~fairseq_ext.corpora.own_text` checks, copies and splits a user's own text,
:mod:`~fairseq_ext.corpora.split_pairs` splits sentence pairs without leaks,
:mod:`~fairseq_ext.corpora.tatoeba` is the corpus that comes with the package.

Where a docstring says that files or texts are refused, :class:`~fairseq_ext.utils.errors.DataError`
is raised. Options that are wrong or contradict each other raise
:class:`~fairseq_ext.utils.errors.ConfigError`.
"""

SPLITS = ("train", "valid", "test")  # parts of every corpus
