"""Whatever a user gives wrongly ends in one clear message, status 1, and no trace on the disk.

Texts are checked in every detail in this process; each kind of bad input then goes once through
the real command.
"""

import gzip
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import torch
from fairseq.binarizer import FileBinarizer, VocabularyDatasetBinarizer
from fairseq.data import Dictionary
from fairseq.data.indexed_dataset import MMapIndexedDataset

from fairseq_ext.text import checks, reading
from fairseq_ext.utils.errors import DataError
from tests.support.harness import (
    BIN,
    USER_DIR,
    after,
    contents,
    contents_below,
    digits_corpus,
    fairseq,
    names,
    preprocess,
    refused,
    run,
    write_lines,
)

TINY = ("--arch", "gru_tiny", "--optimizer", "adam", "--max-update", 2, "--batch-size", 50, "--cpu")
PARTS = ("src", "tgt")


@pytest.fixture
def file(tmp_path: Path) -> Callable[[bytes], Path]:
    def write(content: bytes) -> Path:
        (tmp_path / "a.txt").write_bytes(content)
        return tmp_path / "a.txt"

    return write


class TestCheckText:
    def test_counts_lines(self, file):
        assert checks.check_text(file(b"a\nb c\n")) == 2
        assert checks.check_text(file(b"a\nb c")) == 2
        assert checks.check_text(file("ä ö\r\nb c\r\n".encode())) == 2
        assert checks.check_text(file(b"b " * 10_000 + b"\n")) == 1
        assert checks.check_text(file(b"b" * 100_000 + b"\n")) == 1
        assert checks.check_text(file(b"b " * 100_000 + b"\n"), max_tokens=None) == 1
        assert checks.check_text(file(b"a\n\n  \n"), empty_lines=True) == 3

    @pytest.mark.parametrize(
        ("content", "output"),
        [
            (b"", "a.txt is empty"),
            (b"\xef\xbb\xbfa\n", "a.txt, line 1: starts with a byte-order mark"),
            ("a\n".encode("utf-16"), "it seems to be UTF-16, convert it: iconv -f utf-16"),
            (b"a\nb\xe9c\n", "a.txt, line 2: not UTF-8, byte 0xe9 at offset 1 of the line; "),
            (b"1\n2 \xe9\n3\n", "such as cp1252 or gb18030), convert it: iconv -f NAME "),
            (gzip.compress(b"1\n2\n"), "a.txt is compressed; unpack it, and give its text"),
            (b"a\nb\xc3", "line 2: not UTF-8, byte 0xc3 at offset 1"),
            (b"a\n\xed\xa0\x80\n", "line 2: not UTF-8, byte 0xed at offset 0"),
            (b"a\nb\nc\0d\n", "a.txt, line 3: NUL bytes; if it is UTF-16, convert it"),
            ("これは文\n".encode("shift_jis"), "SHIFT_JIS, convert it: iconv -f shift_jis "),
            ("これは文\n".encode("iso-2022-jp"), "escape sequences; if NAME is its encoding"),
            ("这是一只狗\n".encode("gb18030"), "or gb18030), convert it: iconv -f NAME "),
            (b"a\nb\rc\nd\n", "a.txt, line 2: carriage return inside the line"),
            (b"a\r\r\nb\n", "a.txt, line 1: carriage return inside the line"),
            (b"a\rb\rc\r", "line 1: carriage return at each line's end, without a line feed"),
            (b"a\rb\nc\n", r"Delete it: tr -d '\r' < "),
            (b"a\n\nb\n", "a.txt, line 2: empty"),
            ("a\n \t\u00a0\u2028\nb\n".encode(), "a.txt, line 2: empty"),
            (b"a\r\n\r\n", "a.txt, line 2: empty"),
            (b"a\n" + b"b " * 100_000 + b"\n", "a.txt, line 2: more than 10,000 tokens"),
        ],
    )
    def test_refuses(self, file, content: bytes, output: str):
        with pytest.raises(DataError, match=re.escape(output)):
            checks.check_text(file(content))

    def test_numbers_of_lines(self, file, monkeypatch):
        monkeypatch.setattr(reading, "LONGEST", 20)
        lines = [b"one two %d" % n for n in range(200)]
        assert checks.check_text(file(b"\r\n".join(lines) + b"\r\n")) == 200
        lines[150] = "ä b".encode("latin1")
        with pytest.raises(DataError, match=r"line 151: .* 0xe4 at offset 0 of the line;"):
            checks.check_text(file(b"\n".join(lines)))
        lines[150], lines[160] = b"a\rb", b"a\rb"
        with pytest.raises(DataError, match="line 151: carriage return"):
            checks.check_text(file(b"\n".join(lines)))
        lines[150], lines[160] = b"a", b"x" * 40
        with pytest.raises(DataError, match="line 161: longer than 20 bytes"):
            checks.check_text(file(b"\n".join(lines)))

    def test_agrees_with_fairseq_on_every_white_space(self, file):
        """Of all white space, only a lone carriage return changes fairseq's count of sentences."""
        spaces = [chr(code) for code in range(sys.maxunicode + 1) if chr(code).isspace()]
        assert len(spaces) > 25
        different = []
        for space in set(spaces) - {"\n"}:
            path = file(f"a b\nc{space}d\ne f\n".encode())
            binarizer = VocabularyDatasetBinarizer(Dictionary())
            summary = FileBinarizer.multiprocess_dataset(
                str(path), "mmap", binarizer, str(path.with_name("out")), vocab_size=4
            )
            assert summary.num_tok == 6 + summary.num_seq  # all of it separates words
            if summary.num_seq == 3:
                assert checks.check_text(path) == 3
            else:
                different.append(space)
                with pytest.raises(DataError, match="line 2: carriage return"):
                    checks.check_text(path)
        assert different == ["\r"]

    def test_not_a_readable_text(self, tmp_path: Path):
        for name, content in (("a.docx", b"PK\x03\x04"), ("ref.sgm", b"a\n")):
            (tmp_path / name).write_bytes(content)
        for path, fault in (
            (tmp_path / "a.docx", r"a\.docx` is no text; save it as plain text, and"),
            (tmp_path / "ref.sgm", r"is no text; save it as plain text \(`fairseq-ext corpus tr"),
            (tmp_path / "none", "none does not exist"),
            (tmp_path, "is a folder"),
            (Path("/dev/null"), "not a regular file"),
        ):
            with pytest.raises(DataError, match=fault):
                checks.check_text(path)
        (tmp_path / "file").write_text("a\n")
        with pytest.raises(DataError, match="cannot be read: Not a directory"):
            checks.check_text(tmp_path / "file" / "a")
        (tmp_path / "file").chmod(0)
        if not os.access(tmp_path / "file", os.R_OK):  # root may read it all the same
            with pytest.raises(DataError, match="cannot be read: Permission denied"):
                checks.check_text(tmp_path / "file")


