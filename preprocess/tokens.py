"""From raw pairs to tokens: normalise, tokenise, clean by length and ratio, lower-case; count."""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from catalogue import Limits
from raw_pairs import RawPair
from textfiles import SPACES

if TYPE_CHECKING:  # imported only by those who tokenise
    from moses import Normaliser, Tokeniser
    from sacremoses import MosesDetokenizer

LONGEST_TOKEN = 1000  # characters; the limit of clean-corpus-n.perl
KEPT = "kept"


@dataclass
class Tally:
    """Pairs, source tokens and target tokens by what became of them."""

    counts: dict[str, list[int]] = field(default_factory=dict)

    def add(self, fate: str, pairs: int, source: int, target: int) -> None:
        """Count so many pairs and tokens: ``kept``, or the reason why they were dropped."""
        entry = self.counts.setdefault(fate, [0, 0, 0])
        for place, number in enumerate((pairs, source, target)):
            entry[place] += number

    def merge(self, other: Tally) -> None:
        """Add all that another one has."""
        for fate, entry in other.counts.items():
            self.add(fate, *entry)

    @property
    def kept(self) -> int:
        """How many pairs are kept."""
        return self.counts.get(KEPT, [0])[0]

    @property
    def read(self) -> int:
        """How many pairs there were."""
        return sum(entry[0] for entry in self.counts.values())


@dataclass(frozen=True)
class Chunk:
    """Some pairs that follow each other; ``first`` is the number of the first, from 1."""

    first: int
    pairs: Sequence[RawPair]


@dataclass(frozen=True)
class Lines:
    """What became of a chunk: two lists of lines, and the count."""

    source: list[str]
    target: list[str]
    tally: Tally


@dataclass(frozen=True)
class Tokenise:
    """What is done with each pair of a text; it can be sent to another process.

    Attributes:
        languages: of source and target, for Moses' rules.
        normalise, tokenise, aggressive, lowercase: as in :class:`catalogue.Corpus`.
        limits: which pairs are kept; None keeps all, and an empty side is an error then.
        straight: write typographic apostrophes ’ as ', which the scripts of the papers do with
            development and test sets.
        name: of the text, for the message of that error.
    """

    languages: tuple[str, str]
    normalise: bool
    tokenise: bool
    aggressive: bool
    lowercase: bool
    limits: Limits | None
    straight: bool
    name: str

    def __call__(self, chunk: Chunk) -> Lines:
        """Tokens of the pairs that are kept.

        Raises:
            ValueError: a pair that may not be dropped has an empty or unreadable side.
        """
        source, target, tally = [], [], Tally()
        for number, pair in enumerate(chunk.pairs, chunk.first):
            if None in pair:
                first = second = ""
                fate = "not UTF-8"
            else:
                first, second = map(self._side, pair, self.languages)
                fate = why_dropped(first, second, self.limits or Limits())
            if fate == KEPT:
                source.append(first.lower() if self.lowercase else first)
                target.append(second.lower() if self.lowercase else second)
            elif self.limits is None:
                raise ValueError(
                    f"{self.name}, sentence {number}: {fate}. Such a set is never shortened; the "
                    "archive is not the official one."
                )
            tally.add(fate, 1, count(first), count(second))
        return Lines(source, target, tally)

    def _side(self, text: str, language: str) -> str:
        if self.straight:
            text = text.replace("’", "'")
        if self.normalise:
            text = printable(_normaliser(language).normalize(text))
        if self.tokenise:
            return _tokeniser(language).tokenize(
                text, aggressive_dash_splits=self.aggressive, return_str=True
            )
        return SPACES.sub(" ", text).strip()


def count(tokens: str) -> int:
    """How many tokens a line of them has."""
    return tokens.count(" ") + 1 if tokens else 0


def why_dropped(source: str, target: str, limits: Limits) -> str:
    """``kept``, or the first reason of ``clean-corpus-n.perl`` to drop the pair."""
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


class _Printable(dict):
    """For ``str.translate``: characters of the Unicode category C (other) become a space."""

    def __missing__(self, code: int) -> int:
        self[code] = ord(" ") if unicodedata.category(chr(code))[0] == "C" else code
        return self[code]


_PRINTABLE = _Printable()


def printable(text: str) -> str:
    """``text`` with controls, format and unassigned characters replaced by spaces."""
    return text if text.isprintable() else text.translate(_PRINTABLE)


def detokenised(tokens: str, language: str) -> str:
    """Text from Moses' tokens, without their XML escapes."""
    return _detokeniser(language).detokenize(tokens.split(" "))


# One of each in every process: building them takes longer than tokenising hundreds of lines.
@functools.lru_cache
def _tokeniser(language: str) -> Tokeniser:
    from moses import Tokeniser

    return Tokeniser(language)


@functools.lru_cache
def _normaliser(language: str) -> Normaliser:
    from moses import Normaliser

    return Normaliser(language)


@functools.lru_cache
def _detokeniser(language: str) -> MosesDetokenizer:
    from sacremoses import MosesDetokenizer

    return MosesDetokenizer(lang=language)
