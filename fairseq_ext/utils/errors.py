"""One family of errors: everything that a user can cause and fix.

Each message names the file, line or option and says what to do. Commands print the message
alone, without a traceback, and exit with status 1 (see :func:`install_excepthook`).
"""

from __future__ import annotations

import os
import re
import sys
import traceback
from pathlib import Path
from types import TracebackType

TRACEBACK = "FAIRSEQ_EXT_TRACEBACK"
"""The environment variable that asks for tracebacks of all errors."""
# Control characters, line ends of Unicode, marks that turn the direction of text, lone surrogates.
_UNPRINTABLE = re.compile("[\0-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_REFUSALS = (AssertionError, ValueError, NotImplementedError, ImportError, FileNotFoundError)
_AT_WORK = {"train_step", "valid_step", "inference_step"}


def printable(text: str) -> str:
    """Return ``text`` in one line, with escapes for characters that control a terminal."""
    return _UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


class FairseqExtError(Exception):
    """Base of every error this package raises for a cause outside its code."""

    def __str__(self) -> str:
        return printable(super().__str__())  # the name of a file may contain any character


class ConfigError(FairseqExtError, ValueError):
    """An option, or a combination of options, that cannot work."""


class DataError(FairseqExtError, ValueError):
    """A text file, dictionary or dataset that cannot be used as it is."""


class CheckpointError(FairseqExtError, RuntimeError):
    """A checkpoint that is missing, damaged, unsafe or of another kind."""


class DivergenceError(FairseqExtError, ArithmeticError):
    """A training whose loss, gradients or weights are not finite any more."""


class EnvironmentProblem(FairseqExtError, RuntimeError):
    """An installation, folder or disk that this package cannot work with."""


def one_line(error: BaseException) -> str | None:
    """Return the message to show instead of a traceback, or None if the traceback is needed."""
    if isinstance(error, FairseqExtError):
        return f"error: {error}"
    if isinstance(error, KeyboardInterrupt):
        return "interrupted."
    if _refuses_options(error):
        words = str(error).partition("\n")[0]
        return f"error: {printable(words)} ({TRACEBACK}=1 shows where.)"
    return None


def _refuses_options(error: BaseException) -> bool:
    """Whether fairseq, or a library that it uses, refuses options with a message of its own.

    An error in the middle of the work is another matter, and so is a fault of this package.
    """
    worded = isinstance(error, _REFUSALS) or type(error) is Exception
    if not str(error) or not (worded or type(error).__module__.startswith(("omegaconf", "hydra"))):
        return False
    frames = traceback.extract_tb(error.__traceback__)
    ours = str(Path(__file__).parents[1])
    return not (
        any(frame.name in _AT_WORK for frame in frames)
        or (frames and frames[-1].filename.startswith(ours))
    )


def install_excepthook() -> None:
    """Make commands end with one line (see :func:`one_line`) instead of a traceback."""
    previous = sys.excepthook
    if getattr(previous, "prints_user_errors", False):
        return

    def hook(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        line = None if os.environ.get(TRACEBACK) else one_line(error)
        if line is None:
            previous(kind, error, traceback)
        else:
            print(f"fairseq-ext: {line}", file=sys.stderr)

    hook.prints_user_errors = True  # type: ignore[attr-defined]
    sys.excepthook = hook
