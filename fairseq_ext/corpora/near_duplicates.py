"""Groups of near-duplicate sentence pairs, so that a split can hold out whole groups.

“Tom bought a red car yesterday.” in the training text gives away most of “Mary bought a red car
yesterday.” in the test set. A test is fair only if such sentences are all in the same split.

**Near-duplicates** are sentences that become equal when a word or two are left out of each
(:data:`ONE_WORD`, :data:`TWO_WORDS`), after case and punctuation are dropped:

- up to 4 words: equal sentences only;
- 5 to 8 words: one word inserted, left out or replaced;
- 9 words and more: up to two such changes, next to each other or apart.

Very short sentences must be equal, because a chain of one-word changes (“I run.”, “I
ran.”, “Tom ran.”, “Tom sang.” …) joins nearly all of them: if sentences of 4 words could differ in
a word, too, the largest group of Tatoeba Spanish–English would grow from 5 to 19 % of the corpus.
Two pairs are in one group if their sources or their targets are near-duplicates, or if a chain of
such pairs joins them.

**Method.** The skeletons of a sentence are the sentence itself, and the sentence without one word
or without two. Near-duplicates share a skeleton, so sorting 64-bit fingerprints of skeletons
finds them all without comparing all pairs. Equal fingerprints link two rows, where a row is the
number of a sentence pair, and :func:`join_groups` turns links into groups. A group's number is its
smallest row, so it depends neither on the order of the links nor on the process that found them.

**Memory.** :func:`links` works on one range of fingerprints at a time, at most about
:data:`RANGE_SKELETONS` of them, and :func:`join_groups` takes the links of all ranges in any order.

    pairs = [("Hola.", "Hello."), …]
    groups = group_pairs(pairs)                       # a group's number for each pair
    test = draw_groups(groups, 1500, salt="test")     # True where a pair is held out
"""

import hashlib
import itertools
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from fairseq_ext.text.cleaning import Spaced

ONE_WORD, TWO_WORDS = 5, 9
"""Fewest words of sentences that may differ in one word, and in two words."""
LONGEST = 24
"""Most words of a sentence for which skeletons leave out each pair of words. The number of pairs
grows with the square of the length, so longer sentences lose only pairs of neighbours."""
RANGE_SKELETONS = 1 << 24  # skeletons compared at a time; some 500 MB while they are sorted
BATCH = 1 << 18  # skeletons made at a time
BASE = 0x9E3779B97F4A7C15  # the variable of the polynomial whose coefficients are word hashes
INVERSE, INVERSE_SQUARED = (np.uint64(pow(BASE, -power, 1 << 64)) for power in (1, 2))
LARGEST_HELD_OUT = 20  # pairs in the largest group that a held-out set may contain

_LETTERS = Spaced("PSZC")  # without M, so combining marks stay


def normalized(sentence: str) -> str:
    """Reduce a sentence to its letters and digits, without case and punctuation, for comparison."""
    return " ".join(sentence.casefold().translate(_LETTERS).split()) or sentence


class WordHashes(NamedTuple):
    """The hashes of all words of N sentences in one array, and where each sentence ends in it."""

    words: np.ndarray  # `[W]` 64-bit hashes of all words
    ends: np.ndarray  # `[N]` end of each sentence in `words`

    @property
    def lengths(self) -> np.ndarray:
        """The number of words in each sentence, ``[N]``."""
        return np.diff(self.ends, prepend=0)


def hash_words(sentences: Iterable[str]) -> WordHashes:
    """Hash each word of the sentences, without case and punctuation (:func:`normalized`)."""
    cache: dict[str, int] = {}
    words, ends = array("Q"), array("q")  # a list would take several times the memory
    for sentence in sentences:
        for word in normalized(sentence).split():
            if (value := cache.get(word)) is None:
                digest = hashlib.blake2b(word.encode(), digest_size=8).digest()
                value = cache[word] = int.from_bytes(digest, "big")
            words.append(value)
        ends.append(len(words))
    return WordHashes(np.array(words), np.array(ends))


def left_out_places(length: int, longest: int = LONGEST) -> np.ndarray:
    """Return which words the K skeletons of a sentence leave out, as positions ``[2, K]``.

    The sentence has ``length`` words. If ``length`` is above ``longest``, two words are left out
    together only if they are neighbours. A position after the last word leaves out nothing, so a
    skeleton may lack one word only, or none: the first skeleton is the complete sentence.
    """
    places = [(length, length + 1)]
    if length >= ONE_WORD:
        places += [(place, length) for place in range(length)]
    if length >= TWO_WORDS:
        if length <= longest:
            places += itertools.combinations(range(length), 2)
        else:
            places += itertools.pairwise(range(length))
    return np.array(places).T


