"""Fingerprints of sentences and pairs: 16 bytes each, sorted in files, merged by ranges.

A fingerprint is the first half of a SHA-256 hash. Each part of a corpus has a file of its sorted
fingerprints, so that one range of them can be read from all parts without reading the rest. Range
by range, a corpus of any size is compared with itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from fairseq_ext.text.cleaning import Spaced
from fairseq_ext.utils.files import atomic_write

BYTES = 16
KIND = np.dtype(f"S{BYTES}")  # compares like bytes; final zeros are lost only when an item is read
SPACE = 1 << 8 * BYTES


_LETTERS = Spaced("PSZC")  # marks (M) are not in the list, so they stay


def normalized(sentence: str) -> str:
    """Reduce a sentence to its letters and digits, without case and punctuation, for comparison."""
    return " ".join(sentence.casefold().translate(_LETTERS).split()) or sentence


def fingerprint(salt: str, text: str) -> bytes:
    """Compute the fingerprint of a text; another salt orders all texts differently."""
    return hashlib.sha256(f"{salt}\n{text}".encode()).digest()[:BYTES]


def as_array(joined: bytes | bytearray) -> np.ndarray:
    """View concatenated fingerprints as an array ``[N]``."""
    return np.frombuffer(bytes(joined), KIND)


def save(path: Path, array: np.ndarray) -> None:
    """Save an array atomically."""
    with atomic_write(path, "wb") as file:
        np.save(file, array)


def load(path: Path) -> np.ndarray:
    """Memory-map an array written by :func:`save`."""
    return np.load(path, mmap_mode="r", allow_pickle=False)


def ranges(partitions: int) -> Iterator[tuple[bytes, bytes | None]]:
    """Yield each range's first fingerprint and the next range's, which is None at the end."""
    starts = [(SPACE * number // partitions).to_bytes(BYTES, "big") for number in range(partitions)]
    return zip(starts, [*starts[1:], None], strict=True)


def within(ordered: np.ndarray, first: bytes, end: bytes | None) -> slice:
    """Find the slice of the sorted fingerprints that lie in a range."""
    low = np.searchsorted(ordered, np.array(first, KIND))
    high = len(ordered) if end is None else np.searchsorted(ordered, np.array(end, KIND))
    return slice(int(low), int(high))


def where(ordered: np.ndarray, queries: np.ndarray) -> np.ndarray:
    """Find the indices of the fingerprints ``queries`` in a sorted array."""
    low, high = (np.searchsorted(ordered, queries, side) for side in ("left", "right"))
    spans = [np.arange(a, b) for a, b in zip(low, high, strict=True) if a < b]
    return np.concatenate(spans) if spans else np.empty(0, np.int64)


def distinct(pieces: Iterable[np.ndarray]) -> int:
    """Count the different fingerprints of several arrays."""
    return len(np.unique(np.concatenate([np.empty(0, KIND), *pieces])))
