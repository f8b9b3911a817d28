"""Streams of pairs: cut into chunks, copied, written and dealt out to files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import IO

from tqdm import tqdm

from fairseq_ext.corpora.chunks import Chunk, Lines, Tally, count
from fairseq_ext.corpora.raw_pairs import RawPair

CHUNK = 2_000  # pairs that a process takes at a time


def cut(pairs: Iterable[RawPair]) -> Iterator[Chunk]:
    """Yield numbered chunks of successive pairs."""
    pairs, first = iter(pairs), 1
    while chunk := list(islice(pairs, CHUNK)):
        yield Chunk(first, chunk)
        first += len(chunk)


def copying(
    pairs: Iterable[RawPair], files: Sequence[IO[str]], plain: Callable[[str, str], str]
) -> Iterator[RawPair]:
    """Yield the pairs, and write them as plain text on the way."""
    for pair in pairs:
        for text, file in zip(pair, files, strict=True):
            file.write(f"{plain(text or '', file.name.rpartition('.')[2])}\n")
        yield pair


def write(results: Iterable[Lines], files: Sequence[IO[str]], bar: tqdm | None = None) -> Tally:
    """Write the lines of each result to the two files; returns the sum of the counts."""
    tally = Tally()
    for lines in results:
        for file, side in zip(files, (lines.source, lines.target), strict=True):
            file.writelines(f"{line}\n" for line in side)
        tally.merge(lines.tally)
        if bar is not None:
            bar.update(lines.tally.read)
    return tally


def deal(pairs: Iterable[tuple[str, str]], turns: Sequence[Sequence[IO[str]]]) -> list[list[int]]:
    """Deal the pairs out to pairs of files in turn; returns pairs and tokens dealt to each turn."""
    counts = [[0, 0, 0] for _ in turns]
    for number, pair in enumerate(pairs):
        turn = number % len(turns)
        for file, line in zip(turns[turn], pair, strict=True):
            file.write(f"{line}\n")
        for place, amount in enumerate((1, *map(count, pair))):
            counts[turn][place] += amount
    return counts


def line_pairs(source: Path, target: Path) -> Iterator[list[tuple[str, str]]]:
    """Yield lists of line pairs from two files that this package wrote."""
    chunk: list[tuple[str, str]] = []
    with (
        source.open(encoding="utf-8", newline="\n") as first,
        target.open(encoding="utf-8", newline="\n") as second,
    ):
        for pair in zip(first, second, strict=True):
            chunk.append((pair[0].rstrip("\n"), pair[1].rstrip("\n")))
            if len(chunk) == CHUNK:
                yield chunk
                chunk = []
    if chunk:
        yield chunk
