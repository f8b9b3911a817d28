"""Start an epoch over millions of sentence pairs sooner and in less memory, with equal batches."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_ext.data_folder import ordering
from fairseq_ext.plugin.table import Patch, around

PAIRS = "fairseq.data.language_pair_dataset:LanguagePairDataset"
PART = 1 << 18
OPEN = 3
"""Number of batches at a part's end to make again: one cut to a multiple of sentences, the rest,
and the sentences that fairseq drops and the row "last batch" adds."""


@around("fairseq.data.indexed_dataset:_warmup_mmap_file")
def read_ahead(original: Callable, path: str) -> None:
    """Let the system read a file in the background; fairseq would read it and discard the data."""
    if not hasattr(os, "posix_fadvise"):
        return original(path)
    with Path(path).open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)


@around(f"{PAIRS}.__init__")
def keep_sizes_once(original: Callable, self: Any, *args: Any, **kwargs: Any) -> None:
    """Make ``src_sizes`` and ``tgt_sizes`` views of ``sizes`` instead of copies."""
    original(self, *args, **kwargs)
    if self.tgt_sizes is not None and self.buckets is None:
        self.src_sizes, self.tgt_sizes = self.sizes.T


@around(f"{PAIRS}.ordered_indices")
def order_by_counting(original: Callable, self: Any) -> np.ndarray:
    sizes = [side for side in (self.tgt_sizes, self.src_sizes) if side is not None]
    longest = max(side.max(initial=0) for side in sizes)
    if self.buckets is not None or longest > ordering.LONGEST:
        return original(self)
    return ordering.random_by_length(sizes, self.shuffle)


@around(f"{PAIRS}.batch_by_size")
def batch_in_parts(
    original: Callable, self: Any, indices: Any, *args: Any, **kwargs: Any
) -> list[Any]:
    """Make batches of :data:`PART` sentences at a time, instead of all at once.

    A batch depends only on where it starts and on the sentences that follow. So the batches of a
    part equal those of the whole, except the last few, which may also need the next part.
    """
    if self.buckets is not None:
        return original(self, indices, *args, **kwargs)
    batches: list[Any] = []
    start = 0
    while len(indices) - start > PART:
        part = original(self, indices[start : start + PART], *args, **kwargs)
        if len(part) <= OPEN:  # a batch holds hundreds of thousands of sentences
            break
        batches += part[:-OPEN]
        start += sum(map(len, part[:-OPEN]))
    return batches + original(self, indices[start:], *args, **kwargs)


PATCHES = (
    Patch(
        name="start of large corpora",
        reason="fairseq keeps the lengths of sentences twice, sorts them twice as 32 bits, copies "
        "them as 64 bits, and reads all data without using them",
        layers=(read_ahead, keep_sizes_once, order_by_counting, batch_in_parts),
    ),
)
