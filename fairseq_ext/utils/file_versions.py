"""Notice when a file that a process relies on has been replaced or written to.

Nothing here needs fairseq or torch.
"""

import os
from collections.abc import Iterable
from operator import attrgetter
from pathlib import Path

from fairseq_ext.utils.errors import DataError

Version = tuple[int, ...]
_content = attrgetter("st_dev", "st_ino", "st_size", "st_mtime_ns")
_attributes = attrgetter("st_mode", "st_uid", "st_gid", "st_nlink")


def version(file: str | Path | int) -> Version:
    """Return device, inode, size, and times of modification and change of a path or descriptor."""
    status = os.stat(file)  # noqa: PTH116  # takes a descriptor, too
    return *_content(status), status.st_ctime_ns


class FileVersions:
    """The versions of files when this object is made; make it before the files are read."""

    def __init__(self, paths: Iterable[Path] = ()) -> None:
        self._files = {path: path.stat() for path in paths}

    def require_unchanged(self) -> None:
        """Raise :class:`DataError` if a file has been written to since this object was made.

        Modification times alone do not show this, because anyone can set them back, but nobody can
        set back the time of change. A new name, mode or owner also sets the time of change, so a
        later one is accepted if one of those has changed.
        """
        for path, former in self._files.items():
            now = path.stat() if path.exists() else None
            if (
                now is None
                or _content(now) != _content(former)
                or (
                    now.st_ctime_ns != former.st_ctime_ns
                    and _attributes(now) == _attributes(former)
                )
            ):
                raise DataError(
                    f"{path} has changed since this process read it; start the command again."
                )