@pytest.mark.parametrize(
    ("content", "output"),
    [
        ("a 1\nb\n", "line 2: `b` is not"),
        ("a 1\nb x\n", "line 2: `b x` is not"),
        ("a 1\nb 2\na 3\n", "line 3: `a` is already in line 1"),
    ],
)
def test_check_dictionary(file, content: str, output: str):
    checks.check_dictionary(file(b"a 1\nb 2\na 3 #fairseq:overwrite\n"))
    with pytest.raises(DataError, match=output):
        checks.check_dictionary(file(content.encode()))


def put(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(content)


def remove(pattern: str) -> Callable[[Path], object]:
    return lambda folder: [path.unlink() for path in folder.glob(pattern)]


BAD_TEXTS = {
    "missing": (remove("test.tgt"), "test.tgt does not exist"),
    "unequal": (put("valid.tgt", b"1\n2\n"), "valid.src has 3 lines but ", "valid.tgt has 2."),
    "carriage-return": (put("train.src", b"1\n2\r3\n4\n"), "train.src, line 2: carriage return"),
}


@pytest.mark.parametrize("case", BAD_TEXTS)
def test_preprocess_refuses_a_text(tmp_path: Path, case: str):
    damage, *output = BAD_TEXTS[case]
    folder = digits_corpus(tmp_path / "text", train=5, valid=3, test=3)
    damage(folder)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "notes").write_text("mine")
    before = contents_below(tmp_path)
    refused(preprocess(folder, tmp_path / "bin", ok=False), *output)
    assert contents_below(tmp_path) == before


