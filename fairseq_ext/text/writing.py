"""Write lines of text into folders that appear whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

from fairseq_ext.utils import files


@contextmanager
def writers(paths: list[Path]) -> Iterator[list[IO[str]]]:
    """Open files for UTF-8 lines, which are on disk when the block ends without an error."""
    with ExitStack() as stack:
        opened = [
            stack.enter_context(path.open("w", encoding="utf-8", newline="\n")) for path in paths
        ]
        yield opened
        for file in opened:
            file.flush()
            os.fsync(file.fileno())


def write_all(folder: Path, texts: Mapping[str, Iterable[str]]) -> None:
    """Write ``{name: lines}`` into ``folder``, all files completely or none at all."""
    with (
        files.staged_folder(folder) as stage,
        writers([stage / name for name in texts]) as opened,
    ):
        for file, lines in zip(opened, texts.values(), strict=True):
            file.writelines(f"{line}\n" for line in lines)
