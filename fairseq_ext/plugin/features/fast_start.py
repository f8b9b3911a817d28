"""Start an epoch over millions of sentence pairs faster, in less memory, with the same batches."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_ext.plugin.patching import around

PAIRS = "fairseq.data.language_pair_dataset:LanguagePairDataset"
LONGEST = (1 << 16) - 1  # greatest length in tokens that fits in a sort key of 16 bits


@around("fairseq.data.indexed_dataset:_warmup_mmap_file", patch="fast start on large corpora")
def read_ahead(original: Callable, path: str) -> None:
    """Let the system cache a data file in the background, without waiting for it.

    Problem: fairseq stores the lengths of sentences twice, and sorts them twice as 32-bit numbers.
    Before it starts, fairseq reads all data once, only to have the system cache it.
    """
    with Path(path).open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)


@around(f"{PAIRS}.__init__", patch="fast start on large corpora")
def keep_sizes_once(original: Callable, self: Any, *args: Any, **kwargs: Any) -> None:
    """Build a pair dataset whose ``src_sizes`` and ``tgt_sizes`` are views of its ``sizes``."""
    original(self, *args, **kwargs)
    if self.tgt_sizes is not None and self.buckets is None:
        self.src_sizes, self.tgt_sizes = self.sizes.T


@around(f"{PAIRS}.ordered_indices", patch="fast start on large corpora")
def order_by_radix(original: Callable, self: Any) -> np.ndarray:
    """Return the indices of the sentences, ordered by source length, then by target length.

    The order is exactly that of fairseq. Lengths are sorted as 16-bit integers, for which numpy
    uses radix sort. If ``--num-batch-buckets`` is set, or a sentence is longer than :data:`LONGEST`
    tokens, call fairseq's method instead.
    """
    sizes = [side for side in (self.tgt_sizes, self.src_sizes) if side is not None]
    longest = max(side.max(initial=0) for side in sizes)
    if self.buckets is not None or longest > LONGEST:
        return original(self)
    count = len(self.src_sizes)
    kind = np.int32 if count <= np.iinfo(np.int32).max else np.int64  # for less memory
    order: np.ndarray = np.arange(count, dtype=kind)
    if self.shuffle:
        np.random.shuffle(order)  # draws the same numbers as fairseq's np.random.permutation
    for lengths in sizes:
        order = order[np.argsort(lengths[order].astype(np.uint16), kind="stable")]
    return order.astype(np.int64)
