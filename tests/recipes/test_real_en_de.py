"""The recipe that trains all systems for the same number of updates, and its corpus."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import real_text

from fairseq_ext.utils.errors import DataError
from tests.support.harness import write_lines
from tests.support.recipes import RECIPES, dry_run, settings, trainings, value

RECIPE = RECIPES / "real_en_de.sh"


def test_every_training_has_the_same_updates_and_ends_flat(tmp_path: Path) -> None:
    word_lists = dry_run(
        RECIPE, tmp_path, "--corpus", "multi30k", "--updates", 3000, "gru@2", "bmt-1"
    )
    models = trainings(word_lists)
    assert list(models) == [
        *("models/gru/rate-0.004", "models/gru@2/rate-0.004"),
        *("models/bmt/rate-0.004", "models/bmt-1/rate-0.001"),
    ]
    for words in models.values():
        cfg = settings(words)
        assert cfg.lr_scheduler.warmup_updates + cfg.lr_scheduler.lr_period_updates == 3000
        assert cfg.checkpoint.patience == -1
        assert cfg.checkpoint.no_epoch_checkpoints
    assert value(models["models/gru@2/rate-0.004"], "--max-update") == "3000"


def test_each_system_tries_rates_on_the_real_corpus(tmp_path: Path) -> None:
    folders = list(trainings(dry_run(RECIPE, tmp_path, "transformer", "transformer@2", "gru")))
    assert sorted(set(folders)) == [
        *(f"models/gru/rate-{rate}" for rate in ("0.001", "0.002", "0.004")),
        *(f"models/transformer/rate-{rate}" for rate in ("0.0005", "0.001", "0.002")),
        "models/transformer@2/rate-0.0005",  # in a dry run, the first
    ]


def test_the_groups_are_seeds(tmp_path: Path) -> None:
    models = trainings(dry_run(RECIPE, tmp_path))
    seeds: dict[str, set[str]] = {}
    for folder in models:
        system, _, seed = folder.split("/")[1].partition("@")
        seeds.setdefault(system, set()).add(seed or "1")
    assert {system: len(numbers) for system, numbers in seeds.items()} == {
        system: 5 if system in ("transformer", "muse") else 3 for system in seeds
    }
    assert {"lightconv", "dynamicconv", "transformer-12-1", "linformer-8", "binary"} < set(seeds)


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(real_text, "KNOWN", {})
    folder = tmp_path / "texts"
    for language in ("en", "de"):
        for name, size in (("newstest2012", 40), ("newstest2013", 20), ("newstest2014", 9)):
            lines = [f"{name} {language} news sentence number {n}" for n in range(size)]
            write_lines(folder / f"{name}.{language}", lines)
        # one caption of the training text is in a test
        write_lines(folder / f"train.raw.{language}", [f"a {language} dog", f"a {language} cat"])
        write_lines(folder / f"test_2016_flickr.raw.{language}", [f"a {language} dog"])
        write_lines(folder / f"val.raw.{language}", [f"a {language} bird"])
        for page in range(60):
            text = "".join(f'<p id="par_{n}">{language} {page} {n}</p>' for n in range(3))
            text += f'<p id="par_9">{language} b c d e f g {page}</p>'
            path = folder / "help" / {"en": "en-US", "de": "de"}[language] / "text" / f"{page}.html"
            write_lines(path, [text])
    return folder


def test_the_corpus_holds_out_pages_and_what_the_tests_have(texts: Path, tmp_path: Path) -> None:
    real_text.prepare(texts, tmp_path / "out", 60)
    record = json.loads((tmp_path / "out" / "sources.json").read_text(encoding="utf-8"))
    numbers = {part["name"]: (part["split"], part["pairs"]) for part in record}
    assert numbers["newstest2012"] == ("train", 40)
    assert numbers["newstest2013-train"] == ("train", 10)
    assert numbers["newstest2013-valid"] == ("valid", 10)
    assert numbers["val"] == ("valid", 1)
    assert numbers["newstest2014"] == ("test", 9)
    assert numbers["train"] == ("train", 1)
    removed = {part["name"]: part["left out: in another split"] for part in record}
    assert numbers["help"][1] + numbers["test_help"][1] + removed["test_help"] == 240
    assert numbers["test_help"][1] == 3 * removed["test_help"]  # one of four is a near-duplicate
    assert numbers["test_help"][1] % 3 == 0 < numbers["test_help"][1]
    for split in ("test", "test_help", "test_captions"):
        for folder in ("text", "bpe", "reference"):
            assert (tmp_path / "out" / folder / f"{split}.de").exists()
    real_text.prepare(texts, tmp_path / "out", 60)  # once more: all is there
    (texts / "newstest2012.en").unlink()
    (texts / "newstest2012.de").unlink()
    with pytest.raises(DataError, match="has a corpus of other texts"):
        real_text.prepare(texts, tmp_path / "out", 60)
    assert all(part["licence"] and part["sha256"] and part["domain"] for part in record)


def test_texts_that_are_missing_or_changed_are_named(texts: Path, tmp_path: Path) -> None:
    (texts / "newstest2014.de").unlink()
    with pytest.raises(DataError, match=r"`newstest2014` in .* both sides must be there"):
        real_text.prepare(texts, tmp_path / "out", 60)
    (texts / "newstest2014.en").unlink()
    with pytest.raises(DataError, match="nothing for `test`"):
        real_text.prepare(texts, tmp_path / "out", 60)
    command = [sys.executable, real_text.__file__, "--from", texts, "--out", tmp_path / "out"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "is not the text that this recipe knows" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "out").exists()
