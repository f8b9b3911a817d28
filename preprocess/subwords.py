"""Byte-pair encoding of Sennrich et al. (2016), learnt and applied through subword-nmt."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from catalogue import Limits
from tokens import KEPT, Lines, Tally, count, why_dropped

REMEMBERED = 300_000  # words whose pieces a process keeps, some 100 MB


def learn(texts: Sequence[Path], codes: Path, merges: int) -> None:
    """Write at most that many merges, learnt from all texts together.

    They are those of ``subword-nmt learn-bpe`` on the texts one after the other; the words are
    counted here, so that memory holds each only once.

    Raises:
        ValueError: the texts have no word of two letters.
    """
    from subword_nmt.learn_bpe import learn_bpe

    words: Counter[str] = Counter()
    for path in texts:
        with path.open(encoding="utf-8", newline="\n") as file:
            for line in file:
                words.update(line.rstrip("\n").split(" "))
    del words[""]
    if max(map(len, words), default=0) < 2:
        raise ValueError("there are no words to learn a byte-pair encoding from.")
    lines = (f"{word} {number}" for word, number in words.items())
    with codes.open("w", encoding="utf-8", newline="\n") as file:
        learn_bpe(lines, file, merges, is_dict=True)


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


class _Splitter:
    """Pieces of a line, remembering those of recent words."""

    def __init__(self, codes: Path) -> None:
        from subword_nmt.apply_bpe import BPE

        with codes.open(encoding="utf-8") as file:
            self._bpe = BPE(file)
        self._known: dict[str, str] = {}

    def __call__(self, line: str) -> str:
        known = self._known
        return " ".join([known.get(word) or self._pieces(word) for word in line.split(" ")])

    def _pieces(self, word: str) -> str:
        if len(self._known) >= REMEMBERED:
            self._known.clear()
        self._bpe.cache.clear()
        pieces = self._known[word] = " ".join(self._bpe.segment_tokens([word]))
        return pieces


@functools.lru_cache(maxsize=1)
def _splitter(codes: Path, version: str) -> _Splitter:
    return _Splitter(codes)


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
