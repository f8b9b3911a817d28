"""Estimate probable translations of source words by IBM model 1 (numpy only).

The model is from Brown, Della Pietra, Della Pietra and Mercer (1993), section 4.2. In a pair of
sentences each target word f comes from one source word e, or from the empty word, with probability
t(f | e). EM estimates these probabilities, starting from equal ones, by two steps in turn:

    p(e | f) = t(f | e) / sum of t(f | e') over the source words e' of the sentence
    t(f | e) = c(f, e) / sum of c(f', e) over all f'; c(f, e) is the sum of p(e | f) over the text

The result is a :class:`Table` of t(f | e) for the pairs of words that occur together in a sentence
pair. If there are too many such pairs, the table holds only the most probable ones.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from fairseq_ext.engine import BEGIN, END, PAD

NEVER = (BEGIN, PAD, END)  # symbols that no translation contains
BLOCK = 1 << 22  # pairs of words processed at a time
MOST = 1 << 25  # most pairs of words to keep, 24 bytes each


class Side(NamedTuple):
    """One side of a parallel text, as token ids.

    ``tokens`` has one sentence after another. ``begins`` has the position of each sentence's first
    token, followed by the number of all tokens. ``vocabulary`` is the number of possible ids.
    """

    tokens: np.ndarray  # each sentence with its `</s>`
    begins: np.ndarray
    vocabulary: int

    def words(self, first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the words of sentences ``first`` to ``last - 1``, and each sentence's word count.

        Words are all tokens but ``</s>``.
        """
        begins = self.begins[first : last + 1]
        tokens = np.asarray(self.tokens[begins[0] : begins[-1]], np.int64)
        is_word = tokens != END
        ends = np.concatenate([[0], np.cumsum(is_word)])[begins - begins[0]]
        return tokens[is_word], np.diff(ends)


class Table(NamedTuple):
    """Pairs of words, each with its probability t(f | e) or, during EM, its count c(f, e).

    The key of a pair is ``e * V + f``, where V is the size of the target vocabulary; keys ascend.
    For the empty word, e is the size of the source vocabulary.
    """

    keys: np.ndarray
    values: np.ndarray


def ibm1(source: Side, target: Side, iterations: int) -> Table:
    """Estimate the probabilities of target words f for source words e by IBM model 1.

    ``source`` and ``target`` are the two sides of the parallel text, and ``iterations`` is the
    number of steps of EM. The table has t(f | e) for at most MOST pairs of words.
    """
    table = _first(source, target)
    for _ in range(iterations - 1):
        counts = np.zeros(len(table.keys))
        for keys, widths in _blocks(source, target):
            places = np.searchsorted(table.keys, keys)
            places[places == len(table.keys)] = 0
            values = np.where(table.keys[places] == keys, table.values[places], 0)
            sums = np.add.reduceat(values, np.cumsum(widths) - widths)
            sums[sums == 0] = 1  # of target words that have no pair in the table
            np.add.at(counts, places, values / np.repeat(sums, widths))
        table = _normalized(Table(table.keys, counts), target.vocabulary)
    return table


def _first(source: Side, target: Side) -> Table:
    """Run the first iteration of EM, from equal probabilities; keep at most MOST pairs."""
    total, waiting = Table(np.empty(0, np.int64), np.empty(0)), []
    for keys, widths in _blocks(source, target):
        pairs, places = np.unique(keys, return_inverse=True)
        shares = np.repeat(1 / widths, widths)
        waiting.append(Table(pairs, np.bincount(places, shares)))
        if sum(len(table.keys) for table in waiting) > max(BLOCK, len(total.keys)):
            total, waiting = _merged([total, *waiting], target.vocabulary), []
    return _normalized(_merged([total, *waiting], target.vocabulary), target.vocabulary)


def _merged(tables: list[Table], vocabulary: int) -> Table:
    """Add up the counts of several tables.

    If the sum has more than MOST pairs of words, keep the MOST / 2 pairs with the largest t(f | e),
    estimated from the sum.
    """
    keys, places = np.unique(np.concatenate([table.keys for table in tables]), return_inverse=True)
    counts = np.bincount(places, np.concatenate([table.values for table in tables]), len(keys))
    if len(keys) > MOST:
        shares = _normalized(Table(keys, counts), vocabulary).values
        best = np.sort(np.argpartition(-shares, MOST // 2)[: MOST // 2])
        keys, counts = keys[best], counts[best]
    return Table(keys, counts)


def _normalized(counts: Table, vocabulary: int) -> Table:
    """Turn counts into probabilities t(f | e); the target has ``vocabulary`` possible words."""
    words = counts.keys // vocabulary
    totals = np.bincount(words, counts.values, 1)
    return Table(counts.keys, counts.values / np.maximum(totals, np.finfo(float).tiny)[words])


def _blocks(source: Side, target: Side) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the pairs of words of the text, in blocks of consecutive sentences.

    Each target word makes a pair with each word of the source sentence, and one with the empty
    word. A block has two arrays: the keys (see :class:`Table`) of its pairs, target word by target
    word, and the number of pairs of each target word.
    """
    sizes = np.diff(source.begins) * np.diff(target.begins)
    ends = np.cumsum(sizes)
    first = 0
    while first < len(sizes):
        before = ends[first - 1] if first else 0
        last = max(first + 1, int(np.searchsorted(ends, before + BLOCK, "right")))
        block = _pairs(source, target, first, last)
        if len(block[0]):
            yield block
        first = last


def _pairs(source: Side, target: Side, first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
    (origins, lengths), (words, counts) = source.words(first, last), target.words(first, last)
    origins = np.insert(origins, np.cumsum(lengths) - lengths, source.vocabulary)
    lengths = lengths + 1  # the empty word is the first of each sentence
    widths = np.repeat(lengths, counts)
    begins = np.repeat(np.cumsum(lengths) - lengths, counts)
    places = np.arange(widths.sum()) - np.repeat(np.cumsum(widths) - widths - begins, widths)
    return origins[places] * target.vocabulary + np.repeat(words, widths), widths


def likely(table: Table, source: Side, target: Side, count: int) -> list[np.ndarray]:
    """Return the ids of each source word's ``count`` most probable target words, best first.

    Fewer ids are returned if ``table`` has fewer target words for a source word. Only the
    vocabulary sizes of ``source`` and ``target`` are used.
    """
    origins, words = np.divmod(table.keys, target.vocabulary)
    usable = (origins < source.vocabulary) & (table.values > 0) & ~np.isin(words, NEVER)
    origins, words, values = origins[usable], words[usable], table.values[usable]
    order = np.lexsort((words, -values, origins))
    origins, words = origins[order], words[order]
    begins = np.searchsorted(origins, np.arange(source.vocabulary + 1))
    return [words[begin : min(end, begin + count)] for begin, end in pairwise(begins)]


def frequent(target: Side, count: int) -> np.ndarray:
    """Return the ids of the (at most) ``count`` most frequent words, most frequent first."""
    counts = np.zeros(target.vocabulary, np.int64)
    for first in range(0, len(target.tokens), BLOCK):
        block = np.asarray(target.tokens[first : first + BLOCK], np.int64)
        counts += np.bincount(block, minlength=target.vocabulary)
    counts[list(NEVER)] = 0
    order = np.argsort(-counts, kind="stable")[:count]
    return order[counts[order] > 0]
