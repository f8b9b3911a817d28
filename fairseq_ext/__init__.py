"""The architectures of four translation papers, for fairseq.

Importing this package registers nothing. :func:`register` makes the architectures known to fairseq.
It is called by ``--user-dir user_dir`` in a clone, and by ``--user-dir "$(fairseq-ext user-dir)"``
if installed. :func:`load` returns a trained model as a Python object that translates.
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
