"""Byte-pair encoding of Sennrich et al. (2016) applied to pairs, and cleaning by its pieces."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from catalogue import Limits
from tokens import KEPT, Lines, Tally, count, why_dropped

from fairseq_ext.text.subwords import Merges


@dataclass(frozen=True)
class Split:
    """Split the words of pairs of lines; it can be sent to another process.

    Attributes:
        codes: file with the merges.
        limits: which pairs are kept, by their pieces; None keeps all.
        version: of the file, such as its checksum, as a process keeps the merges it has read.
    """

    codes: Path
    limits: Limits | None
    version: str

    def __call__(self, pairs: Sequence[tuple[str, str]]) -> Lines:
        """Pieces, all but the last of a word ending in ``@@``."""
        split = _splitter(self.codes, self.version)
        source, target, tally = [], [], Tally()
        for pair in pairs:
            first, second = map(split, pair)
            fate = KEPT if self.limits is None else why_dropped(first, second, self.limits)
            if fate == KEPT:
                source.append(first)
                target.append(second)
            tally.add(fate, 1, count(first), count(second))
        return Lines(source, target, tally)


@functools.lru_cache(maxsize=1)
def _splitter(codes: Path, version: str) -> Merges:
    return Merges(codes)


def line_pairs(source: Path, target: Path, size: int) -> Iterator[list[tuple[str, str]]]:
    """Pairs of lines of two files that :func:`staging.writers` wrote, ``size`` at a time."""
    chunk: list[tuple[str, str]] = []
    with (
        source.open(encoding="utf-8", newline="\n") as first,
        target.open(encoding="utf-8", newline="\n") as second,
    ):
        for pair in zip(first, second, strict=True):
            chunk.append((pair[0].rstrip("\n"), pair[1].rstrip("\n")))
            if len(chunk) == size:
                yield chunk
                chunk = []
    if chunk:
        yield chunk
