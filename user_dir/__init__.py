"""Give this folder to ``--user-dir``: importing ``fairseq_ext`` registers everything."""

import fairseq_ext  # noqa: F401
