"""Notice when a file that a process relies on has been replaced or written to.

Nothing here needs fairseq or torch.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from fairseq_ext.utils.errors import DataError


class Version(NamedTuple):
    """A version of a file's content, as the system's facts about the file show it.

    Attributes:
        device, inode: where the file is.
        size: in bytes.
        modified: when its content was written, in nanoseconds.
        changed: when its content or its attributes were changed; nobody can set this time.
        attributes: mode, owner, group and the number of its names.
    """

    device: int
    inode: int
    size: int
    modified: int
    changed: int
    attributes: tuple[int, ...]

    def has_content_of(self, other: Version) -> bool:
        """Whether both versions have one content: nobody wrote to the file between them."""
        if self[:4] != other[:4]:
            return False
        return self.changed == other.changed or self.attributes != other.attributes


def version(file: str | Path | int) -> Version:
    """Return the version of a file, given by its path or descriptor.

    Raises:
        OSError: the file does not exist.
    """
    status = os.stat(file)  # noqa: PTH116  # takes a descriptor, too
    attributes = status.st_mode, status.st_uid, status.st_gid, status.st_nlink
    return Version(
        *(status.st_dev, status.st_ino, status.st_size),
        *(status.st_mtime_ns, status.st_ctime_ns, attributes),
    )


class FileVersions:
    """The versions of files when this object was made, which is before they are read.

    Args:
        paths: of the files.
        descriptors: of open files, by path; a path may become that of another file.

    Raises:
        OSError: a file does not exist.
    """

    def __init__(
        self, paths: Iterable[Path] = (), descriptors: Mapping[Path, int] | None = None
    ) -> None:
        files: dict[Path, Path | int] = {**{path: path for path in paths}, **(descriptors or {})}
        self._versions = [(path, file, version(file)) for path, file in files.items()]

    def require_unchanged(self) -> None:
        """Check that the files have not changed.

        Raises:
            DataError: a file has changed; the message names the first.
        """
        for path, file, former in self._versions:
            try:
                unchanged = version(file).has_content_of(former)
            except OSError:
                unchanged = False
            if not unchanged:
                raise DataError(
                    f"{path} has changed since this process read it; start the command again."
                )
