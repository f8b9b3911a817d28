"""Find the sentences of a test set that are in training text, equal or nearly so.

A score on sentences of the training text says little about other sentences. Two sentences are
near-duplicates if they become equal when a word is left out of each (two words in sentences of nine
words or more), as in :mod:`fairseq_ext.corpora.near_duplicates`. They then share a skeleton, which
is what this module compares. Training text of any size can be read: once, in chunks.

**Filter.** Nearly all training sentences are far from the test set, and making their skeletons
would cost hours. If at most ``e`` words may be left out of a sentence of ``m`` words, it shares at
least ``m - 1 - 3 e`` pairs of neighbouring words with its near-duplicate (a word left out of it
breaks two pairs, a word left out of the other breaks one), and ``m - 2 - 5 e`` triples.
Sentences that share fewer pairs and triples with every test sentence are passed over.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from fairseq_ext.corpora.command_lines import ContaminationOptions
from fairseq_ext.corpora.near_duplicates import (
    BASE,
    Reach,
    WordHashes,
    hash_words,
    mixed,
    skeletons,
)
from fairseq_ext.text.reading import lines
from fairseq_ext.utils.errors import DataError
from fairseq_ext.utils.files import atomic_write

CHUNK = 100_000  # training sentences at a time; some 200 MB
FILTER_BITS = 24
REACH = Reach(longest=100)
"""Tries all pairs of words in long sentences, too, because few sentences pass the filter."""
EXACT, NEAR = "exact", "near"


@dataclass(frozen=True)
class Match:
    """A test sentence that is in the training text, and where.

    Attributes:
        sentence: number of the test sentence, from 0.
        kind: ``exact`` if equal up to case and punctuation, else ``near``.
        line: number of the first training sentence of this kind, from 0.
    """

    sentence: int
    kind: str
    line: int


class HashFilter:
    """A set of 64-bit hashes, whose answers may be false positives but never false negatives."""

    def __init__(self, values: np.ndarray) -> None:
        self._bits = np.zeros(1 << FILTER_BITS, bool)
        self._bits[self._places(values)] = True

    def holds(self, values: np.ndarray) -> np.ndarray:
        """Return True for each value that may be in the set."""
        return self._bits[self._places(values)]

    @staticmethod
    def _places(values: np.ndarray) -> np.ndarray:
        return (values >> np.uint64(64 - FILTER_BITS)).astype(np.int64)


class TestSentences:
    """The sentences of a test set, prepared for a search in other text.

    Args:
        sentences: plain text.
    """

    __test__ = False  # keeps pytest from collecting this class because of its name

    def __init__(self, sentences: Sequence[str]) -> None:
        hashes = hash_words(sentences)
        values, rows = _all_skeletons(hashes)
        order = np.argsort(values, kind="stable")
        self._values, self._rows = values[order], rows[order]
        self._skeletons = HashFilter(values)
        self._runs = {size: HashFilter(_runs(hashes.words, size)) for size in (2, 3)}
        self._normal = [_sentence_words(hashes, row) for row in range(len(sentences))]
        self._matches: dict[int, Match] = {}
        self._lines = 0

    def search(self, sentences: Sequence[str]) -> None:
        """Look for the test sentences among the next training sentences."""
        hashes = hash_words(sentences)
        candidates = np.flatnonzero(self._may_match(hashes))
        subset = _subset(hashes, candidates)
        for values, rows in skeletons(subset, REACH):
            hits = self._skeletons.holds(values)
            if not hits.any():
                continue
            low, high = (
                np.searchsorted(self._values, values[hits], side) for side in ("left", "right")
            )
            for row, first, end in zip(
                rows[hits].tolist(), low.tolist(), high.tolist(), strict=True
            ):
                for sentence in self._rows[first:end].tolist():
                    equal = _sentence_words(subset, row) == self._normal[sentence]
                    self._note(sentence, equal, self._lines + int(candidates[row]))
        self._lines += len(sentences)

    def matches(self) -> list[Match]:
        """Return the matches so far, by test sentence; an exact match outranks a near one."""
        return [self._matches[sentence] for sentence in sorted(self._matches)]

    def _note(self, sentence: int, equal: bool, line: int) -> None:
        before = self._matches.get(sentence)
        kind = EXACT if equal else NEAR
        if (
            before is None
            or (kind == EXACT and before.kind == NEAR)
            or (kind == before.kind and line < before.line)
        ):
            self._matches[sentence] = Match(sentence, kind, line)

    def _may_match(self, hashes: WordHashes) -> np.ndarray:
        """Return True for each sentence that shares enough runs of words with test sentences."""
        lengths = hashes.lengths
        edits = (lengths >= REACH.one_word).astype(np.int64)
        edits += lengths >= REACH.two_words
        result = np.ones(len(lengths), bool)
        for size in (2, 3):
            needed = lengths - (size - 1) - (2 * size - 1) * edits
            shared = np.zeros(len(hashes.words) + 1, np.int64)
            hits = self._runs[size].holds(_runs(hashes.words, size))
            np.cumsum(hits, out=shared[1 : len(hits) + 1])
            shared[len(hits) + 1 :] = shared[len(hits)]
            last = np.maximum(hashes.ends - (size - 1), hashes.ends - lengths)
            result &= shared[last] - shared[hashes.ends - lengths] >= needed
        return result


def _runs(words: np.ndarray, size: int) -> np.ndarray:
    """Hash each run of ``size`` words, even across sentence ends: ``[W - size + 1]``."""
    total = max(0, len(words) - size + 1)
    sums = np.zeros(total, np.uint64)
    for place in range(size):
        sums = sums * BASE + words[place : place + total]
    return mixed(sums)


def _all_skeletons(hashes: WordHashes) -> tuple[np.ndarray, np.ndarray]:
    parts = list(skeletons(hashes, REACH))
    empty = (np.empty(0, np.uint64), np.empty(0, np.int64))
    values, rows = zip(empty, *parts, strict=True)
    return np.concatenate(values), np.concatenate(rows)


def _subset(hashes: WordHashes, rows: np.ndarray) -> WordHashes:
    lengths = hashes.lengths[rows]
    ends = np.cumsum(lengths)
    starts = np.repeat(hashes.ends[rows] - lengths - (ends - lengths), lengths)
    return WordHashes(hashes.words[np.arange(len(starts)) + starts], ends)


def _sentence_words(hashes: WordHashes, row: int) -> bytes:
    start = int(hashes.ends[row - 1]) if row else 0
    return hashes.words[start : int(hashes.ends[row])].tobytes()


def find(sentences: Sequence[str], training: Iterable[str]) -> list[Match]:
    """Find the sentences of a test set that are in training text, equal or nearly so.

    Args:
        sentences: the test set, plain text.
        training: any number of sentences in its language, plain text.
    """
    test = TestSentences(sentences)
    iterator = iter(training)
    while chunk := list(itertools.islice(iterator, CHUNK)):
        test.search(chunk)
    return test.matches()


def texts(paths: Iterable[Path]) -> Iterator[str]:
    """Yield the lines of several files, one after the other.

    Raises:
        DataError: a file that cannot be read as text.
    """
    for path in paths:
        for _, line in lines(path):
            yield line


def run(options: ContaminationOptions) -> str:
    """Find the sentences of a test set in training text; return a summary.

    Raises:
        DataError: a file that is empty or cannot be read as text.
    """
    sentences = list(texts([options.test]))
    if not sentences:
        raise DataError(f"`{options.test}` is empty; give the sentences of a test set.")
    matches = find(sentences, texts(options.training))
    counts = Counter(match.kind for match in matches)
    if options.output is not None:
        with atomic_write(options.output) as file:
            for match in matches:
                record = {**asdict(match), "text": sentences[match.sentence]}
                file.write(f"{json.dumps(record, ensure_ascii=False)}\n")
    return (
        f"{len(sentences):,} test sentences: {counts[EXACT]:,} are in the training text but for "
        f"case and punctuation, {counts[NEAR]:,} others but for a word or two."
    )
