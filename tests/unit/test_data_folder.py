"""A data folder: its manifest and its checks, its indexes, and the start of large corpora."""

import hashlib
import inspect
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import IO

import numpy as np
import pytest
from fairseq.data import Dictionary, LanguagePairDataset, ListDataset, data_utils
from fairseq.data.indexed_dataset import MMapIndexedDataset, MMapIndexedDatasetBuilder
from fairseq.tasks.translation import TranslationConfig, TranslationTask

from fairseq_ext.data_folder import indexed
from fairseq_ext.utils.errors import DataError
from tests.support.harness import USER_DIR, digits_corpus, fairseq, forked, refused, start, wait_for
from tests.support.trainings import load

NAME = "data-manifest.json"
LANGUAGES = ("--source-lang", "src", "--target-lang", "tgt")


def flip(path: Path) -> None:
    """Flip the lowest bit of one byte; size and time stay, as when a disk fails."""
    status = path.stat()
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))


def files(folder: Path) -> dict[str, dict[str, object]]:
    """Compute size and checksum of every file that fairseq-preprocess writes."""
    return {
        path.name: {
            "bytes": path.stat().st_size,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        }
        for path in folder.iterdir()
        if path.name not in (NAME, "preprocess.log") and not path.name.startswith(".")
    }


def listed(folder: Path) -> dict[str, dict[str, object]]:
    return json.loads((folder / NAME).read_text(encoding="utf-8"))["files"]


@pytest.mark.system
def test_each_call_into_a_folder_extends_its_manifest(tmp_path: Path) -> None:
    text, out = digits_corpus(tmp_path / "text"), tmp_path / "out"

    def preprocess(*options: object, ok: bool = True) -> CompletedProcess[str]:
        return fairseq("preprocess", *LANGUAGES, "--destdir", out, *options, ok=ok)

    preprocess("--trainpref", text / "train", "--workers", 2)
    assert listed(out) == files(out)
    assert {"dict.src.txt", "train.src-tgt.tgt.bin"} <= listed(out).keys()
    dictionaries = ("--srcdict", out / "dict.src.txt", "--tgtdict", out / "dict.tgt.txt")
    preprocess("--validpref", text / "valid", *dictionaries)
    preprocess("--testpref", text / "test", "--only-source", *dictionaries[:2])
    assert listed(out) == files(out)
    assert {"valid.src-tgt.src.idx", "test.src-tgt.src.bin"} <= listed(out).keys()
    # a file that is gone is listed no more
    for path in out.glob("valid.*"):
        path.unlink()
    preprocess("--testpref", f"{text / 'test'},{text / 'valid'}", *dictionaries)
    assert listed(out) == files(out)
    assert "test1.src-tgt.tgt.bin" in listed(out)
    # another dictionary would turn what is there into other words
    (tmp_path / "other.txt").write_text("9 1\n8 1\n7 1\n")
    before = {path: path.read_bytes() for path in out.iterdir()}
    other = ("--srcdict", tmp_path / "other.txt", "--tgtdict", out / "dict.tgt.txt")
    refused(
        preprocess("--validpref", text / "valid", *other, ok=False),
        *("dict.src.txt would be replaced", ".idx was made with it: line 1 is `9`, but was `"),
    )
    # a damaged manifest is refused before the work
    (out / NAME).write_text("{")
    refused(preprocess("--testpref", text / "test", *dictionaries, ok=False), NAME, "not JSON")
    (out / NAME).write_bytes(before[out / NAME])
    assert {path: path.read_bytes() for path in out.iterdir()} == before


