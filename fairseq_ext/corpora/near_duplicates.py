"""Groups of near-duplicate sentence pairs, so that a split can hold out whole groups.

“Tom bought a red car yesterday.” in the training text gives away most of “Mary bought a red car
yesterday.” in the test set. A test is fair only if such sentences are all in the same split.

**Near-duplicates** are sentences that differ in few words, after case and punctuation are dropped:

- up to 4 words: equal sentences only;
- 5 words and more (:data:`ONE_WORD`): one word inserted, left out or replaced;
- 9 words and more (:data:`TWO_WORDS`): up to two such changes, next to each other or apart.

Very short sentences must be equal, because a chain of one-word changes (“I run.”, “I ran.”, “Tom
ran.” …) joins nearly all of them. If sentences of 4 words could differ in a word, too, the largest
group of Tatoeba Spanish–English would grow from 5 to 19 % of the corpus. Two pairs are in one group
if their sources or their targets are near-duplicates, or if a chain of such pairs joins them.

**Method.** A skeleton is a sentence with none, one or two of its words left out. Near-duplicates
share a skeleton. Each skeleton has a 64-bit hash, its fingerprint. Sorting the fingerprints brings
equal ones together, so sentences need not be compared in pairs. Two pairs are linked if their
sources, or their targets, share a fingerprint. :func:`join_groups` joins linked pairs into groups.
A pair is identified by its *row*, its number in the corpus, and a group by the smallest row of its
pairs.

**Memory.** The fingerprints are divided into ranges of at most about :data:`RANGE_SKELETONS`, and
:func:`links` searches one range at a time.

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
RANGE_SKELETONS = 1 << 24  # skeletons compared at a time; 1 GB at most while they are sorted
BATCH = 1 << 18  # skeletons made at a time
BASE = 0x9E3779B97F4A7C15  # the variable of the polynomial whose coefficients are word hashes
INVERSE, INVERSE_SQUARED = (np.uint64(pow(BASE, -power, 1 << 64)) for power in (1, 2))
LARGEST_HELD_OUT = 20  # pairs in the largest group that a held-out set may contain

_LETTERS = Spaced("PSZC")  # without M, so combining marks stay


def normalized(sentence: str) -> str:
    """Reduce a sentence to its words without case; a sentence of punctuation only is unchanged."""
    return " ".join(sentence.casefold().translate(_LETTERS).split()) or sentence


class WordHashes(NamedTuple):
    """The hashes of the words of N sentences, one sentence after another."""

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
    """Return the places of the words that each skeleton of a sentence leaves out, ``[2, K]``.

    A sentence of ``length`` words has K skeletons, a column for each. The first leaves out no word.
    From :data:`ONE_WORD` words on, further skeletons leave out one word each. From
    :data:`TWO_WORDS` words on, others leave out a pair of words each; in sentences of more than
    ``longest`` words, only pairs of neighbours. A place beyond the end stands for no word.
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
    """Yield the fingerprints of the skeletons of all sentences, in batches.

    A batch of n skeletons is two arrays ``[n]``: the fingerprints, and the numbers of their
    sentences in ``hashes``. :func:`left_out_places` explains ``longest``.

    A fingerprint is the sum of the hashes of the skeleton's words, each multiplied by
    :data:`BASE` to the power of the word's place in the skeleton; :func:`mixed` then spreads the
    sum. To save time, the sum is made of three parts: the words before, between and after the two
    left-out words. Prefix sums over the whole sentence give these parts, with the places that the
    words have in the sentence. The words between are one place further left in the skeleton, so
    their part is divided by the base. The words after are two places further left, so their part is
    divided by the square of the base.
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
    """Spread 64-bit numbers evenly, one-to-one, by the last steps of the hash MurmurHash3."""
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        values = (values ^ (values >> np.uint64(33))) * np.uint64(factor)
    return values ^ (values >> np.uint64(33))


def range_count(lengths: np.ndarray) -> int:
    """Return the number of ranges into which the fingerprints are divided.

    A range has at most about :data:`RANGE_SKELETONS` fingerprints. ``lengths`` ``[N]`` has the
    number of words of each of N sentences.
    """
    sizes, counts = np.unique(lengths, return_counts=True)
    skeleton_counts = [left_out_places(size).shape[1] for size in sizes.tolist()]
    return max(1, -(-int(counts @ np.array(skeleton_counts, np.int64)) // RANGE_SKELETONS))


def in_range(values: np.ndarray, number: int, count: int) -> np.ndarray:
    """Return a mask of fingerprints ``values``: which are in range ``number`` of ``count``.

    The ranges are equal, and numbered from 0.
    """
    first, end = ((edge << 64) // count for edge in (number, number + 1))
    return (values >= np.uint64(first)) & (values <= np.uint64(end - 1))


def links(hashes: WordHashes, number: int, count: int) -> np.ndarray:
    """Link sentences that share a skeleton whose fingerprint is in range ``number`` of ``count``.

    ``hashes`` has the sentences of one side of the corpus. Return n links ``[2, n]``: each column
    has the numbers of two sentences. All sentences with the same skeleton are linked in a chain.
    """
    prints, rows = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
    for values, places in skeletons(hashes):
        inside = in_range(values, number, count)
        prints.append(values[inside])
        rows.append(places[inside])
    values, places = np.concatenate(prints), np.concatenate(rows)
    order = np.lexsort((places, values))
    values, places = values[order], places[order]
    linked = (values[1:] == values[:-1]) & (places[1:] != places[:-1])
    return np.unique(np.stack([places[:-1], places[1:]])[:, linked], axis=1)


def join_groups(groups: np.ndarray, linked_rows: np.ndarray) -> None:
    """Join the groups of linked sentence pairs, in place.

    ``groups`` ``[N]`` has the group of each of N pairs: the smallest number of a pair in the group.
    Each column of ``linked_rows`` ``[2, n]`` has the numbers of two linked pairs.
    """
    while len(unequal := np.flatnonzero(np.not_equal(*groups[linked_rows]))):
        low, high = np.sort(groups[linked_rows[:, unequal]], axis=0)
        np.minimum.at(groups, high, low)
        while (groups != (roots := groups[groups])).any():
            groups[:] = roots


def group_sides(source: WordHashes, target: WordHashes) -> np.ndarray:
    """Group the sentence pairs whose sources or targets are near-duplicates.

    ``source`` and ``target`` have the two sides of N pairs. Return the group of each pair, ``[N]``:
    the number of the group's first pair.
    """
    groups = np.arange(len(source.ends))
    for hashes in (source, target):
        count = range_count(hashes.lengths)
        for number in range(count):
            join_groups(groups, links(hashes, number, count))
    return groups


def group_pairs(pairs: Sequence[tuple[str, str]]) -> np.ndarray:
    """Return the group of each of N sentence pairs, ``[N]``, like :func:`group_sides`."""
    return group_sides(*(hash_words(pair[side] for pair in pairs) for side in (0, 1)))


def draw_groups(
    groups: np.ndarray, size: int, salt: str, exclude: np.ndarray | None = None
) -> np.ndarray:
    """Draw groups that have ``size`` pairs in all; return a mask ``[N]`` of these pairs.

    ``groups`` ``[N]`` has the group of each of N pairs, as a number. The groups are tried in an
    order that depends on ``salt``. A group is left out in these cases, so fewer pairs may be drawn:

    - it has more pairs than are still needed;
    - it has more than :data:`LARGEST_HELD_OUT` pairs, because nearly equal sentences would make up
      much of the set;
    - ``exclude`` ``[N]`` is True for one of its pairs, such as a pair of another held-out set.
    """
    numbers, counts = np.unique(groups, return_counts=True)
    usable = counts <= LARGEST_HELD_OUT
    if exclude is not None:
        usable &= ~np.isin(numbers, groups[exclude])
    numbers, counts = numbers[usable], counts[usable]
    keys = [hashlib.blake2b(f"{salt} {row}".encode(), digest_size=8).digest() for row in numbers]
    drawn, left = list[int](), size
    for _, number, count in sorted(zip(keys, numbers.tolist(), counts.tolist(), strict=True)):
        if count <= left:
            drawn.append(number)
            left -= count
        if not left:
            break
    return np.isin(groups, drawn)
