"""Fingerprints of sentences and pairs: 16 bytes each, sorted in files, merged by ranges.

A fingerprint is the first half of a SHA-256 hash. Those of each part of a corpus lie sorted in a
file, so that a range of all parts together is read without reading the rest: the ranges are the
partitions in which a corpus of any size is compared with itself, a little at a time.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from fairseq_ext.utils.files import atomic_write

BYTES = 16
KIND = np.dtype(f"S{BYTES}")  # compares like bytes; zeros at its end are dropped on reading alone
SPACE = 1 << 8 * BYTES


class _Letters(dict):
    """For ``str.translate``: punctuation, symbols and spaces become a space."""

    def __missing__(self, code: int) -> int:
        # P punctuation, S symbols, Z spaces, C controls; marks (M) stay, Indic vowels are such.
        self[code] = ord(" ") if unicodedata.category(chr(code))[0] in "PSZC" else code
        return self[code]


_LETTERS = _Letters()


def normalized(sentence: str) -> str:
    """Reduce a sentence to its letters and digits, without case and punctuation, for comparison."""
    return " ".join(sentence.casefold().translate(_LETTERS).split()) or sentence


def fingerprint(salt: str, text: str) -> bytes:
    """The fingerprint of a text; another salt gives another order of all texts."""
    return hashlib.sha256(f"{salt}\n{text}".encode()).digest()[:BYTES]


def as_array(joined: bytes | bytearray) -> np.ndarray:
    """Fingerprints that follow each other, as an array ``[N]``."""
    return np.frombuffer(bytes(joined), KIND)


def save(path: Path, array: np.ndarray) -> None:
    """Write an array, whole or not at all."""
    with atomic_write(path, "wb") as file:
        np.save(file, array)


def load(path: Path) -> np.ndarray:
    """An array of :func:`save`, of which only what is used is read."""
    return np.load(path, mmap_mode="r", allow_pickle=False)


def ranges(partitions: int) -> Iterator[tuple[bytes, bytes | None]]:
    """First fingerprint of each partition, and that of the next one, None after the last."""
    starts = [(SPACE * number // partitions).to_bytes(BYTES, "big") for number in range(partitions)]
    return zip(starts, [*starts[1:], None], strict=True)


def within(ordered: np.ndarray, first: bytes, end: bytes | None) -> slice:
    """Where the fingerprints of a range stand among sorted ones."""
    low = np.searchsorted(ordered, np.array(first, KIND))
    high = len(ordered) if end is None else np.searchsorted(ordered, np.array(end, KIND))
    return slice(int(low), int(high))


def where(ordered: np.ndarray, queries: np.ndarray) -> np.ndarray:
    """Places at which one of the ``wanted`` stands among sorted fingerprints."""
    low, high = (np.searchsorted(ordered, queries, side) for side in ("left", "right"))
    spans = [np.arange(a, b) for a, b in zip(low, high, strict=True) if a < b]
    return np.concatenate(spans) if spans else np.empty(0, np.int64)


def distinct(pieces: Iterable[np.ndarray]) -> int:
    """How many different fingerprints some arrays have together."""
    return len(np.unique(np.concatenate([np.empty(0, KIND), *pieces])))
