"""Each command reads a checkpoint once: one unpickling, one comparison of checksums."""

import re
import shutil
from pathlib import Path

from tests.support.harness import REPO, USER_DIR, after, run
from tests.support.trainings import ARCHITECTURES, TRAINING

COUNTING = """
import atexit, zipfile
import torch
counts = {"unpickled": 0, "compared": 0}

def counted(name, function):
    def call(*arguments, **options):
        counts[name] += 1
        return function(*arguments, **options)
    return call

torch.load = counted("unpickled", torch.load)
zipfile.ZipFile.testzip = counted("compared", zipfile.ZipFile.testzip)
atexit.register(lambda: print("COUNTS", *counts.values(), file=sys.stderr))
"""


def reads(name: str, *arguments: object, **options: object) -> list[tuple[str, str]]:
    """How often a command unpickles and how often it compares checksums, in each process."""
    done = run(*after(COUNTING, name, *arguments), **options)
    return re.findall(r"^COUNTS (\d+) (\d+)$", done.stderr, re.MULTILINE)


def test_translate(copy_data: Path, copy_model: Path) -> None:
    options = (copy_data, "--path", copy_model, "--engine", "fairseq")
    assert reads("fairseq-ext", "translate", *options, stdin="1 2 3\n") == [("1", "1")]


def test_generate_by_an_ensemble(copy_data: Path, copy_model: Path, tmp_path: Path) -> None:
    other = shutil.copy(copy_model, tmp_path / "other.pt")
    options = ("--path", f"{copy_model}:{other}", "--cpu", "--user-dir", USER_DIR)
    assert reads("fairseq-generate", copy_data, *options, cwd=REPO) == [("2", "2")]


def test_validate(copy_data: Path, copy_model: Path) -> None:
    options = ("--task", "translation", "--max-tokens", 400, "--cpu", "--user-dir", USER_DIR)
    assert reads("fairseq-validate", copy_data, "--path", copy_model, *options) == [("1", "1")]


def test_resume(copy_data: Path, tmp_path: Path) -> None:
    options = (*ARCHITECTURES["lstm"], *TRAINING, "--save-dir", tmp_path, "--user-dir", USER_DIR)
    run("fairseq-train", copy_data, *options, "--max-update", 1)
    assert reads("fairseq-train", copy_data, *options, "--max-update", 2) == [("1", "1")]


def test_average(copy_model: Path, tmp_path: Path) -> None:
    other = shutil.copy(copy_model, tmp_path / "other.pt")
    options = ("--inputs", copy_model, other, "--output", tmp_path / "mean.pt")
    assert reads("fairseq-ext", "average", *options) == [("2", "2")]
