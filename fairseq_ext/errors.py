"""One family of errors: whatever a user can cause, and cure.

Each message names the file, line or option and says what to do. Commands print the message
alone, without a traceback, and exit with status 1 (see :func:`install_excepthook`).
"""

from __future__ import annotations

import sys
from types import TracebackType


class FairseqExtError(Exception):
    """Base of every error this package raises for a cause outside its code."""


class ConfigError(FairseqExtError, ValueError):
    """An option, or a combination of options, that cannot work."""


class DataError(FairseqExtError, ValueError):
    """A text file, dictionary or dataset that cannot be used as it is."""


class CheckpointError(FairseqExtError, RuntimeError):
    """A checkpoint that is missing, damaged, unsafe or of another kind."""


class EnvironmentProblem(FairseqExtError, RuntimeError):
    """An installation, folder or disk that this package cannot work with."""


def install_excepthook() -> None:
    """Make commands end with the message of a :class:`FairseqExtError` instead of a traceback."""
    previous = sys.excepthook
    if getattr(previous, "prints_user_errors", False):
        return

    def hook(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, FairseqExtError):
            print(f"fairseq-ext: error: {error}", file=sys.stderr)
        else:
            previous(kind, error, traceback)

    hook.prints_user_errors = True  # type: ignore[attr-defined]
    sys.excepthook = hook
