"""Cut texts into parts of N lines that can be read separately."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from fairseq_ext.text.reading import bounded

READ = 1000  # lines read at a time


@dataclass(frozen=True)
class Part:
    """Successive lines of one file.

    Attributes:
        number: number of the part, from 0.
        path: the file.
        offset: bytes of the file before the part.
        first: number of the part's first line in the file, from 1.
        before: number of lines in the files before this one.
        lines: number of lines in the part.
    """

    number: int
    path: Path
    offset: int
    first: int
    before: int
    lines: int

    def read(self) -> Iterator[bytes]:
        """Yield the lines of the part."""
        with self.path.open("rb") as file:
            file.seek(self.offset)
            yield from islice(file, self.lines)


def cut(paths: Sequence[Path], part_lines: int) -> tuple[list[Part], list[dict[str, Any]]]:
    """Read texts once, and cut each into parts.

    Returns:
        The parts, and the manifest's facts about each file: name, size, lines, SHA-256.

    Raises:
        DataError: a line is too long.
    """
    parts: list[Part] = []
    texts: list[dict[str, Any]] = []
    before = 0
    for path in paths:
        digest, offset, lines = hashlib.sha256(), 0, 0
        with path.open("rb") as file:
            lines_of = bounded(file, path)
            while block := list(islice(lines_of, min(READ, part_lines - lines % part_lines))):
                if lines % part_lines == 0:
                    parts.append(Part(len(parts), path, offset, lines + 1, before, 0))
                data = b"".join(block)
                digest.update(data)
                offset, lines = offset + len(data), lines + len(block)
                if lines % part_lines == 0:
                    parts[-1] = _with_lines(parts[-1], lines)
        if lines % part_lines:
            parts[-1] = _with_lines(parts[-1], lines)
        before += lines
        texts.append(
            {"name": path.name, "bytes": offset, "lines": lines, "sha256": digest.hexdigest()}
        )
    return parts, texts


def _with_lines(part: Part, end: int) -> Part:
    """Return the part, extended up to the given line of its file."""
    return Part(**{**vars(part), "lines": end - part.first + 1})
