"""Shards of a set for `fairseq-generate`, and shards of data by ``fairseq-ext binarize``."""

import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fairseq.data.indexed_dataset import MMapIndexedDataset

from fairseq_ext.data_folder.indexed import check
from fairseq_ext.plugin.repairs.generation import require_shard
from fairseq_ext.utils.errors import ConfigError
from tests.support import harness
from tests.support.harness import binarize, command, digits_corpus, error_line, fairseq, refused
from tests.support.killed import die_in_command
from tests.support.trainings import train

SENTENCE = re.compile(r"[STHDP]-\d+\t")


def lines(output: str) -> list[str]:
    """What was printed on sentences: sources, hypotheses, scores."""
    return [line for line in output.splitlines() if SENTENCE.match(line)]


@pytest.fixture(scope="module")
def generate(copy_data: Path, copy_model: Path) -> tuple[object, ...]:
    """Three batches, of 24 sentences each but the last."""
    return ("generate", copy_data, "--path", copy_model, "--cpu", "--batch-size", 24, "--beam", 2)


def test_the_shards_are_the_whole_set(generate, copy_data, tmp_path):
    """With the same scores to the last digit; one of four shards has no batch."""
    complete = fairseq(*generate).stdout
    whole = tmp_path / "whole.txt"
    whole.write_text(complete, encoding="utf-8")
    files = [tmp_path / "out" / f"generate-test.{shard}-of-4.txt" for shard in range(4)]
    shards = []
    for shard, path in enumerate(files):
        options = ("--num-shards", 4, "--shard-id", shard, "--results-path", tmp_path / "out")
        done = fairseq(*generate, *options)
        shards.append(lines(path.read_text(encoding="utf-8")))
        assert (f"shard {shard} of 4 has no sentences" in done.stderr) == (shard == 3)
    assert sorted((tmp_path / "out").iterdir()) == files
    assert sorted(line for shard in shards for line in shard) == sorted(lines(complete))
    assert len(lines(complete)) == 50 * 5
    assert [bool(shard) for shard in shards] == [True, True, True, False]
    for name, paths in (("together", reversed(files)), ("at-once", [whole])):
        command("hypotheses", *paths, "--expected", 50, "-o", tmp_path / name)
    assert (tmp_path / "together").read_bytes() == (tmp_path / "at-once").read_bytes()
    assert (tmp_path / "together").read_bytes().count(b"\n") == 50
    score = ("score", "--ref", copy_data.parent / "text" / "test.tgt", "--generated")
    together = command(*score, *files)
    assert together.count("BLEU") >= 2
    assert together == command(*score, whole)
    assert "lacks" in error_line(*score, files[0])
    twice = "occurs twice; give the output of one run, each shard of it once"
    assert twice in error_line(*score, files[0], *files)


@pytest.mark.parametrize(
    ("count", "shard", "output"),
    [
        (2, -1, r"`--shard-id` must be at least 0 and less than `--num-shards` \(2\), but is -1"),
        (1, 1, r"less than `--num-shards` \(1\), but is 1"),
        (0, 0, r"less than `--num-shards` \(0\), but is 0"),
    ],
)
def test_shards_that_there_are_not_are_refused(count: int, shard: int, output: str) -> None:
    with pytest.raises(ConfigError, match=output):
        require_shard(count, shard)


def test_commands_refuse_shards(generate: tuple[object, ...], tmp_path: Path) -> None:
    shards, out = ("--num-shards", 2), tmp_path / "out"
    done = fairseq(*generate, *shards, "--shard-id", 2, "--results-path", out, ok=False)
    refused(done, "less than `--num-shards` (2), but is 2")
    done = fairseq(*generate, *shards, "--distributed-world-size", 2, ok=False)
    refused(done, "both split the set; leave one out")
    done = fairseq("interactive", *generate[1:], *shards, ok=False, stdin="1 2\n")
    refused(done, "`--num-shards` is for fairseq-generate; leave it out")
    assert not out.exists()


# ``fairseq-ext binarize``: shards with one dictionary, and a training that opens one an epoch
LANGS = ("--src", "src", "--tgt", "tgt")


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return digits_corpus(tmp_path_factory.mktemp("text"), train=100, valid=10, test=10)


