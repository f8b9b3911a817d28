"""Batches: no sentence is lost, and buckets work with numpy 2."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from fairseq_ext.plugin.table import Layer, Patch, around


@around
def keep_tail(original: Callable, indices: Any, *args: Any, **kwargs: Any) -> list[Any]:
    """Add missing sentences as a last batch; only the end can be missing."""
    if not isinstance(indices, np.ndarray):
        indices = np.fromiter(indices, dtype=np.int64, count=-1)
    if len(indices) == 0:  # fairseq would fail, as there is no last batch
        return []
    batches = list(original(indices, *args, **kwargs))
    batched = sum(map(len, batches))
    return batches if batched == len(indices) else [*batches, indices[batched:]]


@around
def complete_groups(original: Callable, self: Any, *args: Any, **kwargs: Any) -> None:
    """Fill the last group with empty batches, which fairseq skips as at the end of any epoch.

    ``--grouped-shuffling`` shuffles groups of one batch per process and drops an incomplete group.
    """
    original(self, *args, **kwargs)
    if getattr(self, "grouped_shuffling", False) and self._frozen_batches is not None:
        missing = -len(self._frozen_batches) % self.num_shards
        self._frozen_batches += ([],) * missing


@around
def bucket_sizes(original: Callable, sizes: Any, num_buckets: int) -> np.ndarray:
    """The lengths that divide the corpus into ``num_buckets`` parts of about equal size."""
    shares = np.linspace(0, 100, num_buckets + 1)[1:]
    return np.unique(np.percentile(sizes, shares, method="lower"))


USERS_OF_REMOVED_NAMES = (
    "data.language_pair_dataset",
    "data.token_block_dataset",
    "data.data_utils",
    "modules.dynamic_crf_layer",
)


def numpy_with_old_names(original: ModuleType) -> ModuleType:
    """A copy of the module numpy with the removed names that fairseq uses."""
    view = ModuleType("numpy")
    vars(view).update(vars(original), int=int, float=float, compat=SimpleNamespace(long=int))
    return view


PATCHES = (
    Patch(
        name="last batch",
        kind="repair",
        reason="the last batch of every split is dropped when its size is not a multiple of "
        "--required-batch-size-multiple (8): 10 test lines come back as 8",
        layers=(Layer("fairseq.data.data_utils:batch_by_size", keep_tail),),
    ),
    Patch(
        name="last group",
        kind="repair",
        reason="--grouped-shuffling drops up to one batch per process and epoch",
        layers=(Layer("fairseq.data.iterators:EpochBatchIterator.__init__", complete_groups),),
    ),
    Patch(
        name="length buckets",
        kind="repair",
        reason="--num-batch-buckets calls numpy.percentile(interpolation=…), removed from numpy",
        layers=tuple(
            Layer(f"fairseq.data.{user}:get_buckets", bucket_sizes)
            for user in ("data_utils", "bucket_pad_length_dataset", "audio.raw_audio_dataset")
        ),
    ),
    Patch(
        name="old names of numpy",
        kind="repair",
        reason="--num-batch-buckets and language modelling use numpy.compat.long, removed from "
        "numpy, and two rarer places numpy.int and numpy.float",
        layers=tuple(
            Layer(f"fairseq.{user}:np", numpy_with_old_names) for user in USERS_OF_REMOVED_NAMES
        ),
    ),
)
