"""``fairseq-ext bundle``, and commands that take its folder where they take a checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairseq_ext.evaluation import outputs
from tests.support.harness import fairseq, run

LINES = "1 2 3\n4 5\n9 9 9 9\n0 8\n"


@pytest.fixture(scope="module")
def bundled(copy_data: Path, copy_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundled") / "copying"
    done = run("fairseq-ext", "bundle", copy_model, "--data", copy_data, "-o", folder)
    assert f"{folder}: gru_tiny, src to tgt, fp32" in done.stdout
    return folder


@pytest.mark.system
def test_fairseqs_commands_take_it(
    copy_data: Path, copy_model: Path, bundled: Path, tmp_path: Path
):
    """As DATA too, since the dictionaries are in it."""
    found = []
    for number, path in enumerate((copy_model, bundled)):
        said = fairseq("generate", copy_data, "--path", path, "--beam", "2").stdout
        (tmp_path / str(number)).write_text(said, encoding="utf-8")
        found.append(outputs.read_generated(tmp_path / str(number)))
    assert found[0] == found[1]
    words = ("--source-lang", "src", "--target-lang", "tgt", "--path", bundled)
    said = fairseq("interactive", bundled, *words, stdin=LINES).stdout
    theirs = [line.split("\t")[2] for line in said.splitlines() if line.startswith("H-")]
    ours = run("fairseq-ext", "translate", "--path", bundled, stdin=LINES).stdout
    assert ours.splitlines() == theirs


@pytest.mark.system
def test_a_training_starts_from_it(copy_data: Path, bundled: Path, tmp_path: Path):
    flags = ("--arch", "gru_tiny", "--optimizer", "adam", "--max-tokens", "600")
    more = ("--max-update", "1", "--disable-validation", "--save-dir", tmp_path / "run")
    start = ("--finetune-from-model", bundled)
    taught = ("--criterion", "distillation", "--teacher", bundled)
    said = fairseq("train", copy_data, *flags, *more, *start, *taught)
    assert "loading pretrained model from" in said.stdout + said.stderr
    assert (tmp_path / "run" / "checkpoint_last.pt").is_file()


def test_one_line_where_it_cannot_be(copy_model: Path, bundled: Path, tmp_path: Path):
    done = run("fairseq-ext", "bundle", copy_model, "-o", bundled, ok=False)
    assert "is there already; choose another name for the bundle" in done.stderr
    assert done.stderr.count("\n") == 1
    done = run("fairseq-ext", "translate", "--path", tmp_path, ok=False, stdin=LINES)
    assert "is a folder without a model" in done.stderr
