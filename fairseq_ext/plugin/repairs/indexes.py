"""Binarized data: files above 2 GiB, and the layout of old ones."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fairseq_ext.plugin.table import Layer, Patch, around


def starts(sizes: Sequence[int], itemsize: int) -> np.ndarray:
    """The byte at which each sentence of a ``.bin`` file starts, int64 ``[sentences]``.

    Args:
        sizes: tokens of each sentence.
        itemsize: bytes of a token.
    """
    counts = np.fromiter(sizes, np.int64, len(sizes))
    return (np.cumsum(counts) - counts) * itemsize


@around
def add_in_int64(original: Callable, cls: Any, path: str, dtype: Any) -> Any:
    """Add sizes in int64; fairseq uses int32 where parts of several workers were merged."""
    index = original(cls, path, dtype)
    index._get_pointers = lambda sizes: starts(sizes, np.dtype(dtype).itemsize)
    return index


@around
def not_cached(original: Callable, path: str) -> str | None:
    """Read sentences of the old layout from the file, instead of from a cache that is empty."""
    layout = original(path)
    return "lazy" if layout == "cached" else layout


@around
def nothing_to_prefetch(original: Callable, self: Any, indices: Any) -> None:
    """Let tasks such as online back-translation ask for a cache that need not be filled."""
    return None


@around
def opened_here(original: Callable, self: Any, i: int) -> Any:
    """Open the file in each process: one that workers inherit has one position for all of them."""
    if self.__dict__.get("opened_by") != os.getpid():
        self.data_file, self.opened_by = None, os.getpid()
    return original(self, i)


@around
def close_if_open(original: Callable, self: Any) -> None:
    """Let the destructor of a data set do nothing if its file could not be opened."""
    if getattr(self, "_bin_buffer_mmap", None) is not None:
        original(self)


PATCHES = (
    Patch(
        name="data above 2 GiB",
        kind="repair",
        reason="fairseq-preprocess with several --workers adds sizes in int32 under numpy 2: from "
        "some 40 million sentences on, the index points to wrong ones, or the job ends in "
        "OverflowError",
        layers=(
            Layer("fairseq.data.indexed_dataset:MMapIndexedDataset.Index.writer", add_in_int64),
        ),
    ),
    Patch(
        name="data of the old layout",
        kind="repair",
        reason="training on data of `fairseq-preprocess --dataset-impl lazy` ends in KeyError: "
        "fairseq reads a batch before it fills the cache in which it looks for the sentences; "
        "without the cache its workers move each other's place in the file",
        layers=(
            Layer("fairseq.data.indexed_dataset:infer_dataset_impl", not_cached),
            Layer("fairseq.data.indexed_dataset:IndexedDataset.prefetch", nothing_to_prefetch),
            Layer("fairseq.data.indexed_dataset:IndexedDataset.__getitem__", opened_here),
        ),
    ),
    Patch(
        name="data sets that were never opened",
        kind="repair",
        reason="where a data set cannot be opened, two tracebacks of destructors follow the error",
        layers=(
            Layer("fairseq.data.indexed_dataset:MMapIndexedDataset.__del__", close_if_open),
            Layer("fairseq.data.indexed_dataset:MMapIndexedDataset.Index.__del__", close_if_open),
        ),
    ),
)
