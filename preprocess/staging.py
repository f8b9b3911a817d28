"""Large outputs: written line by line into folders that appear whole or not at all."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO


@contextmanager
def staged(*folders: Path) -> Iterator[list[Path]]:
    """Yield an empty folder for each of ``folders``; their files move up once all is written.

    After an error the folders are as they were before. Unlike ``textfiles.write_all``, which
    takes finished lists of lines, this holds nothing in memory.

    Raises:
        OSError: a folder cannot be made or written, or the disk is full.
    """
    with ExitStack() as stack:
        stages = []
        for folder in folders:
            missing = [path for path in (folder, *folder.parents) if not path.exists()]
            folder.mkdir(parents=True, exist_ok=True)
            stack.callback(_remove_empty, missing)
            stage = Path(tempfile.mkdtemp(prefix=".partial-", dir=folder))
            stack.callback(shutil.rmtree, stage, ignore_errors=True)
            stages.append(stage)
        yield stages
        for stage, folder in zip(stages, folders, strict=True):
            for path in sorted(stage.iterdir()):
                path.replace(folder / path.name)


def _remove_empty(made: list[Path]) -> None:
    for path in made:
        with suppress(OSError):  # it holds something by now
            path.rmdir()


@contextmanager
def writers(paths: list[Path]) -> Iterator[list[IO[str]]]:
    """Open files for UTF-8 lines; on leaving without an error they are on disk."""
    with ExitStack() as stack:
        files = [
            stack.enter_context(path.open("w", encoding="utf-8", newline="\n")) for path in paths
        ]
        yield files
        for file in files:
            file.flush()
            os.fsync(file.fileno())


def sha256_of(path: Path) -> str:
    """The file's SHA-256 in hexadecimal digits, read in blocks."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
