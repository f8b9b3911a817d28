"""The MUSE paper's recipes: their settings on fairseq's own parts, and whole runs."""

import functools
import json
import math
import re
import tempfile
from itertools import pairwise
from pathlib import Path

import pytest

from fairseq_ext.evaluation import score
from tests.support.harness import REPO, command, write_lines
from tests.support.models import build, count
from tests.support.recipes import RECIPES, Command, bash, check_pictures, check_repeat, dry_run

MUSE = RECIPES / "muse"
TASKS = ("iwslt14_de_en", "iwslt15_en_vi", "wmt14_en_de", "wmt14_en_fr")


@functools.cache
def shown(task: str, *options: object) -> dict[str, Command]:
    """Return a dry run's commands, as words, by their first words (the last of equal ones)."""
    with tempfile.TemporaryDirectory() as folder:
        lines = dry_run(MUSE / f"{task}.sh", Path(folder), *options)
        assert list(Path(folder).iterdir()) == []
    by_words = {}
    for line in lines:
        words = [word for word in line if "/bin/python" not in word]
        count = 3 if words[1] == "plot" else 2 if words[0] == "fairseq-ext" else 1
        by_words[" ".join(words[:count])] = line
    return by_words


PAPER = {
    "iwslt14_de_en": ("muse_iwslt_de_en", 0.4, 4000 * 4, 20_000, 0.001, 4_000, "1"),
    "iwslt15_en_vi": ("muse_iwslt_en_vi", 0.3, 4000 * 4, 10_000, 0.001, 4_000, "1"),
    "wmt14_en_de": ("muse_wmt_en_de", 0.3, 3584 * 32 * 4, 30_000, 0.001, 10_000, "0.6"),
    "wmt14_en_fr": ("muse_wmt_en_fr", 0.1, 5120 * 32 * 4, 80_000, 0.0007, 10_000, "0.8"),
}


@pytest.mark.parametrize("task", TASKS)
def test_dry_runs_have_the_papers_settings(task: str) -> None:
    arch, dropout, batch, updates, lr, warmup, lenpen = PAPER[task]
    of_wmt = task.startswith("wmt")
    commands = shown(task)
    train = commands["fairseq-train"]
    assert train.value("--arch") == arch
    assert commands["fairseq-generate"].values("--beam", "--lenpen") == ["5", lenpen]
    assert commands["fairseq-ext corpus"].value("--out").endswith(f"runs/data/{task}")
    if task == "wmt14_en_fr":
        assert "fairseq-ext average" not in commands
    else:
        assert commands["fairseq-ext average"].value("--last-epochs") == "10"
    assert ("--split-compounds" in commands["fairseq-ext score"]) == (task == "wmt14_en_de")
    assert "--tokenized-ref" in commands["fairseq-ext score"]
    assert ("--joined-dictionary" in commands["fairseq-preprocess"]) == of_wmt
    cfg = train.settings()  # as fairseq itself parses the flags
    assert cfg.model.dropout == dropout
    assert cfg.dataset.max_tokens * cfg.optimization.update_freq[0] == batch
    assert (cfg.optimization.max_update, cfg.optimization.lr) == (updates, [lr])
    assert cfg.lr_scheduler.warmup_updates == warmup
    assert cfg.criterion._name == "label_smoothed_cross_entropy"
    assert (cfg.model.encoder_layers, cfg.model.decoder_layers) == (12, 12)
    assert cfg.model.attention_dropout == cfg.model.input_dropout == 0.1 * of_wmt
    assert cfg.model.share_all_embeddings == of_wmt
    assert cfg.optimization.clip_norm == (0 if of_wmt else 25)
    assert cfg.optimizer.weight_decay == (0 if of_wmt else 1e-4)


