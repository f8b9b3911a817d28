"""Indexes of binarized data: right above 2 GiB, and refused when they do not fit."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import IO

import numpy as np
import pytest
from fairseq.data.indexed_dataset import MMapIndexedDataset, MMapIndexedDatasetBuilder

import fairseq_ext  # noqa: F401
from fairseq_ext.data_folder import indexed
from fairseq_ext.plugin.repairs import batches
from fairseq_ext.utils.errors import DataError
from tests.support.harness import fairseq

LARGE = 2**30  # tokens of one sentence, of two bytes each


def sparse_part(prefix: Path, sentences: int) -> str:
    """A part as a worker writes it: 2 GiB of zeros for each sentence, which take no disk."""
    with Path(f"{prefix}.bin").open("wb") as file:
        file.truncate(2 * LARGE * sentences)
    with MMapIndexedDataset.Index.writer(f"{prefix}.idx", np.uint16) as index:
        index.write([LARGE] * sentences)
    return str(prefix)


def copy_zeros(source: IO[bytes], target: IO[bytes]) -> None:
    """``shutil.copyfileobj`` of a sparse file."""
    end = target.tell() + source.seek(0, os.SEEK_END)
    target.truncate(end)
    target.seek(end)


@pytest.mark.parametrize("first_size", [0, 7, LARGE])
def test_pointers_above_2_gib_are_the_sums_of_sizes(tmp_path, monkeypatch, first_size):
    """Sizes of the first worker are Python's integers, those of merged parts numpy's int32."""
    monkeypatch.setattr(shutil, "copyfileobj", copy_zeros)
    builder = MMapIndexedDatasetBuilder(str(tmp_path / "all.bin"), dtype=np.uint16)
    if first_size:
        builder._sizes.append(first_size)
        builder._data_file.seek(2 * first_size)
    for number in range(2):
        builder.merge_file_(sparse_part(tmp_path / f"part{number}", 3))
    builder.finalize(str(tmp_path / "all.idx"))
    sizes = [*([first_size] if first_size else []), *[LARGE] * 6]
    index = MMapIndexedDataset.Index(str(tmp_path / "all.idx"))
    assert index.sizes.tolist() == sizes
    assert index._pointers.tolist() == [2 * sum(sizes[:i]) for i in range(len(sizes))]
    assert (tmp_path / "all.bin").stat().st_size == 2 * sum(sizes)


def test_starts_are_those_of_plain_python() -> None:
    sizes = np.random.default_rng(1).integers(0, 2**31, 1000).astype(np.int32)
    expected, address = [], 0
    for size in sizes.tolist():
        expected.append(address)
        address += 4 * size
    for options in (sizes, list(sizes), sizes.tolist()):
        assert batches.starts(options, 4).tolist() == expected
    assert batches.starts([], 4).tolist() == []


HEADER = 26  # bytes


def indexed_copy(copy_data: Path, folder: Path) -> Path:
    """The training sources without the manifest, so that the index alone can tell."""
    for ending in ("idx", "bin"):
        shutil.copy(copy_data / f"train.src-tgt.src.{ending}", folder / f"a.{ending}")
    return folder / "a"


def write_pointers(index: Path, change: Callable[[np.ndarray], None]) -> None:
    """Change the pointers of an index in place."""
    count = int(np.fromfile(index, "<u8", 1, offset=18)[0])
    pointers = np.memmap(index, "<i8", "r+", HEADER + 4 * count, (count,))
    change(pointers)
    pointers.flush()


def swap(pointers: np.ndarray) -> None:
    pointers[[3, 9]] = pointers[[9, 3]]


POINTERS: dict[str, tuple[Callable[[np.ndarray], None], str]] = {
    "swapped": (swap, "sentence 4, of"),
    "negative": (lambda pointers: pointers.__setitem__(7, -2), "begins at byte -2 instead of"),
    "huge": (lambda pointers: pointers.__setitem__(7, 2**62), "4,611,686,018,427,387,904"),
    "first": (lambda pointers: pointers.__iadd__(2), "sentence 1, of"),
    "last": (lambda pointers: pointers.__setitem__(-1, 0), "sentence 500, of"),
    "wrapped": (lambda pointers: pointers.__isub__(2**32), "begins at byte -4,294,967,296"),
}


@pytest.mark.parametrize("case", POINTERS)
def test_pointers_that_do_not_follow_from_the_sizes_are_refused(copy_data, tmp_path, case):
    prefix = indexed_copy(copy_data, tmp_path)
    indexed.check(prefix, 14)
    change, output = POINTERS[case]
    write_pointers(Path(f"{prefix}.idx"), change)
    with pytest.raises(DataError, match=r"a\.idx is damaged: sentence .* instead of") as caught:
        indexed.check(prefix, 14)
    assert output in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_block_of_a_long_index_is_checked(copy_data, tmp_path, monkeypatch):
    monkeypatch.setattr(indexed, "BLOCK", 64)
    prefix = indexed_copy(copy_data, tmp_path)
    indexed.check(prefix, 14)
    write_pointers(Path(f"{prefix}.idx"), lambda pointers: pointers.__setitem__(448, 0))
    with pytest.raises(DataError, match="sentence 449, of"):
        indexed.check(prefix, 14)


def test_negative_sizes_and_tokens_are_refused(copy_data: Path, tmp_path: Path) -> None:
    prefix = indexed_copy(copy_data, tmp_path)
    index = bytearray(Path(f"{prefix}.idx").read_bytes())
    complete = bytes(index)
    index[HEADER + 8 : HEADER + 12] = np.int32(-5).tobytes()
    Path(f"{prefix}.idx").write_bytes(index)
    with pytest.raises(DataError, match="sentence 3, of -5 tokens"):
        indexed.check(prefix)
    Path(f"{prefix}.idx").write_bytes(complete)
    tokens = np.memmap(f"{prefix}.bin", "<i2", "r+")
    tokens[100] = -1
    tokens.flush()
    with pytest.raises(DataError, match="token number 65,535, but its dictionary only 14 entries"):
        indexed.check(prefix, 14)


@pytest.mark.system
def test_generate_refuses_swapped_pointers(copy_data, copy_model, tmp_path):
    """fairseq alone translates the wrong sentences, with exit status 0."""
    data = Path(shutil.copytree(copy_data, tmp_path / "data"))
    (data / "data-manifest.json").unlink()
    write_pointers(data / "test.src-tgt.src.idx", swap)
    done = fairseq("generate", data, "--path", copy_model, "--cpu", ok=False)
    assert "Traceback" not in done.stderr
    assert "fairseq-ext: error: " in done.stderr
    assert "test.src-tgt.src.idx is damaged: sentence 4, of" in done.stderr
    assert "H-" not in done.stdout
