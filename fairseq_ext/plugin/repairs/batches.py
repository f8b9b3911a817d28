"""Repair batches and binarized data: lost sentences, old layouts, large files, threads at exit."""

import atexit
import os
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch

from fairseq_ext.plugin.patching import around, replacing


@around("fairseq.data.data_utils:batch_by_size", patch="last batch")
def keep_tail(original: Callable, indices: Any, *args: Any, **kwargs: Any) -> list[Any]:
    """Make batches as fairseq does, then add a batch of the last sentences, which fairseq drops.

    Problem: fairseq drops the end of every split whose size is not a multiple of
    --required-batch-size-multiple (8): 10 test lines give 8 translations.
    """
    if not isinstance(indices, np.ndarray):
        indices = np.fromiter(indices, dtype=np.int64, count=-1)
    if len(indices) == 0:  # fairseq would fail, as there is no last batch
        return []
    batches = list(original(indices, *args, **kwargs))
    batched = sum(map(len, batches))
    return batches if batched == len(indices) else [*batches, indices[batched:]]


@around("fairseq.data.iterators:EpochBatchIterator.__init__", patch="batches of each epoch")
def repair_epochs(original: Callable, self: Any, *args: Any, **kwargs: Any) -> None:
    """Build the iterator over epochs so that every epoch has the right batches, masks and noise.

    No batch is dropped, each epoch draws new masks, and noise depends only on seed and epoch.

    Problem: --grouped-shuffling makes groups of one batch per process, and drops the last group of
    every epoch if it is incomplete. With --num-workers, `masked_lm` uses the masks of the first
    epoch in all epochs, because its workers live on. Runs of the task `denoising` with the same
    seed draw different noise, and so does a resumed run.
    """
    from fairseq.data import DenoisingDataset, FairseqDataset

    original(self, *args, **kwargs)
    draws_noise = any(isinstance(part, DenoisingDataset) for part in _parts(self.dataset))
    if not self.num_workers and draws_noise:
        self.buffer_size = 0  # no thread, because updates and noise draw from one generator
    if getattr(type(self.dataset), "set_epoch", None) not in (None, FairseqDataset.set_epoch):
        self.persistent_workers = False  # start them anew with the data of each epoch
    if getattr(self, "grouped_shuffling", False) and self._frozen_batches is not None:
        missing = -len(self._frozen_batches) % self.num_shards
        self._frozen_batches += ([],) * missing  # empty batches, which fairseq skips


def _parts(dataset: Any) -> Iterator[Any]:
    """Yield a dataset, and all datasets that it wraps or joins."""
    yield dataset
    for part in (getattr(dataset, "dataset", None), *getattr(dataset, "datasets", ())):
        if part is not None:
            yield from _parts(part)


@around(
    "fairseq.data.denoising_dataset:DenoisingDataset.__getitem__", patch="batches of each epoch"
)
def draw_noise_of_sentence(original: Callable, self: Any, index: int) -> Any:
    """Return a sentence with noise; its random numbers depend only on seed, epoch and sentence."""
    with torch.random.fork_rng(devices=()):
        torch.default_generator.manual_seed(hash((self.seed, self.epoch, int(index))))
        return original(self, index)


@replacing(
    *("fairseq.data.language_pair_dataset:np", "fairseq.data.token_block_dataset:np"),
    *("fairseq.data.data_utils:np", "fairseq.modules.dynamic_crf_layer:np"),
    patch="old names of numpy",
)
def numpy_with_old_names(original: ModuleType) -> ModuleType:
    """Return a copy of the module numpy that still has the old names that fairseq uses.

    Problem: fairseq uses names that numpy has removed: numpy.compat.long (in --num-batch-buckets
    and language modelling), the argument `interpolation` of numpy.percentile (in
    --num-batch-buckets), and numpy.int and numpy.float (in rarer places).
    """

    def percentile(values: Any, shares: Any, interpolation: str) -> Any:
        return original.percentile(values, shares, method=interpolation)

    view, old_names = ModuleType("numpy"), {"int": int, "float": float, "percentile": percentile}
    vars(view).update(vars(original), **old_names, compat=SimpleNamespace(long=int))
    return view


def starts(sizes: Sequence[int], itemsize: int) -> np.ndarray:
    """Return the byte at which each sentence of a ``.bin`` file starts, int64 ``[sentences]``.

    ``sizes`` are the sentences' lengths in tokens, each of ``itemsize`` bytes.
    """
    counts = np.fromiter(sizes, np.int64, len(sizes))
    return (np.cumsum(counts) - counts) * itemsize


