"""Back-translation and sequence-level distillation: what they would do, and whole runs."""

import json
from pathlib import Path

import pytest

from tests.support.harness import run, write_lines
from tests.support.recipes import RECIPES, bash, dry_run

BACK = RECIPES / "back_translation.sh"
DISTIL = RECIPES / "sequence_distillation.sh"


@pytest.mark.parametrize(
    ("method", "search"),
    [
        ("beam", ["--beam", "5"]),
        ("sampling", ["--sampling"]),
        ("top10", ["--sampling", "--sampling-topk", "10"]),
    ],
)
def test_back_translation(tmp_path: Path, method: str, search: list[str]) -> None:
    shown = dry_run(BACK, tmp_path, "--method", method, "--updates", 3000)
    reverse, baseline, augmented = shown.calls("fairseq-train")
    updates = ("--source-lang", "--max-update", "--save-interval-updates")
    assert reverse.values(*updates[:2], "--target-lang") == ["de", "3000", "en"]
    assert baseline == augmented  # but for the folder
    assert baseline.values(*updates) == ["en", "3000", "75"]  # 10 of them in the last quarter
    assert baseline.value("--keep-interval-updates") == "10"
    averages = shown.calls("fairseq-ext", "average")
    assert [words.value("--last-updates") for words in averages] == ["10", "10", "10"]
    trained = [words.value("--trainpref") for words in shown.calls("fairseq-preprocess")]
    assert trained == ["../parallel/train", "../parallel/train", "../mixed/train"]
    (translated,) = shown.calls("fairseq-ext", "translate")
    assert translated[-len(search) :] == search
    assert translated.value("--path") == "reverse/checkpoints/average.pt"
    (mixed,) = shown.calls("fairseq-ext", "corpus", "mix")
    texts = ["<BT>", "synthetic.txt", "mono.txt"]
    assert mixed.values("--tag", "--source", "--target") == texts


def test_distillation(tmp_path: Path) -> None:
    shown = dry_run(DISTIL, tmp_path, "--", "--seed", 7)
    teacher, baseline, student = shown.calls("fairseq-train")
    assert baseline == student  # but for the folder
    assert teacher.count("--decoder-layers") == 1
    assert student[-2:] == ["--seed", "7"]
    assert student.value("--decoder-layers") == "1"
    (mixed,) = shown.calls("fairseq-ext", "corpus", "mix")
    assert mixed.values("--source", "--copies") == ["sources.txt", "0"]


@pytest.mark.parametrize(("recipe", "option"), [(BACK, "--reverse"), (DISTIL, "--teacher")])
def test_a_model_that_there_is(recipe: Path, option: str, tmp_path: Path) -> None:
    (tmp_path / "bundle").mkdir()
    shown = dry_run(recipe, tmp_path, option, tmp_path / "bundle")
    assert len(shown.calls("fairseq-train")) == len(shown.calls("fairseq-ext", "average")) == 2
    (translated,) = shown.calls("fairseq-ext", "translate")
    assert translated.value("--model") == str(tmp_path / "bundle")
    assert "--path" not in translated
    (compared,) = shown.calls("fairseq-ext", "compare")
    assert compared.count("--system") == 2


def test_other_text_is_checked_before_a_training(tmp_path: Path) -> None:
    text = write_lines(tmp_path / "text", ["eins"])
    shown = dry_run(BACK, tmp_path, "--mono", text, "--pairs", 5)
    written = shown.calls("fairseq-ext", "corpus", "monolingual")[0]
    assert written.value("--text") == str(text)
    assert "--skip" not in written
    assert shown.index(written) < shown.index(shown.calls("fairseq-train")[0])


def test_your_own_pairs_are_the_corpus(tmp_path: Path) -> None:
    shown = dry_run(BACK, tmp_path / "out", "--corpus", tmp_path, "--src", "es", "--tgt", "en")
    (prepared,) = shown.calls("fairseq-ext", "prepare")
    assert prepared.value("--data") == str(tmp_path)
    (subwords,) = shown.calls("fairseq-ext", "subwords")
    assert subwords.value("--size") == "8000"
    assert shown.calls("fairseq-train")[1].value("--source-lang") == "es"


@pytest.mark.parametrize(
    ("epochs", "done"), [(0, "cp"), (1, "cp"), (3, "--last-epochs 3"), (12, "--last-epochs 10")]
)
def test_a_short_training_is_averaged_too(epochs: int, done: str, tmp_path: Path) -> None:
    for name in ("_best", "_last", *range(1, epochs + 1)):
        write_lines(tmp_path / "checkpoints" / f"checkpoint{name}.pt", [])
    script = f"""source {RECIPES}/official.sh
        fairseq-ext() {{ :; }}
        average=10
        average_checkpoints"""
    output = run("bash", "-c", script, cwd=tmp_path).stderr
    assert done in output
    assert ("the training had" in output) == (epochs < 10)


@pytest.mark.long
def test_back_translation_runs_to_its_end(tmp_path: Path) -> None:
    mono = write_lines(tmp_path / "mono", [f"das ist nummer {n} ." for n in range(120)])
    run = tmp_path / "run"
    words = (BACK, "--out", run, "--method", "top10", "--mono", mono)
    bash(*words)
    assert len((run / "synthetic.txt").read_text().splitlines()) == 120
    report = json.loads((run / "mixed" / "synthetic.json").read_text())
    assert report["read"] == 120
    mixed = (run / "mixed" / "train.en").read_text().splitlines()
    tagged = [line for line in mixed if "<BT>" in line]
    assert len(tagged) == report["fates"]["kept"][0]
    assert "<BT> " in (run / "augmented" / "bin" / "dict.en.txt").read_text()
    systems = json.loads((run / "compare.json").read_bytes())["systems"]
    assert {system["name"] for system in systems} == {"baseline", "augmented"}


@pytest.mark.long
def test_distillation_runs_to_its_end(tmp_path: Path) -> None:
    run = tmp_path / "run"
    bash(DISTIL, "--out", run, "--ratio", 9)
    sources = (run / "sources.txt").read_text().splitlines()
    assert len(sources) == len((run / "synthetic.txt").read_text().splitlines())
    pair_count = json.loads((run / "mixed" / "synthetic.json").read_text())["fates"]["kept"][0]
    assert len((run / "mixed" / "train.de").read_text().splitlines()) == pair_count
    assert (run / "compare.md").exists()
