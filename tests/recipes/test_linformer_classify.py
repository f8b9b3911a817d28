"""The recipe for sentence classification: its checks, its figures, and two whole runs."""

import json
import random
import shutil
from pathlib import Path

import classify_data
import classify_scores
import pytest
from sklearn.metrics import accuracy_score, precision_recall_fscore_support

from fairseq_ext.utils.errors import DataError
from tests.support.harness import REPO, write_lines
from tests.support.recipes import bash

FOLDER = REPO / "recipes" / "linformer"
RECIPE = FOLDER / "classify.sh"


def corpus(folder: Path, **other: list[str]) -> Path:
    """Write three sentences a split; ``train_label`` and so on replace the lines of a file."""
    for split in classify_data.SPLITS:
        write_lines(folder / f"{split}.text", other.get(f"{split}_text", ["a b", "c d", "e"]))
        write_lines(folder / f"{split}.label", other.get(f"{split}_label", ["x", "y", "x"]))
    return folder


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"valid_label": ["x"]}, r"valid\.text has 3 lines but .*valid\.label has 1"),
        ({"train_label": ["x", "", "y"]}, r"train\.label, line 2: empty"),
        ({"test_text": ["a", "b", " "]}, r"test\.text, line 3: empty"),
        ({"test_label": ["x", "y", "z"]}, r"test\.label, line 3: the label `z` does not .* x, y\."),
        ({"valid_label": ["new", "y", "x"]}, r"valid\.label, line 1: the label `new` does not"),
        ({"train_label": ["x", "sci fi", "y"]}, r"train\.label, line 2: the label `sci fi` must"),
        ({"train_label": ["x", "y", "<unk>"]}, r"train\.label, line 3: .* not be `<unk>`"),
        ({"train_label": ["x"] * 3}, r"train\.label must have at least two .* only `x`"),
        ({"train_text": ["a", "b\rb", "c"]}, r"train\.text, line 2: carriage return"),
    ],
)
def test_a_corpus_that_cannot_work_is_refused(tmp_path, wrong, message):
    with pytest.raises(DataError, match=message):
        classify_data.read_corpus(corpus(tmp_path, **wrong))


def test_missing_files_are_listed(tmp_path: Path) -> None:
    folder = corpus(tmp_path)
    (folder / "valid.text").unlink()
    (folder / "test.label").unlink()
    with pytest.raises(DataError, match=r"lacks valid\.text, test\.label\.$"):
        classify_data.read_corpus(folder)


def test_a_corpus_is_copied_line_by_line(tmp_path: Path) -> None:
    text = ["Hi,\u0085 you", "It's\u2028so", "Grüße "]
    folder = corpus(tmp_path / "data", train_text=text, train_label=[" x", "y\r", "x "])
    classify_data.write_corpus(classify_data.read_corpus(folder), tmp_path / "copy")
    copied = (tmp_path / "copy" / "train.text").read_text(encoding="utf-8")
    assert copied == "".join(f"{line}\n" for line in text)
    assert (tmp_path / "copy" / "train.label").read_text() == "x\ny\nx\n"
    assert len(list((tmp_path / "copy").iterdir())) == 6


def test_marks_are_the_classes_of_a_translation_corpus(tmp_path: Path) -> None:
    lines = ["¿Qué sabes?", "Ve.", "Ve!", "¡Corre !", "Sí. No.", "…", "Dice: «¿Sí?»", "Sin punto"]
    write_lines(tmp_path / "train.es", lines)
    write_lines(tmp_path / "valid.es", ["¿Ve?", "Hola, Tom."])
    write_lines(tmp_path / "test.es", ["Hola, Tom!", "¡ Qué día!"])
    assert classify_data.read_marks(tmp_path, "es") == {
        "train": (["Qué sabes", "Ve", "Corre"], ["question", "statement", "exclamation"]),
        "valid": (["Hola, Tom"], ["statement"]),
        "test": (["Qué día"], ["exclamation"]),
    }


