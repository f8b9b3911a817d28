"""Four translation papers as fairseq architectures.

Importing this package does nothing but that. :func:`register` makes fairseq know the architectures;
``--user-dir user_dir`` from a clone and ``--user-dir "$(fairseq-ext user-dir)"`` when installed
call it.
"""

from __future__ import annotations

from fairseq_ext.plugin import register
from fairseq_ext.version import __version__

__all__ = ["__version__", "register"]
