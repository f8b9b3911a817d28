"""Pairs of lines, some thousands at a time: text becomes words, words become subwords.

Both are cleaned by length and ratio, and counted.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fairseq_ext.corpora.catalogue import Limits
from fairseq_ext.corpora.raw_pairs import RawPair
from fairseq_ext.text import subwords
from fairseq_ext.text.pipeline import Pipeline
from fairseq_ext.text.subwords import Step
from fairseq_ext.utils.errors import DataError

LONGEST_TOKEN = 1000  # characters; the limit of clean-corpus-n.perl
KEPT = "kept"


@dataclass
class Tally:
    """Counts of pairs, source tokens and target tokens: kept, or dropped for each reason."""

    counts: dict[str, list[int]] = field(default_factory=dict)

    def add(self, fate: str, pairs: int, source: int, target: int) -> None:
        """Count pairs and tokens: ``kept``, or the reason why they were dropped."""
        entry = self.counts.setdefault(fate, [0, 0, 0])
        for place, number in enumerate((pairs, source, target)):
            entry[place] += number

    def merge(self, other: Tally) -> None:
        """Add the counts of another tally."""
        for fate, entry in other.counts.items():
            self.add(fate, *entry)

    @property
    def kept(self) -> int:
        """The number of pairs kept."""
        return self.counts.get(KEPT, [0])[0]

    @property
    def read(self) -> int:
        """The number of pairs read."""
        return sum(entry[0] for entry in self.counts.values())


@dataclass(frozen=True)
class Chunk:
    """Successive pairs of a text; ``first`` is the number of the first one, from 1."""

    first: int
    pairs: Sequence[RawPair]


@dataclass(frozen=True)
class Lines:
    """The lines of both sides that a chunk became, and the counts."""

    source: list[str] = field(default_factory=list)
    target: list[str] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)

    def add(self, fate: str, source: str, target: str) -> None:
        """Count a pair, and keep its lines if that is its fate."""
        if fate == KEPT:
            self.source.append(source)
            self.target.append(target)
        self.tally.add(fate, 1, count(source), count(target))


@dataclass(frozen=True)
class Tokenize:
    """Tokenize the pairs of a chunk; can be sent to another process.

    Attributes:
        pipeline: from text to words.
        limits: which pairs are kept; None keeps all, and an empty side is an error then.
        name: of the text, for the message of that error.
    """

    pipeline: Pipeline
    limits: Limits | None
    name: str

    def __call__(self, chunk: Chunk) -> Lines:
        """Return the tokens of the pairs that are kept.

        Raises:
            DataError: a pair that may not be dropped has an empty or unreadable side.
        """
        lines = Lines()
        to_source, to_target = (
            words(self.pipeline, language) for language in (self.pipeline.src, self.pipeline.tgt)
        )
        for number, (source, target) in enumerate(chunk.pairs, chunk.first):
            first = second = ""
            fate = "not UTF-8"
            if source is not None and target is not None:
                first, second = to_source(source), to_target(target)
                fate = why_dropped(first, second, self.limits or Limits())
            if fate != KEPT and self.limits is None:
                raise DataError(
                    f"{self.name}, sentence {number}: {fate}. Such a set is never shortened; the "
                    "archive is not the official one."
                )
            lines.add(fate, first, second)
        return lines


@functools.lru_cache
def words(pipeline: Pipeline, language: str) -> Callable[[str], str]:
    """Return the function from text to words, built once in every process."""
    return pipeline.words(language)


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
    # Most lines are shorter than the limit, which is seen without splitting them.
    return max(max(map(len, side.split(" "))) if len(side) > LONGEST_TOKEN else 0 for side in sides)


@dataclass(frozen=True)
class Split:
    """Split the words of pairs of lines; it can be sent to another process.

    Attributes:
        kind: of :data:`fairseq_ext.text.subwords.KINDS`.
        codes: file with the merges, or the model.
        limits: which pairs are kept, by their pieces; None keeps all.
        version: of the file, such as its checksum, as a process keeps what it has read.
    """

    kind: str
    codes: Path
    limits: Limits | None
    version: str

    def __call__(self, pairs: Sequence[tuple[str, str]]) -> Lines:
        """Return the pieces of the pairs that are kept."""
        lines, split = Lines(), _splitter(self.kind, self.codes, self.version)
        for pair in pairs:
            first, second = map(split, pair)
            fate = KEPT if self.limits is None else why_dropped(first, second, self.limits)
            lines.add(fate, first, second)
        return lines


@functools.lru_cache(maxsize=1)
def _splitter(kind: str, codes: Path, version: str) -> Step:
    return subwords.load(kind, [codes]).encode
