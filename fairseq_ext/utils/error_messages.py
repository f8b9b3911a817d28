"""Errors of the system, of libraries and of spawned processes as one message of ours."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

from omegaconf.errors import MissingMandatoryValue

from fairseq_ext.utils import errors, files
from fairseq_ext.utils.errors import ConfigError, DataError, EnvironmentProblem

USER_CAUSED = files.FULL_DISK | {
    *(errno.ENOENT, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR),
    *(errno.EEXIST, errno.EROFS, errno.ENAMETOOLONG, errno.EIO, *files.TOO_MANY_FILES),
}


@contextmanager
def one_message(folder: str | None = None) -> Iterator[None]:
    """Turn failed file operations, and errors of spawned processes, into our errors.

    The message names ``folder`` if the system does not say which file it was.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in USER_CAUSED:
            raise
        name = error.filename2 or error.filename or folder
        raise EnvironmentProblem(files.explain(error, name)) from error
    except UnicodeDecodeError as error:
        raise DataError(
            f"the input is not UTF-8 ({error.reason}, byte 0x{error.object[error.start]:02x}). "
            "If it is Latin-1, convert it: iconv -f latin1 -t utf-8"
        ) from error
    except MissingMandatoryValue as error:
        option = str(error.full_key).rpartition(".")[2].replace("_", "-")
        raise ConfigError(f"`--{option}` is missing, but the other options need it.") from error
    except Exception as error:
        if str(error).startswith("Too many open files"):  # torch says this of its workers
            failed = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            raise EnvironmentProblem(files.explain(failed, "another file")) from error
        # torch.multiprocessing passes on a child's error as the text of its traceback
        found = re.findall(r"^fairseq_ext\.utils\.errors\.(\w+): (.*)", str(error), re.MULTILINE)
        if type(error).__name__ != "ProcessRaisedException" or not found:
            raise
        raise getattr(errors, found[-1][0])(found[-1][1]) from None
