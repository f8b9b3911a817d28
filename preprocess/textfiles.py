"""What the scripts of this folder share: atomic writes of files, checksums."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path


def sha256(path: Path) -> str:
    """The file's SHA-256 in hexadecimal digits."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def write_all(folder: Path, files: Mapping[str, Iterable[str]]) -> None:
    """Write ``{name: lines}`` into ``folder``: all files complete, or none touched.

    Every file is written beside its final place under a temporary name; only when all are on
    disk are they moved, in the order given.

    Raises:
        OSError: the folder cannot be made or written, or the disk is full.
    """
    folder.mkdir(parents=True, exist_ok=True)
    temporary = {name: folder / f".{name}.{os.getpid()}.tmp" for name in files}
    try:
        for name, lines in files.items():
            with temporary[name].open("w", encoding="utf-8", newline="\n") as file:
                file.writelines(f"{line}\n" for line in lines)
                file.flush()
                os.fsync(file.fileno())
        for name, path in temporary.items():
            path.replace(folder / name)
    finally:
        for path in temporary.values():
            path.unlink(missing_ok=True)
