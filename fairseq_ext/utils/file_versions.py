"""Notice when a file that a process relies on has been replaced or written to.

Nothing here needs fairseq or torch.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from fairseq_ext.utils.errors import DataError

Version = tuple[int, ...]


def version(file: str | Path | int) -> Version:
    """Return device, inode, size in bytes and nanosecond of the last writing of a file.

    Args:
        file: its path or descriptor.
    """
    status = os.stat(file)  # noqa: PTH116  # takes a descriptor, too
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


class FileVersions:
    """The versions of files when this object was made, which is before they are read."""

    def __init__(self, paths: Iterable[Path] = ()) -> None:
        self._versions = {path: version(path) for path in paths}

    def require_unchanged(self) -> None:
        """Check that the files have not changed."""
        for path, former in self._versions.items():
            if not path.exists() or version(path) != former:
                raise DataError(
                    f"{path} has changed since this process read it; start the command again."
                )