def test_preprocess_keeps_every_line_and_earlier_results(tmp_path: Path):
    """Odd white space separates words only; empty test lines stay; a second run adds to the log."""
    folder = digits_corpus(tmp_path / "text", train=3, valid=3, test=3)
    odd = "1\f2 3\x854\n5\u20286\u20297\n8\x0b9\x1c1\u00a02\n"
    for part in PARTS:
        (folder / f"train.{part}").write_text(odd, encoding="utf-8")
        (folder / f"test.{part}").write_bytes(b"1\r\n\r\n\n2\r\n")
    preprocess(folder, tmp_path / "bin")
    for prefix, count in (("train.src-tgt", 3), ("test.src-tgt", 4)):
        for part in PARTS:
            assert len(MMapIndexedDataset(f"{tmp_path}/bin/{prefix}.{part}")) == count
    first = contents(tmp_path / "bin")
    assert all(".partial" not in name for name in first)
    assert ".partial" not in first["preprocess.log"].decode()
    assert "Wrote preprocessed data to " + str(tmp_path / "bin") in first["preprocess.log"].decode()

    refused(preprocess(folder, tmp_path / "bin", ok=False), "bin/dict.src.txt", "--srcdict")
    assert contents(tmp_path / "bin") == first

    dictionaries = ("--srcdict", tmp_path / "bin/dict.src.txt", "--joined-dictionary")
    preprocess(folder, tmp_path / "bin", *dictionaries, "--workers", 2)
    second = contents(tmp_path / "bin")
    assert second.keys() == first.keys()
    assert second["train.src-tgt.src.bin"] == first["train.src-tgt.src.bin"]
    assert second["preprocess.log"].startswith(first["preprocess.log"])


def test_preprocess_refuses_a_dictionary(tmp_path: Path, copy_data: Path):
    folder = copy_data.parent / "text"
    (tmp_path / "dict").write_text("1 10\ntwo\n")
    options = ("--srcdict", tmp_path / "dict", "--joined-dictionary")
    refused(preprocess(folder, tmp_path / "bin", *options, ok=False), "dict, line 2: `two` is not")
    options = ("--srcdict", tmp_path / "none", "--joined-dictionary")
    done = preprocess(folder, tmp_path / "bin", *options, ok=False)
    refused(done, "dictionary", "none does not exist")
    assert names(tmp_path) == ["dict"]


def test_preprocess_goes_on_where_it_was_killed_while_its_files_were_moved(tmp_path, copy_data):
    """The manifest comes first and dictionaries come last, of which one is missing."""
    folder = copy_data.parent / "text"
    complete = contents(copy_data)
    shutil.copytree(copy_data, tmp_path / "bin")
    (tmp_path / "bin" / "dict.tgt.txt").unlink()
    preprocess(folder, tmp_path / "bin")
    after = contents(tmp_path / "bin")
    assert after.pop("preprocess.log") != complete.pop("preprocess.log")
    assert after == complete


def on_full_disk(kilobytes: int, name: str, *arguments: object) -> CompletedProcess[str]:
    """Run a command that can write no file beyond that size; pipes take its output."""
    size = 1024 * kilobytes
    code = f"import resource as r; r.setrlimit(r.RLIMIT_FSIZE, ({size}, {size}))"
    words = after(code, f"fairseq-{name}", *arguments)
    done = subprocess.run(words, input="", capture_output=True, text=True)
    assert done.returncode > 0
    return done


@pytest.mark.parametrize("workers", [1, 2])
def test_preprocess_on_a_full_disk(tmp_path: Path, copy_data: Path, workers: int):
    """Neither a new folder nor earlier results suffer."""
    folder, destination = copy_data.parent / "text", tmp_path / "new" / "bin"
    dictionaries = ("--srcdict", destination / "dict.src.txt", "--joined-dictionary")
    if workers == 2:
        shutil.copytree(copy_data, destination)
    before = contents_below(tmp_path)
    done = on_full_disk(
        *(3, "preprocess", "--user-dir", USER_DIR, "--source-lang", "src", "--target-lang", "tgt"),
        *("--trainpref", folder / "train", "--destdir", destination),
        *("--workers", workers, *(dictionaries if workers == 2 else ())),
    )
    refused(done, destination, "Free some space")
    assert contents_below(tmp_path) == before