@pytest.mark.parametrize(
    ("test", "message"),
    [
        (["Sin punto"], r"test\.es` must have sentences that end in \. \? or !, but has none"),
        (["¡Ya!"], r"test\.label, line 1: the label `exclamation` does not occur"),
        ([""], r"test\.es, line 1: empty"),
        (None, r"test\.es` must be a file with sentences of `es`, but is none"),
    ],
)
def test_marks_that_cannot_work_are_refused(tmp_path, test, message):
    for split, lines in {"train": ["Ve.", "¿Sí?"], "valid": ["Va."], "test": test}.items():
        if lines is not None:
            write_lines(tmp_path / f"{split}.es", lines)
    with pytest.raises(DataError, match=message):
        classify_data.read_marks(tmp_path, "es")


def test_figures_are_those_of_sklearn() -> None:
    generator = random.Random(3)
    truth = [generator.choice("aaabbc") for _ in range(97)]
    guesses = [generator.choice("abd") for _ in truth]  # c is never guessed, d does not exist
    figures = classify_scores.score(truth, guesses)
    expected = precision_recall_fscore_support(truth, guesses, zero_division=0)
    assert [figures["classes"][label]["lines"] for label in "abcd"] == list(expected[3])
    assert figures["macro_f1"] == pytest.approx(100 * expected[2].mean())
    assert figures["accuracy"] == pytest.approx(100 * accuracy_score(truth, guesses))
    assert figures["largest_class"] == pytest.approx(100 * truth.count("a") / 97)


def test_the_interval_is_wilsons() -> None:
    """81 of 263 is the example of Newcombe (1998), Table I, method 3."""
    figures = classify_scores.score(["a"] * 263, ["a"] * 81 + ["b"] * 182)
    assert figures["interval"] == pytest.approx((25.53, 36.62), abs=0.005)


def test_a_dry_run_prints_every_command_and_does_nothing(tmp_path: Path) -> None:
    data = corpus(tmp_path / "data")
    options = (data, "--out", tmp_path / "new", "--arch", "transformer_encoder", "--", "--lr", "1")
    output = bash(RECIPE, *options, DRY_RUN="1").stderr
    commands = [line for line in output.splitlines() if line.startswith("+ fairseq-")]
    assert [line.split()[1] for line in commands] == [
        *("fairseq-preprocess", "fairseq-preprocess", "fairseq-train")
    ]
    assert commands[2].endswith("--lr 1")
    assert "--linformer" not in commands[2]
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


@pytest.mark.system
@pytest.mark.slow
def test_from_lines_and_labels_to_a_table_and_beside_the_exact_twin(tmp_path: Path) -> None:
    linformer, exact = tmp_path / "linformer", tmp_path / "exact"
    output = bash(RECIPE, "--out", linformer).stdout
    results = json.loads((linformer / "results.json").read_text())
    guesses = (linformer / "predicted.label").read_text().splitlines()
    truth = (linformer / "text" / "test.label").read_text().splitlines()
    assert len(guesses) == len(truth) > 190  # of 200 sentences: some are left out, see read_marks
    assert results["accuracy"] == pytest.approx(100 * accuracy_score(truth, guesses))
    assert results["accuracy"] > 90
    assert f"accuracy       {results['accuracy']:.2f} " in output
    assert output.splitlines()[-1].startswith(f"Everything is in {linformer}")
    assert "train: done before" in bash(RECIPE, "--out", linformer).stderr

    # the same sentences as a user's own, cut to a few words so that some do not fit
    options = ("--arch", "transformer_encoder_tiny", "--words", "--max-len", "4", "--out", exact)
    bash(RECIPE, linformer / "text", *options, "--max-epoch", "2", SMOKE="0")
    table = bash("-c", f'python "{FOLDER}/classify_scores.py" compare "{linformer}" "{exact}"')
    assert [line.split()[0] for line in table.stdout.splitlines()] == ["run", "linformer", "exact"]

    # a report whose predictions are not those of the model is refused
    shutil.copytree(exact, tmp_path / "other")
    script = f'python "{FOLDER}/classify_scores.py" report --dir "{tmp_path}/other" --title t'
    write_lines(tmp_path / "other" / "predicted.label", ["statement"])
    assert "must have a line for each of" in bash("-c", script, ok=False).stderr
