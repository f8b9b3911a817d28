"""The architectures of four translation papers, for fairseq.

Importing this package registers nothing. :func:`register` makes the architectures known to fairseq.
fairseq calls it for ``--user-dir user_dir`` in a clone, and for ``--user-dir "$(fairseq-ext
user-dir)"`` if the package is installed. :func:`load` returns a trained model that translates.
"""

from typing import TYPE_CHECKING, Any

from fairseq_ext.plugin import register
from fairseq_ext.version import __version__

if TYPE_CHECKING:
    from fairseq_ext.decoding.text_model import load

__all__ = ["__version__", "load", "register"]


def __getattr__(name: str) -> Any:
    if name == "load":  # imported late, because it needs numpy and more
        from fairseq_ext.decoding.text_model import load

        return load
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
