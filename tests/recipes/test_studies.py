"""The recipe of the studies: which part of an architecture makes the difference."""

import json
from pathlib import Path

import pytest

from tests.support.harness import run
from tests.support.recipes import RECIPES, bash, commands, settings, trainings, value

STUDIES = RECIPES / "studies.sh"
SYSTEMS = {
    "bmt": [
        *("transformer", "pre-norm", "pre-norm-rate-0.004", "pre-norm-rate-0.008", "bmt-plain"),
        *("bmt", "bmt-rate-0.001", "bmt-rate-0.004", "bmt-rate-0.008"),
        "bmt-dropout",
        *("bmt-1-0.2", "bmt-1-0.1", "bmt-1-0"),
    ],
    "linformer-slots": [
        "transformer",
        *(f"slots-{k}{start}" for start in ("", "-normal") for k in (32, 16, 8, 4)),
        *("slots-8-mean-pool", "slots-8-convolution"),
    ],
    "muse-rows": [
        *("muse", "simple", "ordinary-3", "ordinary-5", "ordinary-7", "separate"),
        *("kernel-3", "kernel-7", "kernel-15", "kernel-31", "growing"),
    ],
}


def dry_run(*words: object) -> dict[str, list[str]]:
    """Return the words of fairseq-train by system."""
    models = trainings(commands(bash(STUDIES, *words, DRY_RUN="1").stderr))
    return {folder.removeprefix("models/"): words for folder, words in models.items()}


@pytest.mark.parametrize("study", SYSTEMS)
def test_every_system_is_one_that_fairseq_takes_and_ends_with_rate_zero(study: str) -> None:
    models = dry_run(study, "my", "es", "en", "--updates", 500, "--", "--dropout", "0.3")
    assert list(models) == SYSTEMS[study]
    for words in models.values():
        cfg = settings(words)
        schedule = cfg.lr_scheduler
        assert schedule._name == "cosine"
        assert schedule.warmup_updates + schedule.lr_period_updates == 500
        assert cfg.optimization.max_update == 500
        assert cfg.model.dropout == 0.3  # what comes after -- wins
        assert cfg.model.share_all_embeddings


def test_flags_that_would_fall_apart_are_refused(tmp_path: Path) -> None:
    words = ("muse-rows", "my", "es", "en", "muse", "--", "--adam-betas")
    done = bash(STUDIES, *words, "(0.9, 0.999)", ok=False, DRY_RUN="1")
    assert "`(0.9, 0.999)` contains white space; write such values without" in done.stderr
    assert "(0.9,0.999)" in dry_run(*words, "(0.9,0.999)")["muse"]


def test_float_bmt_without_dropout_differs_in_the_dropout_alone() -> None:
    systems = dry_run("bmt", "my", "es", "en")
    models = {name: settings(words) for name, words in systems.items()}
    with_dropout, without = (dict(models[name].model) for name in ("bmt-dropout", "bmt"))
    differing = {key for key in with_dropout if with_dropout[key] != without[key]}
    assert {key for key in differing if "dropout" not in key} == set()
    assert (without["attention_dropout"], without["activation_dropout"]) == (0, 0)


def test_slots_with_another_start_differ_in_the_start_alone() -> None:
    systems = dry_run("linformer-slots", "my", "es", "en", "slots-4", "slots-4-normal")
    models = [dict(settings(words).model) for words in systems.values()]
    differing = {key for key in models[0] if models[0][key] != models[1][key]}
    assert differing == {"linformer_init"}
    assert [model["linformer_init"] for model in models] == ["identity", "normal"]


def test_a_distilled_system_has_no_label_smoothing() -> None:
    models = dry_run("bmt", "my", "es", "en", "bmt-1-0")
    assert list(models) == ["bmt-1-0"]
    words = models["bmt-1-0"]
    assert value(words, "--criterion") == "distillation"
    assert "--label-smoothing" not in words
    assert value(words, "--dropout") == "0"


@pytest.mark.system
@pytest.mark.long
def test_a_study_from_text_to_its_table(tmp_path: Path) -> None:
    text, out = tmp_path / "text", tmp_path / "out"
    run("fairseq-ext", "corpus", "tatoeba", "--sample", "300,30,30", "--out", text)
    options = (text, "es", "en", "--out", out, "--updates", 12, "--bpe", 200)
    sizes = ("--", "--encoder-layers", 1, "--decoder-layers", 1, "--max-tokens", 2000)
    bash(STUDIES, "bmt", *options, "bmt", *sizes)
    bash(STUDIES, "bmt", *options, "bmt-1-0", *sizes)
    systems = json.loads((out / "compare.json").read_text(encoding="utf-8"))["systems"]
    assert [(system["name"], system["updates"]) for system in systems] == [
        ("bmt", 12),
        ("bmt-1-0", 12),
    ]
    for picture in ("curves", "lengths", "compare"):
        assert (out / f"{picture}.png").stat().st_size > 0
