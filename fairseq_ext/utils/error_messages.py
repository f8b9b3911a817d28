"""Print the error that ends a command in one line, in the same way for all commands.

``fairseq-ext`` (``cli.py``) and ``fairseq-hydra-train`` call :func:`report`. Every other command of
fairseq that has loaded this plugin calls :func:`report` through ``sys.excepthook``.
"""

import errno
import os
import re
import sys
import traceback
from pathlib import Path
from typing import Any

from fairseq_ext.utils import errors, extras, files
from fairseq_ext.utils.errors import FairseqExtError, printable

TRACEBACK = "FAIRSEQ_EXT_TRACEBACK"  # environment variable that asks for tracebacks of all errors
USER_CAUSED = files.FULL_DISK | {
    *(errno.ENOENT, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR),
    *(errno.EEXIST, errno.EROFS, errno.ENAMETOOLONG, errno.EIO, *files.TOO_MANY_FILES),
}
_REFUSALS = (AssertionError, ValueError, NotImplementedError, ImportError, FileNotFoundError)
_MISSING = (AttributeError, KeyError, TypeError)  # for what a batch, task or model lacks
_AT_WORK = {"train_step", "valid_step", "inference_step"}
# torch.multiprocessing passes on a child's error as the text of its traceback.
_SPAWNED = re.compile(rf"^{re.escape(errors.__name__)}\.\w+: (.*)", re.MULTILINE)


def report(error: BaseException) -> int | None:
    """Print an error's message and return the exit status; None if the error needs a traceback."""
    line = None if os.environ.get(TRACEBACK) else final_line(error)
    if line is None:
        return None
    print(f"fairseq-ext: {line}", file=sys.stderr)
    return 130 if isinstance(error, KeyboardInterrupt) else 1


def final_line(error: BaseException) -> str | None:
    """Return the message to show instead of a traceback, or None if the error needs a traceback."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted."
    if isinstance(error, FairseqExtError):
        return f"error: {error}"
    words = _plain_words(error)
    if words is None and _refuses_options(error):
        first_line = str(error).strip().partition("\n")[0]
        words = f"{first_line} ({TRACEBACK}=1 shows where.)"
    return words and f"error: {printable(words)}"


def _plain_words(error: BaseException) -> str | None:
    """Return a message in plain words for an error that a user can cause; None for other errors."""
    if isinstance(error, ModuleNotFoundError) and error.name:
        return extras.missing(error.name)
    if isinstance(error, OSError) and error.errno in USER_CAUSED:
        return files.explain(error)
    if isinstance(error, UnicodeDecodeError):
        return (
            f"the input is not UTF-8 ({error.reason}, byte 0x{error.object[error.start]:02x}). "
            "If it is Latin-1, convert it: iconv -f cp1252 -t utf-8"
        )
    if str(error).startswith("Too many open files"):  # torch's message about its workers
        return files.explain(OSError(errno.EMFILE, os.strerror(errno.EMFILE)), "another file")
    if type(error).__name__ == "MissingMandatoryValue":  # of omegaconf
        option = str(error.full_key).rpartition(".")[2].replace("_", "-")  # type: ignore[attr-defined]
        return f"`--{option}` is missing, but the other options need it."
    frames = traceback.extract_tb(error.__traceback__)
    at_fault = Path(frames[-1].filename) if frames else Path()
    if at_fault.parts[-3:-1] == ("fairseq", "criterions") and isinstance(error, _MISSING):
        return (
            f"`--criterion` must suit the task and the model, but {at_fault.stem} does not "
            f"({type(error).__name__}: {error}; {TRACEBACK}=1 shows where)."
        )
    if type(error).__name__ == "ProcessRaisedException":
        spawned = _SPAWNED.findall(str(error))
        return spawned[-1] if spawned else None
    return None


def _refuses_options(error: BaseException) -> bool:
    """Guess whether an error means that fairseq, or a library that it uses, refuses options.

    The result is False for all errors during a training or inference step, and for all errors that
    this package raises.
    """
    worded = isinstance(error, _REFUSALS) or type(error) in (Exception, OSError)
    if not str(error).strip() or not (
        worded or type(error).__module__.startswith(("omegaconf", "hydra"))
    ):
        return False
    frames = traceback.extract_tb(error.__traceback__)
    package = str(Path(__file__).parents[1])
    return not (
        any(frame.name in _AT_WORK for frame in frames)
        or (frames and frames[-1].filename.startswith(package))
    )


def install_excepthook() -> None:
    """Let :func:`report` print any error that ends this process."""
    previous = sys.excepthook

    def hook(kind: Any, error: BaseException, traceback: Any) -> None:
        if report(error) is None:
            previous(kind, error, traceback)

    sys.excepthook = hook