@pytest.mark.system
def test_data_that_change_at_work_end_it(data: Path, tmp_path: Path) -> None:
    words = ("--arch", "gru_tiny", "--optimizer", "adam", "--batch-size", 50, "--max-update", 9999)
    words = (*words, "--disable-validation", "--save-interval-updates", 1, "--cpu")
    words = (*words, "--keep-interval-updates", 1, "--save-dir", tmp_path / "run")
    training = start(
        *(forked("fairseq-train"), data, *words, "--user-dir", USER_DIR),
        **{"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True},
    )
    wait_for((tmp_path / "run" / "checkpoint_1_2.pt").exists, training)
    flip(data / "train.src-tgt.src.bin")
    output, _ = training.communicate(timeout=60)
    assert training.returncode == 1
    assert re.search(r"error: .*train\.src-tgt\.src\.bin has changed since this process", output)
    assert "Traceback" not in output
    assert load(tmp_path / "run" / "checkpoint_last.pt")["optimizer_history"][-1]["num_updates"] > 1

    languages = {"source_lang": "src", "target_lang": "tgt"}
    cfg = TranslationConfig(data=str(data), dataset_impl="mmap", train_subset="train", **languages)
    task = TranslationTask.setup_task(cfg)
    task.load_dataset("test")
    flip(data / "test.src-tgt.tgt.idx")
    with pytest.raises(DataError, match=r"test\.src-tgt\.tgt\.idx has changed"):
        task.inference_step(None, [], {})


@pytest.mark.parametrize("name", ["train.src-tgt.src.bin", "train.src-tgt.src.idx"])
def test_files_are_compared_with_the_manifest(data: Path, name: str) -> None:
    prefix, path = data / "train.src-tgt.src", data / name
    indexed.check(prefix, 14)
    content = path.read_bytes()
    with path.open("ab") as file:
        file.write(b"\0")
    with pytest.raises(DataError, match=rf"{name} is damaged: [\d,]+ bytes"):
        indexed.check(prefix, 14, contents=False)
    path.write_bytes(content)
    indexed.check(prefix, 14)
    flip(path)
    for _ in range(2):  # no note says that it is fine
        with pytest.raises(DataError, match=f"{name} is damaged"):
            indexed.check(prefix, 14)
    indexed.check(prefix, 14, contents=False)


@pytest.mark.system
def test_other_layouts_are_compared_with_the_manifest(tmp_path: Path) -> None:
    out = tmp_path / "out"
    fairseq(
        *("preprocess", *LANGUAGES, "--destdir", out, "--dataset-impl", "cached"),
        *("--trainpref", digits_corpus(tmp_path / "text") / "train"),
    )
    indexed.check(out / "train.src-tgt.src", 14)
    flip(out / "train.src-tgt.src.bin")
    with pytest.raises(DataError, match=r"train\.src-tgt\.src\.bin is damaged: its checksum"):
        indexed.check(out / "train.src-tgt.src", 14)


def with_entry(name: str, size: object = 1, digest: object = "0" * 64) -> str:
    entry = {"bytes": size, "sha256": digest}
    return json.dumps({"format": "fairseq-ext data", "version": 1, "files": {name: entry}})


TORN = '{"format": "fairseq-ext da'


@pytest.mark.parametrize(
    "content",
    [
        *(TORN, "[]", '{"format": "x", "version": 1, "files": {}}'),
        '{"format": "fairseq-ext data", "version": 2, "files": {}}',
        '{"format": "fairseq-ext data", "version": 1}',
        *map(with_entry, ("../dict.src.txt", "/etc/passwd", "..", "", "a\0")),
        *(with_entry("a", size) for size in (-1, 1.5)),
        *(with_entry("a", 1, digest) for digest in ("0" * 63, 5, "0" * 64 + "\n")),
    ],
)
def test_a_manifest_that_is_none_is_refused(data: Path, content: str) -> None:
    (data / NAME).write_text(content, encoding="utf-8")
    fault = "`, line 1: not JSON" if content == TORN else " is not a manifest of fairseq-preprocess"
    with pytest.raises(DataError, match=re.escape(f"{data / NAME}{fault}")):
        indexed.check(data / "train.src-tgt.src", 14)


# Indexes of binarized data: right above 2 GiB, and refused when they do not fit
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
    if np.lib.NumpyVersion(np.__version__) >= "2.0.0":  # which adds in int32 without the repair
        plain = vars(MMapIndexedDataset.Index)["writer"].__func__.__wrapped__
        index = plain(MMapIndexedDataset.Index, os.devnull, np.uint16)
        with np.errstate(over="ignore"):
            assert index._get_pointers([np.int32(LARGE)] * 3)[-1] != 4 * LARGE


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


@pytest.mark.parametrize("block", [64, indexed.BLOCK])
@pytest.mark.parametrize(
    ("change", "output"),
    [
        (swap, "sentence 4, of"),
        (lambda pointers: pointers.__setitem__(7, -2), "begins at byte -2 instead of"),
        (lambda pointers: pointers.__setitem__(7, 2**62), "4,611,686,018,427,387,904"),
        (lambda pointers: pointers.__iadd__(2), "sentence 1, of"),
        (lambda pointers: pointers.__setitem__(448, 0), "sentence 449, of"),
        (lambda pointers: pointers.__setitem__(-1, 0), "sentence 500, of"),
        (lambda pointers: pointers.__isub__(2**32), "begins at byte -4,294,967,296"),
    ],
)
def test_pointers_that_do_not_follow_from_the_sizes_are_refused(
    copy_data, tmp_path, change, output, block, monkeypatch
):
    monkeypatch.setattr(indexed, "BLOCK", block)
    prefix = indexed_copy(copy_data, tmp_path)
    indexed.check(prefix, 14)
    write_pointers(Path(f"{prefix}.idx"), change)
    fault = rf"a\.idx is damaged: (?=.*{output})sentence .* instead of"
    with pytest.raises(DataError, match=fault):
        indexed.check(prefix, 14)


@pytest.mark.parametrize(
    ("name", "size", "output"),
    [
        *(("a.idx", size, r"is (damaged|not the index)") for size in (0, 20, 26, -1)),
        *(("a.bin", size, r"is damaged: .* its index a\.idx expects") for size in (0, -1)),
        *((name, None, "does not exist") for name in ("a.bin", "a.idx")),
    ],
)
def test_files_that_are_cut_or_missing_are_refused(copy_data, tmp_path, name, size, output):
    path = indexed_copy(copy_data, tmp_path).with_name(name)
    content = path.read_bytes()[:size]
    path.unlink() if size is None else path.write_bytes(content)
    with pytest.raises(DataError, match=rf"{name} {output}"):
        indexed.check(tmp_path / "a")
    indexed.check(tmp_path / "none")


def test_negative_sizes_and_tokens_of_other_types_are_refused(
    copy_data: Path, tmp_path: Path
) -> None:
    prefix = indexed_copy(copy_data, tmp_path)
    with pytest.raises(DataError, match="token number 13, but its dictionary has only 13 entries"):
        indexed.check(prefix, 13)
    tokens = np.memmap(f"{prefix}.bin", "<i2", "r+")
    tokens[100] = -1
    tokens.flush()
    with pytest.raises(DataError, match="token number 65,535, but its dictionary has only 14"):
        indexed.check(prefix, 14)
    index = bytearray(Path(f"{prefix}.idx").read_bytes())
    for code in (7, 77):  # of floating-point numbers, and of nothing
        other = index[:17] + bytes([code]) + index[18:]  # behind the magic and the version
        Path(f"{prefix}.idx").write_bytes(other)
        with pytest.raises(DataError, match=rf"a\.idx has tokens of the type {code}, not whole"):
            indexed.read_header(Path(f"{prefix}.idx"))
    index[HEADER + 8 : HEADER + 12] = np.int32(-5).tobytes()
    Path(f"{prefix}.idx").write_bytes(index)
    with pytest.raises(DataError, match="sentence 3, of -5 tokens"):
        indexed.check(prefix)


@pytest.mark.system
def test_generate_checks_the_files_that_it_reads(data: Path, copy_model: Path) -> None:
    """A folder may be copied for translation alone; its files' times and inodes differ then."""
    command = ("generate", data, "--path", copy_model, "--cpu")
    for path in [*data.glob("train.*"), *data.glob("valid.*"), data / "preprocess.log"]:
        path.unlink()
    for path in data.iterdir():
        os.utime(path)
    assert fairseq(*command).stdout.count("\nH-") == 50
    flip(data / "test.src-tgt.src.bin")  # to another token, so only the checksum can tell
    refused(fairseq(*command, ok=False), "test.src-tgt.src.bin is damaged: its checksum is not")
    (data / NAME).write_text(with_entry("test.src-tgt.src.bin", 7))
    refused(fairseq(*command, ok=False), "test.src-tgt.src.bin is damaged: ")
    (data / NAME).unlink()
    os.mkfifo(data / NAME)
    refused(fairseq(*command, ok=False), "is not a regular file")
    (data / NAME).unlink()  # as a folder of stock fairseq
    assert fairseq(*command).stdout.count("\nH-") == 50
    # fairseq alone translates the wrong sentences, with exit status 0
    write_pointers(data / "test.src-tgt.src.idx", swap)
    done = fairseq(*command, ok=False)
    refused(done, "test.src-tgt.src.idx is damaged: sentence 4, of")
    assert "H-" not in done.stdout


# The start of large corpora is fairseq's: the same order, the same batches
SENTENCES = 1_001


def sizes_up_to(longest: int, seed: int = 1) -> np.ndarray:
    sizes = np.random.default_rng(seed).integers(1, longest, SENTENCES, np.int32, endpoint=True)
    sizes[seed] = longest
    return sizes


def pairs_of(src: np.ndarray, tgt: np.ndarray | None, **options: object) -> LanguagePairDataset:
    words = Dictionary()
    sides = [None if side is None else ListDataset(range(len(side)), side) for side in (src, tgt)]
    return LanguagePairDataset(sides[0], src, words, sides[1], tgt, words, **options)


@pytest.mark.parametrize(
    "longest", [(1, 1), (50, 50), (255, 255), (255, 256), (3, 65_535), (65_536, 9)]
)
@pytest.mark.parametrize("shuffle", [True, False])
def test_the_order_is_fairseqs(longest, shuffle):
    """Lengths of more than 16 bits are left to fairseq."""
    src, tgt = sizes_up_to(longest[0]), sizes_up_to(longest[1], 2)
    for pairs in (pairs_of(src, tgt, shuffle=shuffle), pairs_of(src, None, shuffle=shuffle)):
        with data_utils.numpy_seed(7):
            ours = pairs.ordered_indices()
        assert ours.dtype == np.int64
        with data_utils.numpy_seed(7):
            theirs = inspect.unwrap(LanguagePairDataset.ordered_indices)(pairs)
        np.testing.assert_array_equal(ours, theirs)


def test_sizes_are_kept_once():
    src, tgt = sizes_up_to(50), sizes_up_to(60, 2)
    pairs = pairs_of(src, tgt)
    assert np.shares_memory(pairs.src_sizes, pairs.sizes)
    assert np.shares_memory(pairs.tgt_sizes, pairs.sizes)
    np.testing.assert_array_equal(pairs.sizes, np.stack([src, tgt], 1))
    np.testing.assert_array_equal(pairs.src_sizes, src)
    np.testing.assert_array_equal(pairs.tgt_sizes, tgt)
    assert pairs.size(3) == (src[3], tgt[3])
