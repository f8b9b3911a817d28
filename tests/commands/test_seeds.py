"""Systems with several runs: their scores, and what p and intervals make of seeds."""

from __future__ import annotations

import csv
import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import sacrebleu
from scipy import stats

from fairseq_ext.evaluation import compare, significance, tables
from fairseq_ext.evaluation.bootstrap import bootstrap, bootstrap_of_means
from fairseq_ext.utils.errors import ConfigError
from tests.commands.test_compare import damaged, sentences
from tests.support.harness import run, write_lines

NUMBERS = ("95% low", "95% high", "SD", "p")


def test_a_second_run_of_one_system_changes_no_other_p():
    text = sentences()
    systems = {name: [damaged(text, share, 3)] for name, share in (("a", 0.2), ("b", 0.22))}
    alone = bootstrap(systems, text, "a").estimates["b"]["BLEU"]
    three = systems | {"c": [damaged(text, 0.3, seed) for seed in (1, 2)]}
    beside = bootstrap(three, text, "a").estimates["b"]["BLEU"]
    assert (beside.p, beside.difference) == (alone.p, alone.difference)
    assert alone.difference.test == significance.SENTENCES
    assert alone.difference.runs_needed is None
    assert beside.p_holm >= alone.p_holm == alone.p


def test_variances_against_loops_over_text():
    """Each sample's score from sacrebleu, given the very sentences that were drawn."""
    text, samples = sentences(40), 100
    systems = {
        "a": [damaged(text, 0.2, seed) for seed in (1, 2, 3)],
        "b": [damaged(text, 0.3, seed) for seed in (4, 5)],
    }
    estimates = bootstrap(systems, text, "a", samples).estimates
    places = np.random.default_rng(12345).choice(40, size=(samples, 40), replace=True)

    def bleu(lines: list[str], rows: Sequence[int]) -> float:
        drawn = [text[i] for i in rows]
        return sacrebleu.corpus_bleu([lines[i] for i in rows], [drawn]).score

    scores = {name: [bleu(run, range(40)) for run in runs] for name, runs in systems.items()}
    sampled = {
        name: np.array([[bleu(run, rows) for run in runs] for rows in places])
        for name, runs in systems.items()
    }
    means = {name: statistics.fmean(values) for name, values in scores.items()}
    for name, estimate in ((name, estimates[name]["BLEU"]) for name in systems):
        assert estimate.value == pytest.approx(means[name])
        assert estimate.deviation == pytest.approx(statistics.stdev(scores[name]))
    pairs = [(sampled["a"], i, j) for i, j in ((0, 1), (0, 2), (1, 2))]
    noise_of_a = statistics.fmean(np.var(x[:, i] - x[:, j], ddof=1) / 2 for x, i, j in pairs)
    noise_of_b = np.var(sampled["b"][:, 0] - sampled["b"][:, 1], ddof=1) / 2
    noise = (2 * noise_of_a + noise_of_b) / 3
    seeds = (2 * statistics.variance(scores["a"]) + statistics.variance(scores["b"])) / 3
    weight = 1 / 3 + 1 / 2
    by_sentences = np.var(sampled["b"].mean(axis=1) - sampled["a"].mean(axis=1), ddof=1)
    shared = max(0, by_sentences - weight * noise)
    half = math.sqrt(1.959964**2 * shared + stats.t.ppf(0.975, 3) ** 2 * weight * seeds)
    difference = estimates["b"]["BLEU"].difference
    assert difference.value == pytest.approx(means["b"] - means["a"])
    assert difference.high - difference.value == pytest.approx(half)
    assert difference.value - difference.low == pytest.approx(half)
    assert difference.test == significance.TRAININGS


def test_luck_of_the_seed_is_no_difference():
    """Runs of one system differ by more than the systems: clear on sentences alone, not here."""
    text = sentences()
    good, bad = damaged(text, 0.1, 1), damaged(text, 0.4, 2)
    fair = damaged(text, 0.3, 3)
    single = bootstrap({"lucky": [good], "other": [fair]}, text, "other").estimates
    assert single["lucky"]["BLEU"].p < 0.01
    several = bootstrap({"lucky": [good, bad], "other": [fair]}, text, "other").estimates
    assert several["lucky"]["BLEU"].p > 0.2
    steady = bootstrap({"lucky": [good, good], "other": [fair]}, text, "other").estimates
    assert steady["lucky"]["BLEU"].p < 0.01
    assert steady["lucky"]["BLEU"].deviation == 0