BAD_DATA = {
    "missing-folder": (shutil.rmtree, "data: No such file or directory. Check the path."),
    "missing-dictionary": (remove("dict.tgt.txt"), "data/dict.tgt.txt does"),
    "truncated-data": (
        lambda data: os.truncate(path := data / "train.src-tgt.src.bin", path.stat().st_size - 2),
        "train.src-tgt.src.bin is damaged",
    ),
    "missing-split": (remove("valid.src-tgt.src.idx"), "Dataset not found: valid ("),
    "text-alone": (
        remove("*.*-*.*"),
        "data has no binary data; give the `--destdir` of fairseq-preprocess, or, to translate "
        "text with a model, `--source-lang` and `--target-lang`.",
    ),
    "missing-target": (remove("train.src-tgt.tgt.*"), "no target side for the split `train`"),
}


@pytest.mark.parametrize("case", BAD_DATA)
def test_train_refuses_data(data: Path, case: str):
    damage, output = BAD_DATA[case]
    damage(data)
    before = contents_below(data.parent)
    options = ("--save-dir", data.parent / "new" / "save")
    refused(fairseq("train", data, *TINY, *options, ok=False), output)
    assert contents_below(data.parent) == before


def test_train_into_an_unwritable_or_full_folder(copy_data: Path, tmp_path: Path):
    (tmp_path / "file").write_text("mine")
    save = tmp_path / "file" / "save"
    refused(fairseq("train", copy_data, *TINY, "--save-dir", save, ok=False), save)
    full = tmp_path / "full"
    options = (copy_data, *TINY, "--save-dir", full, "--user-dir", USER_DIR)
    refused(on_full_disk(20, "train", *options), full, "checkpoint", "Free some space")
    assert contents(tmp_path) == {"file": b"mine"}


def test_a_log_on_a_full_disk(copy_data: Path, tmp_path: Path):
    """Training goes on, and says so once; logging would print a traceback for each line."""
    options = ("--save-dir", tmp_path, "--log-file", "/dev/full")
    output = fairseq("train", copy_data, *TINY, *options).stderr
    message = "fairseq-ext: the log /dev/full cannot be written: No space left on device."
    assert output.count(message) == 1
    assert "Logging error" not in output


def test_train_refuses_a_checkpoint_of_another_architecture(copy_data: Path, copy_model: Path):
    before = contents(copy_model.parent)
    options = (*TINY, "--arch", "lstm", "--save-dir", copy_model.parent)
    done = fairseq("train", copy_data, *options, ok=False)
    refused(done, f"from checkpoint {copy_model}; please ensure that the architectures match")
    assert contents(copy_model.parent) == before


def test_train_refuses_a_damaged_checkpoint(copy_data: Path, copy_model: Path, tmp_path: Path):
    shutil.copy(copy_model, tmp_path / "checkpoint_last.pt")
    flip(tmp_path / "checkpoint_last.pt")
    before = contents(tmp_path)
    done = fairseq("train", copy_data, *TINY, "--save-dir", tmp_path, ok=False)
    refused(done, f"{tmp_path}/checkpoint_last.pt is damaged")
    assert contents(tmp_path) == before


def _update(part: Callable[[dict], dict], **entries: object) -> Callable[[dict], None]:
    return lambda state: part(state).update(entries)


