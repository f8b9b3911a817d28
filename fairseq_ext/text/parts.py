"""Cut texts into parts of N lines that can be read separately."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from fairseq_ext.text.reading import bounded


@dataclass(frozen=True)
class Part:
    """A part of a text: successive lines of one file."""

    number: int  # number of the part, from 0
    path: Path  # the file
    offset: int  # bytes of the file before the part
    first: int  # number of the part's first line in the file, from 1
    before: int  # number of lines in the files before this one
    lines: int  # number of lines in the part

    def read(self) -> Iterator[bytes]:
        """Yield the lines of the part."""
        with self.path.open("rb") as file:
            file.seek(self.offset)
            yield from islice(file, self.lines)


def cut(paths: Sequence[Path], part_lines: int) -> tuple[list[Part], list[dict[str, Any]]]:
    """Read texts once, and cut each into parts.

    Returns the parts, and the manifest's facts about each file: name, size, lines, SHA-256.
    """
    parts: list[Part] = []
    texts: list[dict[str, Any]] = []
    before = 0
    for path in paths:
        digest, offset, lines, offsets = hashlib.sha256(), 0, 0, list[int]()
        with path.open("rb") as file:
            for line in bounded(file, path):
                if lines % part_lines == 0:
                    offsets.append(offset)
                digest.update(line)
                offset, lines = offset + len(line), lines + 1
        for first, start in zip(range(0, lines, part_lines), offsets, strict=True):
            count = min(part_lines, lines - first)
            parts.append(Part(len(parts), path, start, first + 1, before, count))
        before += lines
        texts.append(
            {"name": path.name, "bytes": offset, "lines": lines, "sha256": digest.hexdigest()}
        )
    return parts, texts