@pytest.mark.parametrize("count", [2, 3, 5])
def test_intervals_are_students_where_sentences_say_nothing(count: int):
    runs = [[float(number)] * 40 for number in range(count)]
    result = bootstrap_of_means("x", {"a": runs, "b": [[0.0] * 40]}, "x", "b", samples=100)
    estimate, spread = result.estimates["a"]["x"], statistics.stdev(range(count)) / count**0.5
    assert estimate.half_width == pytest.approx(stats.t.ppf(0.975, count - 1) * spread)


def test_too_few_sentences_give_no_p():
    for runs in (1, 2):
        text = sentences(29)
        systems = {name: [damaged(text, 0.3, seed) for seed in range(runs)] for name in "ab"}
        systems["b"] = [damaged(text, 0.9, 7)]
        estimate = bootstrap(systems, text, "a", 100).estimates["b"]["BLEU"]
        assert (estimate.p, estimate.p_holm, estimate.difference.low) == (None, None, None)
        assert estimate.difference.value < 0


def test_systems_of_several_runs_are_named_by_commas():
    system = compare.parse_system("x=text:a,b,log=train.log")
    assert system == compare.System("x", (Path("a"), Path("b")), log=Path("train.log"), plain=True)
    for wrong in ("x=a,", "x=,a", "x=a,,b"):
        with pytest.raises(ConfigError, match="NAME=GENERATED"):
            compare.parse_system(wrong)


@pytest.mark.system
def test_the_command_writes_means_and_tables(tmp_path: Path):
    text = sentences()
    write_lines(tmp_path / "ref", text)
    for name, share, seed in (("a", 0.2, 1), ("b", 0.25, 2), ("c", 0.5, 3)):
        write_lines(tmp_path / name, damaged(text, share, seed))
    shown = run(
        *("fairseq-ext", "compare", "--system", "two_runs=text:a,b", "--system", "one=text:c"),
        *("--ref", "ref", "--samples", 200, "-o", "out"),
        cwd=tmp_path,
    ).stdout
    (meaning,) = json.loads((tmp_path / "out.json").read_text())["tests"].values()
    assert meaning.startswith("another test set and other trainings")
    assert f"p is about {meaning}" in shown
    assert "a system with one run is taken to vary over seeds as much as the other one" in shown
    with (tmp_path / "out.csv").open(newline="") as file:
        heading, first, second = csv.reader(file)
    row, other = dict(zip(heading, first, strict=True)), dict(zip(heading, second, strict=True))
    bleu = [
        sacrebleu.corpus_bleu((tmp_path / name).read_text().splitlines(), [text]).score
        for name in ("a", "b")
    ]
    assert heading[:8] == [
        "system",
        "runs",
        "BLEU",
        *(f"BLEU {x}" for x in (*NUMBERS[:4], "p Holm")),
    ]
    assert float(row["BLEU"]) == pytest.approx(statistics.fmean(bleu))
    assert float(row["BLEU SD"]) == pytest.approx(statistics.stdev(bleu))
    assert float(row["BLEU 95% low"]) < float(row["BLEU"]) < float(row["BLEU 95% high"])
    assert (row["runs"], other["runs"], other["BLEU SD"], row["BLEU p"]) == ("2", "1", "", "")
    assert 0.05 < float(other["BLEU p"]) < 1  # one degree of freedom, seeds that differ
    ends = [float(other[f"BLEU difference{end}"]) for end in (" 95% low", "", " 95% high")]
    assert ends == sorted(ends)
    assert ends[0] < 0 < ends[2]
    latex = (tmp_path / "out.tex").read_text()
    assert r"two\_runs" in latex
    assert latex.count(r"\\") == 3
    assert all((tmp_path / f"out.{ending}").is_file() for ending in ("md", "png", "json"))
    assert (tmp_path / "out-differences.png").read_bytes().startswith(b"\x89PNG")
    assert "## Differences to two\\_runs" in (tmp_path / "out.md").read_text()


def test_latex_shows_every_character():
    table = tables.latex([["a & b", "50%"], ["x_{1}^~", "\\±–"], ["<unk>", "a|b"]])
    assert r"a \& b & 50\% \\" in table
    assert r"\textless{}unk\textgreater{} & a\textbar{}b \\" in table
    assert "\n{}[a] \\\\\n{}* \\\\\n" in tables.latex([["x"], ["[a]"], ["*"]])
    assert r"x\_\{1\}\textasciicircum{}\textasciitilde{} & \textbackslash{}$\pm$-- \\" in table
