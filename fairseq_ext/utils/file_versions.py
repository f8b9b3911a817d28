"""Notice when a file that a process relies on has been replaced or written to.

Nothing here needs fairseq or torch.
"""

import os
from collections.abc import Iterable
from pathlib import Path

from fairseq_ext.utils.errors import DataError

Version = tuple[int, ...]


def version(file: str | Path | int) -> Version:
    """Return device, inode, size, and times of modification and change of a path or descriptor."""
    status = os.stat(file)  # noqa: PTH116  # takes a descriptor, too
    return *_version_of(status), status.st_ctime_ns


class FileVersions:
    """The versions of files when this object is made; make it before the files are read."""

    def __init__(self, paths: Iterable[Path] = ()) -> None:
        self._files = {path: path.stat() for path in paths}

    def require_unchanged(self) -> None:
        """Check that the files have not changed."""
        for path, former in self._files.items():
            if not (path.exists() and _has_content_of(path.stat(), former)):
                raise DataError(
                    f"{path} has changed since this process read it; start the command again."
                )


def _has_content_of(status: os.stat_result, former: os.stat_result) -> bool:
    """Return whether nobody wrote to a file between two readings of its status.

    Anyone can set back the modification time, but not the change time. A new name, mode or owner
    also sets the change time, so a later change time is accepted if one of those has changed.
    """
    attributes = [
        (facts.st_mode, facts.st_uid, facts.st_gid, facts.st_nlink) for facts in (status, former)
    ]
    return _version_of(status) == _version_of(former) and (
        status.st_ctime_ns == former.st_ctime_ns or attributes[0] != attributes[1]
    )


def _version_of(status: os.stat_result) -> Version:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