@pytest.fixture(scope="module")
def forks() -> Iterator[None]:
    """Let fairseq-preprocess, which our command runs by ``python -m``, be a fork."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", harness.forked("python"))
        yield


@pytest.fixture(scope="module")
def shards(text: Path, forks: None, tmp_path_factory) -> tuple[Path, str]:
    """The folder of three shards, begun by a killed worker, and the argument of fairseq-train."""
    out = tmp_path_factory.mktemp("data") / "bin"
    words = ("binarize", str(text), *LANGS, "--shards", "3", "-o", str(out))
    die_in_command(6, out.parent, *words)
    (out / "000").mkdir(exist_ok=True)
    (out / "000" / "dict.src.txt").write_text("of a killed worker")
    return out, command(*words).strip()


def pairs(folder: Path, split: str = "train") -> list[tuple[list[int], list[int]]]:
    sides = []
    for side in ("src", "tgt"):
        prefix = folder / f"{split}.src-tgt.{side}"
        check(prefix, None, contents=True)
        sides.append([sentence.tolist() for sentence in MMapIndexedDataset(str(prefix))])
    return [*zip(*sides, strict=True)]


def test_together_they_are_the_whole(shards: tuple[Path, str], text: Path, tmp_path: Path) -> None:
    out, argument = shards
    folders = [out / f"{number:03d}" for number in range(3)]
    assert argument == ":".join(map(str, folders))
    assert [path for path in sorted(out.iterdir()) if path.is_dir()] == folders
    unsharded = binarize(text, tmp_path / "whole")
    for side in ("src", "tgt"):
        expected = (unsharded / f"dict.{side}.txt").read_bytes()
        assert all((folder / f"dict.{side}.txt").read_bytes() == expected for folder in folders)
    expected = pairs(unsharded)
    assert [pairs(folder) for folder in folders] == [expected[number::3] for number in range(3)]
    assert pairs(folders[0], "valid") == pairs(unsharded, "valid")
    assert not [*folders[1].glob("valid*")]


def test_each_epoch_opens_the_next_shard(shards, text, tmp_path):
    """Epochs of 34, 33, 33 and again 34 pairs, also where a training goes on."""
    _, argument = shards
    words = (argument, tmp_path, "--arch", "gru_tiny", "--batch-size", 1, "--max-epoch")
    output = train(*words, 2).stdout + train(*words, 4).stdout
    ends = [int(number) for number in re.findall(r"\| train \| .*num_updates (\d+)", output)]
    assert ends == [34, 67, 100, 134]
    model = tmp_path / "checkpoint_last.pt"
    lines = fairseq("generate", argument, "--path", model, "--cpu", "--beam", 1).stdout
    assert len(re.findall(r"^H-", lines, re.MULTILINE)) == 10
    translations = command("translate", "--path", model, "--input", text / "test.src")
    assert translations.count("\n") == 10


def test_what_cannot_be(shards: tuple[Path, str], text: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    fault = "fairseq-preprocess: argument --thresholdsrc: invalid int value: 'no'"
    for options, message in (
        (f"--shards 4 -o {shards[0]}", "`shards` was `3` and not `4`. Choose another"),
        ("--shards 101 -o a", "than 101 shards; give a smaller `--shards`."),
        ("--shards 401 -o b", "`--shards` must be from 1 to 400, but is 401"),
        ("--shards 2 -o d --flags=--srcdict", "`--srcdict` is set by this command; leave it out."),
        ("--shards 2 -o g '--flags=--thresholdsrc no'", fault),
    ):
        assert message in error_line("binarize", text, *LANGS, *shlex.split(options))
    words = ("binarize", text, *LANGS, "--shards", 2, "-o", "d")
    assert command(*words) == "d/000:d/001\n"
    line = error_line(*words, "--flags=--joined-dictionary")
    assert "`flags 1` was unset and not `--joined-dictionary`." in line
    other = Path(shutil.copytree(text, tmp_path / "text"))
    words = ("binarize", other, *LANGS, "--shards", 2, "-o", "e")
    (other / "train.tgt").write_text("1\n")
    fault = f"train.src has 100 lines but {other}/train.tgt has 1. Line n of one must be"
    assert fault in error_line(*words)
    shutil.copy(text / "train.tgt", other)
    with (other / "train.tgt").open("a") as file:
        file.write("1")  # a 101st line, that no line feed ends
    assert "train.tgt has 101." in error_line(*words)
    assert {path.name for path in tmp_path.iterdir()} == {"d", "g", "text"}