def skeletons(
    hashes: WordHashes, longest: int = LONGEST
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the skeletons of all sentences in batches: fingerprints and sentence numbers, ``[n]``.

    A skeleton is a sentence without one or two of its words, or complete. :func:`left_out_places`
    chooses these words, and explains ``longest``. The fingerprint is the sum of each word's hash
    times a power of :data:`BASE`, which depends on the word's place. Prefix sums give the sums of
    the words before, between and after the two left-out words. A division by the base for each
    left-out word then moves the later words to their new places.
    """
    lengths = hashes.lengths
    for length in np.unique(lengths).tolist():
        first, second = left_out_places(length, longest)
        powers = np.cumprod(np.full(length, BASE, np.uint64), dtype=np.uint64)
        # A short sentence must not match a skeleton of a longer one, so 1 is added to its value.
        apart = np.uint64(length < ONE_WORD)
        rows = np.flatnonzero(lengths == length)
        size = max(1, BATCH // len(first))
        for start in range(0, len(rows), size):
            batch = rows[start : start + size]
            places = (hashes.ends[batch] - length)[:, None] + np.arange(length)
            sums = np.zeros((len(batch), length + 3), np.uint64)
            np.cumsum(hashes.words[places] * powers, axis=1, out=sums[:, 1 : length + 1])
            sums[:, length + 1 :] = sums[:, length, None]
            values = sums[:, first] + apart
            values += (sums[:, second] - sums[:, first + 1]) * INVERSE
            values += (sums[:, -1:] - sums[:, second + 1]) * INVERSE_SQUARED
            yield mixed(values.ravel()), np.repeat(batch, len(first))


def mixed(values: np.ndarray) -> np.ndarray:
    """Spread 64-bit numbers evenly over all ranges, one-to-one (the last steps of MurmurHash3)."""
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        values = (values ^ (values >> np.uint64(33))) * np.uint64(factor)
    return values ^ (values >> np.uint64(33))


def range_count(lengths: np.ndarray) -> int:
    """Return the number of ranges in which :func:`links` searches the fingerprints, one by one.

    ``lengths`` ``[N]`` has the number of words of each sentence. A range has at most about
    :data:`RANGE_SKELETONS` fingerprints.
    """
    sizes, counts = np.unique(lengths, return_counts=True)
    skeleton_counts = [left_out_places(size).shape[1] for size in sizes.tolist()]
    return max(1, -(-int(counts @ np.array(skeleton_counts, np.int64)) // RANGE_SKELETONS))


def in_range(values: np.ndarray, number: int, count: int) -> np.ndarray:
    """Return a mask of the fingerprints that are in the range ``number``, counted from 0.

    The ``count`` ranges divide the 64-bit numbers equally.
    """
    first, end = ((edge << 64) // count for edge in (number, number + 1))
    return (values >= np.uint64(first)) & (values <= np.uint64(end - 1))


def links(hashes: WordHashes, number: int, count: int) -> np.ndarray:
    """Find sentences that share a skeleton whose fingerprint is in range ``number`` of ``count``.

    ``hashes`` is one side of the corpus. Return pairs of rows ``[2, n]``: the first sentence with a
    skeleton, and another sentence with the same skeleton.
    """
    prints, rows = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
    for values, places in skeletons(hashes):
        inside = in_range(values, number, count)
        prints.append(values[inside])
        rows.append(places[inside])
    values, places = np.concatenate(prints), np.concatenate(rows)
    order = np.lexsort((places, values))
    values, places = values[order], places[order]
    repeats = np.zeros(len(values), bool)
    repeats[1:] = values[1:] == values[:-1]
    heads = np.maximum.accumulate(np.where(repeats, 0, np.arange(len(values))))
    rows_joined = np.stack([places[heads][repeats], places[repeats]])
    return np.unique(rows_joined[:, rows_joined[0] != rows_joined[1]], axis=1)


def join_groups(groups: np.ndarray, pairs: np.ndarray) -> None:
    """Join the groups of linked sentence pairs, in place.

    Each column of ``pairs`` ``[2, n]`` links two sentence pairs by their numbers (rows). ``groups``
    ``[N]`` has the group of each sentence pair: the smallest number in that group.
    """
    while len(unequal := np.flatnonzero(np.not_equal(*groups[pairs]))):
        low, high = np.sort(groups[pairs[:, unequal]], axis=0)
        np.minimum.at(groups, high, low)
        while (groups != (roots := groups[groups])).any():
            groups[:] = roots


def group_sides(source: WordHashes, target: WordHashes) -> np.ndarray:
    """Return each sentence pair's group ``[N]``: the number of the group's first pair.

    Fingerprints are searched in ranges, one after the other, as many as memory requires. The number
    of ranges does not change the result.
    """
    groups = np.arange(len(source.ends))
    for hashes in (source, target):
        count = range_count(hashes.lengths)
        for number in range(count):
            join_groups(groups, links(hashes, number, count))
    return groups


def group_pairs(pairs: Sequence[tuple[str, str]]) -> np.ndarray:
    """Hash the words of sentence pairs, and return each pair's group like :func:`group_sides`."""
    return group_sides(*(hash_words(pair[side] for pair in pairs) for side in (0, 1)))


def draw_groups(
    groups: np.ndarray, size: int, salt: str, exclude: np.ndarray | None = None
) -> np.ndarray:
    """Draw groups until they have ``size`` pairs; return a mask ``[N]``, True for their pairs.

    The groups are in the order of a hash of ``salt`` and their numbers. A group that would exceed
    the size is skipped, so the size is exact if groups of one pair are left. Groups of more than
    :data:`LARGEST_HELD_OUT` pairs are never drawn, because nearly equal sentences would make up
    much of the set. ``exclude`` is True for pairs whose groups must not be drawn, such as the pairs
    of another held-out set.
    """
    numbers, counts = np.unique(groups, return_counts=True)
    usable = counts <= LARGEST_HELD_OUT
    if exclude is not None:
        usable &= ~np.isin(numbers, groups[exclude])
    numbers, counts = numbers[usable], counts[usable]
    keys = [hashlib.blake2b(f"{salt} {row}".encode(), digest_size=8).digest() for row in numbers]
    drawn: list[int] = []
    left = size
    for place in sorted(range(len(keys)), key=keys.__getitem__):
        if counts[place] <= left:
            drawn.append(int(numbers[place]))
            left -= int(counts[place])
        if not left:
            break
    return np.isin(groups, drawn)
