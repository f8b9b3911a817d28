"""Find the sentences of a test set that occur in training text, exactly or nearly.

A score on sentences of the training text says little about other sentences. A *skeleton* is a
sentence with none, one or two of its words left out. Sentences that share a skeleton are nearly
equal (:mod:`fairseq_ext.corpora.near_duplicates`). The training text is read in chunks, so memory
does not grow with its length.
"""

import itertools
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from fairseq_ext.corpora.command_lines import ContaminationOptions
from fairseq_ext.corpora.near_duplicates import hash_words, normalized, skeletons
from fairseq_ext.text.bleu_tokenizers import is_spaceless
from fairseq_ext.text.reading import lines
from fairseq_ext.utils.errors import DataError
from fairseq_ext.utils.files import atomic_write

CHUNK = 100_000  # training sentences at a time; some 200 MB
FILTER_BITS = 26  # first bits of a fingerprint that are looked up before the search; 64 MB
LONGEST = 100
"""Most words of a sentence for which the search leaves out every pair of words in turn."""
MOST_PAIRS = 1_000_000  # pairs to collect before they are compared; some 200 MB
EXACT, NEAR = "exact", "near"
SPACELESS = (
    " The text has no spaces between words, so that few sentences that differ by a word or two are "
    "noticed."
)


@dataclass(frozen=True, order=True)
class Match:
    """A test sentence that occurs in the training text, exactly or nearly, and where.

    Matches of the same sentence sort from best to worst: exact before near, then by the line.
    """

    sentence: int  # number of the test sentence, from 0
    kind: str  # `exact` if equal up to case and punctuation, else `near`
    line: int  # number of the first training sentence that matches in this way, from 0


def find(sentences: Sequence[str], training: Iterable[str]) -> list[Match]:
    """Return the best match of each of the test ``sentences`` that occurs in the training text."""
    hashes = hash_words(sentences)
    empty = (np.empty(0, np.uint64), np.empty(0, np.int64))
    columns = zip(empty, *skeletons(hashes, LONGEST), strict=True)
    values, rows = (np.concatenate(column) for column in columns)
    has_words = hashes.lengths[rows] > 0  # an empty line is no sentence
    values, rows = values[has_words], rows[has_words]
    order = np.argsort(values, kind="stable")
    values, rows = values[order], rows[order]
    shift = np.uint64(64 - FILTER_BITS)
    may_match = np.zeros(1 << FILTER_BITS, bool)  # indexed by a fingerprint's first bits
    may_match[values >> shift] = True
    matches: dict[int, Match] = {}
    iterator, before = iter(training), 0
    while chunk := list(itertools.islice(iterator, CHUNK)):
        shared = set[tuple[int, int]]()  # numbers of a test sentence and of a sentence in the chunk
        for fingerprints, places in skeletons(hash_words(chunk), LONGEST):
            hits = may_match[fingerprints >> shift]
            places, fingerprints = places[hits], fingerprints[hits]
            low, high = (np.searchsorted(values, fingerprints, side) for side in ("left", "right"))
            for hit in np.flatnonzero(low < high).tolist():
                shared |= {(row, int(places[hit])) for row in rows[low[hit] : high[hit]].tolist()}
                if len(shared) > MOST_PAIRS:
                    _compare(shared, sentences, chunk, before, matches)
                    shared.clear()
        _compare(shared, sentences, chunk, before, matches)
        before += len(chunk)
    return sorted(matches.values())


def _compare(
    candidates: Iterable[tuple[int, int]],
    sentences: Sequence[str],
    chunk: Sequence[str],
    before: int,
    matches: dict[int, Match],
) -> None:
    """Compare pairs of sentences, and keep the best match of each test sentence in ``matches``.

    Each of the ``candidates`` is the number of a test sentence and the number of a sentence in
    ``chunk`` with the same skeleton. ``before`` training sentences come before the chunk.
    """
    for row, place in candidates:
        former = matches.get(row)
        if former is not None and former < Match(row, EXACT, before + place):
            continue  # even an exact match would be no better
        equal = normalized(sentences[row]).split() == normalized(chunk[place]).split()
        match = Match(row, EXACT if equal else NEAR, before + place)
        matches[row] = match if former is None else min(former, match)


def texts(paths: Iterable[Path]) -> Iterator[str]:
    """Yield the lines of several files, one file after the other; refuse an empty file."""
    for path in paths:
        is_empty = True
        for _, line in lines(path):
            yield line
            is_empty = False
        if is_empty:
            raise DataError(f"{path} is empty; it needs at least one line.")


def run(options: ContaminationOptions) -> str:
    """Find the test sentences in the training text, and write them if asked; return a summary."""
    sentences = list(texts([options.test]))
    matches = find(sentences, texts(options.training))
    if options.output is not None:
        with atomic_write(options.output) as file:
            for match in matches:
                record = {**asdict(match), "text": sentences[match.sentence]}
                file.write(f"{json.dumps(record, ensure_ascii=False)}\n")
    return summary(matches, len(sentences), sentences)


def summary(matches: Iterable[Match], total: int, sentences: Sequence[str]) -> str:
    """Return a line about the ``matches`` of ``total`` test sentences, such as ``sentences``."""
    counts = Counter(match.kind for match in matches)
    return (
        f"{total:,} test sentences: the training text has {counts[EXACT]:,} of them, "
        f"ignoring case and punctuation, and {counts[NEAR]:,} more that differ by a word or two."
        f"{SPACELESS if is_spaceless(sentences) else ''}"
    )
