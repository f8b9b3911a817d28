"""Process streams of pairs: encode them in several processes, clean, count, deal out to files."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import IO, NamedTuple

from tqdm import tqdm

from fairseq_ext.corpora.catalogue import Limits
from fairseq_ext.corpora.parallel import ordered_map
from fairseq_ext.corpora.raw_pairs import RawPair
from fairseq_ext.text.pipeline import Pipeline
from fairseq_ext.text.subwords import Step
from fairseq_ext.utils.errors import DataError

CHUNK = 2_000  # pairs that a process takes at a time
LONGEST_TOKEN = 1000  # characters; the limit of clean-corpus-n.perl
KEPT = "kept"
Tally = dict[str, list[int]]
"""Counts of pairs, source tokens and target tokens, by ``kept`` or the reason for dropping."""


class Chunk(NamedTuple):
    """Successive pairs of a text; ``first`` is the number of the first one, from 1."""

    first: int
    pairs: Sequence[RawPair]


@dataclass(frozen=True)
class Lines:
    """The encoded lines of a chunk on both sides, and the counts."""

    source: list[str] = field(default_factory=list)
    target: list[str] = field(default_factory=list)
    tally: Tally = field(default_factory=dict)


@dataclass(frozen=True)
class Encode:
    """Encode the pairs of a chunk; can be sent to another process.

    Attributes:
        pipeline: the steps from text to tokens.
        limits: limits on the tokens of the pairs to keep.
        words: leave subwords, and words that are symbols of fairseq, to a later step.
        must_keep: name of a text of which no pair may be dropped; empty if pairs may be dropped.
        different: drop pairs with equal sides.
        tag: a word put before the source tokens; none if empty.
        version: a checksum or the like of the pipeline's files, because processes cache them.
    """

    pipeline: Pipeline
    limits: Limits = field(default_factory=Limits)
    words: bool = False
    must_keep: str = ""
    different: bool = False
    tag: str = ""
    version: str = ""

    def __call__(self, chunk: Chunk) -> Lines:
        """Return the tokens of the pairs that are kept.

        Raises:
            DataError: a pair that may not be dropped has an empty or unreadable side.
        """
        lines = Lines()
        languages = (self.pipeline.src, self.pipeline.tgt)
        to_source, to_target = (
            step(self.pipeline, side, self.words, self.version) for side in languages
        )
        for number, (source, target) in enumerate(chunk.pairs, chunk.first):
            first, second, fate = "", "", "not UTF-8"
            if source is not None and target is not None:
                first, second = to_source(source), to_target(target)
                fate = why_dropped(first, second, self.limits)
            if self.different and fate == KEPT and first == second:
                fate = "both sides are the same"
            if fate != KEPT and self.must_keep:
                raise DataError(
                    f"{self.must_keep}, sentence {number}: {fate}. Such a set is never shortened; "
                    "the archive is not the official one."
                )
            _add(lines.tally, fate, 1, count(first), count(second))
            if fate == KEPT:
                lines.source.append(f"{self.tag} {first}" if self.tag else first)
                lines.target.append(second)
        return lines

    def write(
        self,
        pairs: Iterable[RawPair],
        files: Sequence[IO[str]],
        workers: int,
        bar: tqdm | None = None,
    ) -> Tally:
        """Encode a stream of pairs into two files; return the counts.

        Args:
            pairs: any number of pairs, in order.
            files: the files for source and target tokens.
            workers: number of processes.
            bar: a progress bar that counts pairs.
        """
        tally: Tally = {}
        for lines in ordered_map(self, _cut(pairs), workers):
            for file, side in zip(files, (lines.source, lines.target), strict=True):
                file.writelines(f"{line}\n" for line in side)
            for fate, numbers in lines.tally.items():
                _add(tally, fate, *numbers)
            if bar is not None:
                bar.update(pairs_read(lines.tally))
        return tally


@functools.lru_cache
def step(pipeline: Pipeline, language: str, words: bool = True, version: str = "") -> Step:
    """Return the function from text to words or tokens; each process builds it once."""
    return pipeline.words(language) if words else pipeline.encoder(language)


def pairs_read(tally: Tally) -> int:
    """Return the number of pairs, including dropped ones."""
    return sum(numbers[0] for numbers in tally.values())


def _add(tally: Tally, fate: str, *numbers: int) -> None:
    for place, number in enumerate(numbers):
        tally.setdefault(fate, [0] * len(numbers))[place] += number


def count(tokens: str) -> int:
    """Count the tokens of a line."""
    return tokens.count(" ") + 1 if tokens else 0


def why_dropped(source: str, target: str, limits: Limits) -> str:
    """Return ``kept``, or the first reason of ``clean-corpus-n.perl`` to drop the pair."""
    if not source or not target:
        return "empty side"
    counts = count(source), count(target)
    if limits.longest is not None and max(counts) > limits.longest:
        return f"more than {limits.longest} tokens"
    if limits.ratio is not None and max(counts) > limits.ratio * min(counts):
        return f"lengths differ more than {limits.ratio:g}-fold"
    if limits.longest is not None and _longest_token((source, target)) > LONGEST_TOKEN:
        return f"token of more than {LONGEST_TOKEN} characters"
    return KEPT


def _longest_token(sides: Iterable[str]) -> int:
    # Lines shorter than the limit, which are most, need no splitting.
    return max(max(map(len, side.split(" "))) if len(side) > LONGEST_TOKEN else 0 for side in sides)


def _cut(pairs: Iterable[RawPair]) -> Iterator[Chunk]:
    """Yield numbered chunks of successive pairs."""
    pairs, first = iter(pairs), 1
    while chunk := list(islice(pairs, CHUNK)):
        yield Chunk(first, chunk)
        first += len(chunk)


def copying(
    pairs: Iterable[RawPair], files: Sequence[IO[str]], plain: Callable[[str, str], str]
) -> Iterator[RawPair]:
    """Yield the pairs, and also write them as plain text."""
    for pair in pairs:
        for text, file in zip(pair, files, strict=True):
            file.write(f"{plain(text or '', file.name.rpartition('.')[2])}\n")
        yield pair


def deal(pairs: Iterable[tuple[str, str]], turns: Sequence[Sequence[IO[str]]]) -> list[list[int]]:
    """Deal the pairs out to pairs of files in turn; return how many pairs and tokens each got."""
    counts = [[0, 0, 0] for _ in turns]
    for number, pair in enumerate(pairs):
        turn = number % len(turns)
        for file, line in zip(turns[turn], pair, strict=True):
            file.write(f"{line}\n")
        for place, amount in enumerate((1, *map(count, pair))):
            counts[turn][place] += amount
    return counts


def line_pairs(source: Path, target: Path) -> Iterator[tuple[str, str]]:
    """Yield the lines of two files in pairs; this package wrote the files."""
    with (
        source.open(encoding="utf-8", newline="\n") as first,
        target.open(encoding="utf-8", newline="\n") as second,
    ):
        for pair in zip(first, second, strict=True):
            yield pair[0].rstrip("\n"), pair[1].rstrip("\n")