@around("fairseq.data.indexed_dataset:MMapIndexedDataset.Index.writer", patch="data above 2 GiB")
def add_in_int64(original: Callable, cls: Any, path: str, dtype: Any) -> Any:
    """Return a writer of the index ``path``, which computes the bytes of sentences in int64.

    Problem: Under numpy 2, fairseq-preprocess with several --workers sums sizes in int32: above
    some 40 million sentences, the index points to wrong places in the data, or the job ends in
    OverflowError.
    """
    index = original(cls, path, dtype)
    index._get_pointers = lambda sizes: starts(sizes, np.dtype(dtype).itemsize)
    return index


@around("fairseq.data.indexed_dataset:make_dataset", patch="data of the old layout")
def not_cached(original: Callable, path: str, impl: str, *rest: Any, **options: Any) -> Any:
    """Open data of the old layout without a cache, also with ``--dataset-impl cached``.

    Problem: Training on data of `fairseq-preprocess --dataset-impl lazy` ends in KeyError, because
    fairseq reads a batch before it caches the sentences. If there is no cache, workers share the
    open file, and each moves the position at which the others read.
    """
    return original(path, "lazy" if impl == "cached" else impl, *rest, **options)


@around("fairseq.data.indexed_dataset:IndexedDataset.prefetch", patch="data of the old layout")
def nothing_to_prefetch(original: Callable, self: Any, indices: Any) -> None:
    """Do nothing: without a cache there is nothing to prefetch."""


@around("fairseq.data.indexed_dataset:IndexedDataset.__getitem__", patch="data of the old layout")
def opened_here(original: Callable, self: Any, index: int) -> Any:
    """Return sentence ``index`` from a data file that this process itself has opened.

    Forked workers that shared an open file would share its position, and read wrong data.
    """
    if self.__dict__.get("opened_by") != os.getpid():
        self.data_file, self.opened_by = None, os.getpid()
    return original(self, index)


@around(
    "fairseq.data.indexed_dataset:MMapIndexedDataset.__del__",
    "fairseq.data.indexed_dataset:MMapIndexedDataset.Index.__del__",
    patch="data sets that cannot be opened",
)
def close_if_open(original: Callable, self: Any) -> None:
    """Call the destructor only if the data set was opened.

    Problem: If a data set cannot be opened, the tracebacks of two destructors follow the error.
    """
    if getattr(self, "_bin_buffer_mmap", None) is not None:
        original(self)


@around("fairseq.data.data_utils:_find_extra_valid_paths", patch="several validation sets")
def names_of_subsets(original: Callable, dataset_path: str) -> set[str]:
    """Return the names of further validation sets, such as ``valid1``, without file extensions.

    Problem: fairseq-train refuses `--valid-subset valid,valid1`: it compares names of sets with
    names of files, and concludes that valid1 would be ignored.
    """
    return {name.partition(".")[0] for name in original(dataset_path)}


@around("fairseq.data:ConcatDataset.__init__", patch="sets in several parts")
def once_by_default(
    original: Callable, self: Any, datasets: Any, sample_ratios: int | Sequence[int] = 1
) -> None:
    """Join datasets, each as often as ``sample_ratios`` says; a negative ratio means once.

    Problem: Training on train and train1, or with `--combine-valid-subsets`, ends in “negative
    dimensions are not allowed”, because `--upsample-primary` is -1 by default.
    """
    if not isinstance(sample_ratios, int):
        sample_ratios = [1 if ratio < 0 else ratio for ratio in sample_ratios]
    original(self, datasets, sample_ratios)


PATIENCE = 5.0  # seconds to wait until the current batch is made


def stop(thread: Callable[[], Any]) -> None:
    """End fairseq's thread that loads batches; ``thread`` is a weak reference to it.

    The thread ends once it has made ``_max_len`` batches, but waits while its queue is full. So
    set ``_max_len`` to 0, and lift the queue's limit.
    """
    consumer = thread()
    if consumer is None:
        return
    consumer._max_len = 0
    with consumer._queue.not_full:
        consumer._queue.maxsize = sys.maxsize
        consumer._queue.not_full.notify()
    consumer.join(PATIENCE)


@around("fairseq.data.iterators:BufferedIterator._create_consumer", patch="end of the process")
def stop_at_exit(original: Callable, self: Any) -> None:
    """Start the thread that loads batches, and stop it when the process exits.

    Problem: A run that stops in the middle of an epoch can die after its work, with `terminate
    called without an active exception` and status 134, because a thread still makes batches while
    Python shuts down.
    """
    original(self)
    atexit.register(stop, weakref.ref(self._consumer))
