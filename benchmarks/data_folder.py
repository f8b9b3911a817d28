"""Time the opening of binarized data: by fairseq alone, by the plugin at first and later starts.

    python benchmarks/data_folder.py --json docs/results/data_folder.json

Processor time of one process, all in turn, on files in the cache of the operating system; the
ratio is the time of fairseq alone over ours, so 0.5 is twice as slow. The last row is of another
kind: where each sentence starts, summed by the plugin and by fairseq.
"""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import bench
import numpy as np
import shared_options
from bench import Cells
from fairseq.data import data_utils
from fairseq.data.indexed_dataset import MMapIndexedDataset

import fairseq_ext
from fairseq_ext.data_folder import indexed, manifest
from fairseq_ext.plugin.repairs import batches

ALONE = "fairseq alone"
MEAN_LENGTH = 25
VOCABULARY = 37_000


class Symbols:
    """A stand-in for a dictionary that has only a length."""

    def __len__(self) -> int:
        return VOCABULARY


def write(folder: Path, tokens: int, *, listed: bool) -> Path:
    """Write random sentences in fairseq-preprocess's format, with a manifest or without."""
    generator = np.random.default_rng(1)
    sizes = generator.integers(1, 2 * MEAN_LENGTH, tokens // MEAN_LENGTH).astype(np.int32)
    folder.mkdir()
    generator.integers(4, VOCABULARY, int(sizes.sum()), np.uint16).tofile(folder / "train.bin")
    with MMapIndexedDataset.Index.writer(folder / "train.idx", np.uint16) as index:
        index.write(sizes)
    if listed:
        manifest.write(folder, folder)
    return folder


def opening(folder: Path, load: Callable, *, first: bool = False) -> Callable[[], None]:
    """Return a function that opens the data in ``folder``, with ``first`` as at a first start."""

    def run() -> None:
        if first:
            (folder / indexed.NOTES).unlink(missing_ok=True)
        load(str(folder / "train"), Symbols(), "mmap")

    return run


def measure(tokens: int, repeats: int, folder: Path) -> Cells:
    """Time all ways to open the data, then the summing of sentence starts."""
    cells = Cells(f"Opening binarized data of {tokens:,} tokens", unit="ms")
    listed = write(folder / "listed", tokens, listed=True)
    stock = write(folder / "stock", tokens, listed=False)
    ours = data_utils.load_indexed_dataset
    candidates = {
        ALONE: opening(listed, ours.__wrapped__),
        "manifest, first start": opening(listed, ours, first=True),
        "manifest, later starts": opening(listed, ours),
        "no manifest, first start": opening(stock, ours, first=True),
        "no manifest, later starts": opening(stock, ours),
    }
    seconds = bench.paired(candidates, repeats=repeats, clock=time.process_time)
    pairs = [(name, ALONE) for name in candidates if name != ALONE]
    cells.add("opening", None, seconds, pairs, tokens=tokens)
    index = MMapIndexedDataset.Index(str(listed / "train.idx"))  # its sizes live as long as it
    sizes = list(index.sizes)  # of numpy's int32, as where workers' parts are merged
    writer = MMapIndexedDataset.Index.writer.__func__.__wrapped__
    pointers = writer(MMapIndexedDataset.Index, "/dev/null", np.uint16)._get_pointers
    sums = {
        "starts, plugin": lambda: batches.starts(sizes, 2),
        "starts, fairseq": lambda: np.array(pointers(sizes), dtype=np.int64),
    }
    seconds = bench.paired(sums, repeats=repeats, clock=time.process_time)
    cells.add(f"where {len(sizes):,} sentences start", None, seconds, [(*sums,)], tokens=tokens)
    return cells


def main() -> None:
    """Measure, print, and write JSON."""
    args = shared_options.parser_with(__doc__, tokens=5_000_000, repeats=40).parse_args()
    fairseq_ext.register()
    logging.getLogger("fairseq").setLevel(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        cells = measure(args.tokens, args.repeats, Path(folder))
    cells.save(args.json, shared_options.settings(args))


if __name__ == "__main__":
    main()