@pytest.mark.parametrize(
    ("damage", "output"),
    [
        (_update(lambda s: s["last_optimizer_state"]["state"][0], exp_avg=torch.zeros(3)), "[3]"),
        (_update(lambda s: s["last_optimizer_state"]["state"][0], step="x"), "not a number"),
        (_update(lambda s: s["last_optimizer_state"]["param_groups"][0], betas="()"), "`betas`"),
        (_update(lambda s: s["optimizer_history"][-1], num_updates="x"), "no number of updates"),
        (_update(lambda s: s["extra_state"], previous_training_time="x"), "no training time"),
        (_update(lambda s: s["extra_state"], early_stopping=5), "AttributeError"),
    ],
    ids=["moment", "step", "betas", "updates", "time", "early stopping"],
)
def test_train_goes_on_from_no_other_state(copy_data, copy_model, tmp_path, damage, output):
    """Parts that torch loads without a question, and that training would stumble over."""
    state = torch.load(copy_model, weights_only=True)
    damage(state)
    torch.save(state, tmp_path / "other.pt")
    options = ("--restore-file", tmp_path / "other.pt", "--save-dir", tmp_path / "save")
    done = fairseq("train", copy_data, *TINY, *options, "--max-update", 9, ok=False)
    refused(done, output)


def flip(path: Path) -> None:
    """Change a bit in the middle of a checkpoint, which torch itself does not notice."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    torch.load(path, weights_only=True)


def test_generate_leaves_earlier_results_alone(copy_data: Path, copy_model: Path, tmp_path: Path):
    results = tmp_path / "results"
    options = (copy_data, "--cpu", "--beam", 1, "--max-len-b", 5, "--results-path", results)
    fairseq("generate", *options, "--path", copy_model)
    before = contents(results)
    assert list(before) == ["generate-test.txt"]
    assert before["generate-test.txt"].count(b"\nH-") == 50
    bad = Path(shutil.copy(copy_model, tmp_path / "bad.pt"))
    flip(bad)
    refused(fairseq("generate", *options, "--path", bad, ok=False), bad, "is damaged: the checksum")
    os.truncate(bad, 9000)
    refused(fairseq("generate", *options, "--path", bad, ok=False), bad, "is truncated")
    assert contents(results) == before


def test_generate_with_a_changed_dictionary(data: Path, copy_model: Path):
    words = (data / "dict.tgt.txt").read_text().splitlines()
    write_lines(data / "dict.tgt.txt", words[::-1])
    done = fairseq("generate", data, "--path", copy_model, ok=False)
    refused(done, "dict.tgt.txt is damaged: its checksum", "data-manifest.json")


def test_eval_lm_with_another_dictionary(tmp_path: Path):
    """It has the same words in another order."""
    text = digits_corpus(tmp_path / "text", train=60, valid=10, test=1)
    words = ("preprocess", "--only-source", "--trainpref", text / "train.src")
    words = (*words, "--validpref", text / "valid.src", "--destdir")
    fairseq(*words, tmp_path / "bin")
    lines = (tmp_path / "bin" / "dict.txt").read_text().splitlines()
    write_lines(tmp_path / "dict.txt", [lines[1], lines[0], *lines[2:]])
    fairseq(*words, tmp_path / "other", "--srcdict", tmp_path / "dict.txt")
    size = ("--decoder-layers", 1, "--decoder-embed-dim", 8, "--decoder-attention-heads", 1)
    fairseq(
        *("train", tmp_path / "bin", "--task", "language_modeling", "--arch", "transformer_lm"),
        *(*size, "--decoder-ffn-embed-dim", 8, "--optimizer", "adam", "--batch-size", 1, "--cpu"),
        *("--max-update", 1, "--save-dir", tmp_path / "run"),
    )
    path = tmp_path / "run" / "checkpoint_last.pt"
    words = ("eval-lm", "--path", path, "--cpu", "--gen-subset", "valid")
    assert "Perplexity" in "".join(fairseq(*words, tmp_path / "bin").stdout)
    done = fairseq(*words, tmp_path / "other", ok=False)
    refused(done, f"{path} was trained with another source dictionary: in dict.txt of the data, ")


def test_interactive_refuses_input_that_is_missing_or_not_utf_8(copy_data, copy_model, tmp_path):
    options = (copy_data, "--path", copy_model, "--cpu", "--input", tmp_path / "none.txt")
    refused(fairseq("interactive", *options, ok=False), "none.txt does not exist")
    words = ("fairseq-interactive", *options[:-2], "--user-dir", USER_DIR)
    latin1 = f'printf "1 \\351\\n" | LC_ALL=C {BIN}/"$@"'
    refused(run("bash", "-c", latin1, "-", *words, ok=False), "the input is not UTF-8", "byte 0xe9")