@pytest.mark.parametrize("task", TASKS)
def test_the_rate_rises_falls_and_never_jumps(task: str) -> None:
    _, _, _, updates, lr, warmup, _ = PAPER[task]
    train = shown(task)["fairseq-train"]
    falling = [*range(warmup, updates - 999, 97), *range(updates - 999, updates + 1000)]
    rates = train.learning_rates([0, warmup // 2, *falling])
    assert rates[0] == pytest.approx(1e-7)
    assert rates[warmup // 2] == pytest.approx(1e-7 + (lr - 1e-7) / 2, rel=1e-3)
    assert rates[warmup] == pytest.approx(lr)
    for update in [update for update in falling if update <= updates]:
        if task.startswith("iwslt"):
            expected = lr * math.sqrt(warmup / update)
        else:
            angle = math.pi * (update - warmup) / (updates - warmup)
            expected = 1e-9 + (lr - 1e-9) * (1 + math.cos(angle)) / 2
        assert rates[update] == pytest.approx(expected, rel=1e-6, abs=1e-9)
    assert all(rates[new] <= rates[old] * (1 + 1e-9) for old, new in pairwise(falling))


@pytest.mark.parametrize("task", ["wmt14_en_de", "wmt14_en_fr"])
def test_another_length_of_training_is_another_cosine(task: str) -> None:
    train = shown(task, "--updates", 900, "--warmup", 100)["fairseq-train"]
    rates = train.learning_rates(range(950))
    assert rates[100] == max(rates.values())
    assert max(rates[update] for update in range(899, 950)) < 1e-5 * rates[100]


def test_the_flags_give_the_papers_model() -> None:
    train = shown("iwslt14_de_en")["fairseq-train"]
    model, _ = build([*train[train.index("--arch") :], "--cpu"], size=8848, target_size=6632)
    assert count(model) == 48_184_368


def test_options_reach_the_commands(tmp_path: Path) -> None:
    options = ("--arch", "transformer_iwslt_de_en", "--dropout", "0.3", "--average", "1")
    options += ("--bpe", "0", "--mirror", "http://127.0.0.1/x", "--any-counts", "--data", tmp_path)
    commands = shown("iwslt14_de_en", *options, "--", "--seed", "5")
    corpus = " ".join(commands["fairseq-ext corpus"])
    assert "--mirror http://127.0.0.1/x --bpe 0 --any-counts" in corpus
    train = commands["fairseq-train"]
    assert train.values("--arch", "--dropout") == ["transformer_iwslt_de_en", "0.3"]
    assert train[-2:] == ["--seed", "5"]
    assert "fairseq-ext average" not in commands


def test_pictures_are_those_of_the_model() -> None:
    commands = shown("iwslt14_de_en")
    assert commands["fairseq-ext plot gates"].value("-o") == "gates.png"
    lengths = commands["fairseq-ext plot lengths"].values("--system", "--tokenized-ref")
    assert lengths == ["muse_iwslt_de_en=generated.txt", "text/test.en"]
    for options in (
        ("--arch", "muse_simple_base"),
        ("--arch", "transformer_iwslt_de_en"),
        ("--", "--muse-kernels", "3/7/15/31"),
        ("--", "--muse-kernels=none"),
    ):
        commands = shown("iwslt14_de_en", *options)
        assert "fairseq-ext plot gates" not in commands
        assert "fairseq-ext plot lengths" in commands
    other = f"other run={REPO / 'README.md'}"  # any file
    commands = shown("iwslt14_de_en", "--against", other, "--", "--muse-kernels", "3,7/15")
    assert other in commands["fairseq-ext plot lengths"]
    assert "fairseq-ext plot gates" in commands


def test_word_level_english_vietnamese_and_its_subwords() -> None:
    words = shown("iwslt15_en_vi")
    assert words["fairseq-preprocess"].value("--thresholdtgt") == "5"
    assert "--bpe" not in words["fairseq-ext corpus"]
    pieces = shown("iwslt15_en_vi", "--bpe", 10000)
    assert "--thresholdtgt" not in pieces["fairseq-preprocess"]
    assert pieces["fairseq-ext corpus"].value("--bpe") == "10000"
    assert pieces["fairseq-ext corpus"].value("--out").endswith("iwslt15_en_vi-10000")


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ("Rad-Tour am 5 - 6 .", "Rad ##AT##-##AT## Tour am 5 - 6 ."),
        ("a-b-c x-yz-w", "a ##AT##-##AT## b-c x ##AT##-##AT## yz ##AT##-##AT## w"),
        ("- -a b- --", "- -a b- --"),
        ("x---y", "x ##AT##-##AT## --y"),
        ("ä-ö", "ä ##AT##-##AT## ö"),
    ],
)
def test_compounds_are_split_as_by_the_literatures_script(tokens: str, expected: str) -> None:
    """Expected results are by hand from Perl's ``s{(\\S)-(\\S)}{$1 ##AT##-##AT## $2}g``."""
    assert score.split_compounds(tokens) == expected


def test_split_compounds_score_their_common_parts(tmp_path: Path) -> None:
    hypotheses = ["die Rad-Tour war sehr schön heute", "x"]
    references = ["die Rad-Fahrt war sehr schön heute", "x"]
    sides = (hypotheses, references)
    token_bleu, split = score.tokenized_bleu(*sides), score.compound_bleu(*sides)
    assert split.name == score.COMPOUND_BLEU
    # by hand: of 9 tokens 8 match, of 7 pairs 5, of 6 triples 3 and of 5 quadruples 1
    matches = [8 / 9, 5 / 7, 3 / 6, 1 / 5]
    assert split.value == pytest.approx(100 * math.prod(matches) ** 0.25)
    hyp, ref = write_lines(tmp_path / "h", hypotheses), write_lines(tmp_path / "r", references)
    scores = tmp_path / "scores.json"
    pieces = ["die Rad-Tour war sehr schö@@ n heute", "x"]
    lines = [line for i, text in enumerate(pieces) for line in (f"S-{i}\tx", f"H-{i}\t-1\t{text}")]
    generated = write_lines(tmp_path / "g", lines)
    inputs = (["--hyp", hyp, "--tokenized-hyp", hyp], ["--generated", generated])
    expected = [(token_bleu.name, token_bleu.value), (score.COMPOUND_BLEU, split.value)]
    for translations in inputs:
        options = ("--ref", ref, "--tokenized-ref", ref, "--split-compounds", "--json", scores)
        assert f"{split.value:.2f}" in command("score", *translations, *options)
        figures = json.loads(scores.read_text())["scores"]
        assert [(figure["name"], figure["value"]) for figure in figures[2:]] == expected


@pytest.mark.parametrize(
    "task", [TASKS[0], *(pytest.param(task, marks=pytest.mark.long) for task in TASKS[1:])]
)
def test_a_run_from_nothing_to_the_end(task: str, tmp_path: Path) -> None:
    out = tmp_path / "my run"
    words = (MUSE / f"{task}.sh", "--out", out, "--updates", 8, "--warmup", 2)
    done = bash(*words)
    results = json.loads((out / "results.json").read_bytes())
    assert results["updates"] == 8
    assert min(results["stages"].values()) >= 0
    names = [score["name"] for score in results["scores"]]
    assert names[:2] == ["BLEU", "chrF"]
    assert names[2].startswith("BLEU-tok (")
    assert names[3:] == ([score.COMPOUND_BLEU] if task == "wmt14_en_de" else [])
    arch = re.search(r"arch=(\w+)", (out / "settings.txt").read_text())[1]
    check_pictures(out, "curves", "lengths", *(["gates"] if arch.startswith("muse") else []))
    target = task[-2:]
    texts = [out / f"hyp.{target}", out / "reference" / f"test.{target}"]
    assert [len(path.read_text().split("\n")) for path in texts] == [41, 41]
    assert done.stdout.splitlines()[-1].startswith("The paper: ")
    log = (out / "checkpoints" / "train.log").read_text()
    lr = float(re.findall(r"epoch \d+ \| loss .* num_updates 8 \| lr ([\d.e-]+)", log)[-1])
    highest = PAPER[task][4]
    last = highest / 2 if task.startswith("iwslt") else highest * 1e-6
    assert lr == pytest.approx(last, rel=0.01)
    generated = (out / "generated.txt").read_text()
    assert "@@ " in generated if (out / "data" / "bpe").exists() else "<unk>" in generated
    # what the tokenized BLEU was computed on
    assert not any("@@" in line for line in texts[0].read_text().split())
    check_repeat(done, *words)
