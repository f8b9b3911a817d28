"""p of ``fairseq-ext compare``: samples, definitions, several runs, and how often it errs."""

import csv
import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import sacrebleu
from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.metrics.base import Metric
from sacrebleu.significance import PairedTest
from scipy import stats

from fairseq_ext.evaluation import significance, tables
from fairseq_ext.evaluation.bootstrap import bootstrap, bootstrap_of_means
from fairseq_ext.evaluation.significance import Variances, bootstrap_p
from tests.commands.test_compare import damaged, sentences
from tests.support.harness import run, write_lines


@pytest.mark.parametrize(
    ("label", "metric"),
    [("BLEU", BLEU()), ("chrF", CHRF()), ("chrF++", CHRF(word_order=2)), ("TER", TER())],
)
def test_scores_and_samples_are_sacrebleus(label: str, metric: Metric) -> None:
    text = sentences()
    systems = {name: damaged(text, 0.3, seed) for seed, name in enumerate(("a", "b"))}
    runs = {name: [lines] for name, lines in systems.items()}
    ours = bootstrap(runs, text, "a", extra_metrics=["chrf++", "ter"]).estimates
    test = PairedTest(list(systems.items()), {"x": metric}, [text], test_type="bs", n_jobs=1)
    _, results = test()
    (of_systems,) = (results[key] for key in results if key != "System")
    for name, theirs in zip(systems, of_systems, strict=True):
        low, high = theirs.mean - theirs.ci, theirs.mean + theirs.ci
        estimate = ours[name][label]
        actual = estimate.value, estimate.low, estimate.high
        assert actual == pytest.approx((theirs.score, low, high), abs=1e-12)


def test_p_from_its_definition() -> None:
    """Each sample scored as a text of its own; differences counted in both directions."""
    text = sentences(40)
    systems = {name: damaged(text, share, 3) for name, share in (("a", 0.2), ("b", 0.25))}
    runs = {name: [lines] for name, lines in systems.items()}
    estimates = bootstrap(runs, text, "a", samples=200).estimates
    places = np.random.default_rng(12345).choice(40, size=(200, 40), replace=True)

    def bleu(name: str, rows: Sequence[int]) -> float:
        drawn = [text[i] for i in rows]
        return sacrebleu.corpus_bleu([systems[name][i] for i in rows], [drawn]).score

    measured = bleu("b", range(40)) - bleu("a", range(40))
    differences = np.array([bleu("b", rows) - bleu("a", rows) for rows in places])
    centred = differences - differences.mean()
    larger = sum(centred > abs(measured)) + sum(centred < -abs(measured))
    assert estimates["b"]["BLEU"].p == (larger + 1) / 201
    assert 0.05 < estimates["b"]["BLEU"].p < 0.95


def test_equally_good_systems_differ_significantly_in_five_of_a_hundred_cases() -> None:
    """sacrebleu's p would be below 0.05 in some ten."""
    draw = np.random.default_rng(1)
    count, below = 2000, 0
    for _ in range(count):
        gains = draw.normal(size=100)  # of one system over the other, in each sentence
        samples = gains[draw.integers(100, size=(200, 100))].mean(axis=1)
        below += bootstrap_p(samples, gains.mean()) < 0.05
    assert 0.035 < below / count < 0.07


def test_p_over_trainings_from_its_definition() -> None:
    """Student's where sentences do not matter, normal where seeds do not, between them else."""
    seeds, sentences_only = Variances(0, 0.2, 0.1, 0.5, 4), Variances(0.3, 0, 0, 0.5, 4)
    assert seeds.p_value(0.6) == pytest.approx(2 * stats.t.sf(0.6 / 0.1**0.5, 4))
    assert sentences_only.p_value(-0.6) == pytest.approx(2 * stats.norm.sf(0.6 / 0.3**0.5))
    variances = Variances(0.3, 0.2, 0.1, 0.5, 4)
    assert variances.p_value(variances.half_width()) == pytest.approx(0.05)
    assert variances.p_value(0) == 1
    p = variances.p_value(1.1)
    tails = stats.norm.isf(p / 2) ** 2 * 0.3, stats.t.isf(p / 2, 4) ** 2 * 0.1
    assert sum(tails) == pytest.approx(1.1**2)
    assert 0 <= variances.p_value(1e6) < 1e-6


def test_holm_steps_down() -> None:
    p = {"a": 0.01, "b": None, "c": 0.04, "d": 0.03, "e": 0.005}
    corrected = {"a": 0.03, "b": None, "c": 0.06, "d": 0.06, "e": 0.02}
    assert significance.holm(p) == pytest.approx(corrected)
    assert significance.holm({"a": 0.7, "b": 0.9}) == pytest.approx({"a": 1.0, "b": 1.0})


@pytest.mark.parametrize(("left", "right"), [(2, 1), (2, 2), (3, 3), (5, 1)])
@pytest.mark.parametrize("gain", [0.0, 1.0])
def test_errors_and_power_over_trainings(left: int, right: int, gain: float) -> None:
    """p < 0.05 in at most 6 % of cases without a difference, in 80 % with a detectable one."""
    draw = np.random.default_rng(5)
    count, shared, noise, seeds = 4000, 0.01, 0.1, 0.05
    weight, freedom = 1 / left + 1 / right, left + right - 2
    truth = Variances(shared, seeds + noise, noise, weight, freedom)
    scores = draw.normal(0, math.sqrt(seeds + noise), (count, left + right))
    ours, baselines = scores[:, :left], scores[:, left:]
    chance = draw.normal(0, math.sqrt(shared), count)
    shift = gain * truth.detectable()
    differences = ours.mean(axis=1) - baselines.mean(axis=1) + chance + shift
    squares = left * ours.var(axis=1) + right * baselines.var(axis=1)
    below = [
        abs(difference) > Variances(shared, square / freedom, noise, weight, freedom).half_width()
        for difference, square in zip(differences, squares, strict=True)
    ]
    if gain:
        assert statistics.fmean(below) == pytest.approx(0.8, abs=0.03)
    else:
        assert 0.03 < statistics.fmean(below) < 0.06


def test_the_runs_and_sentences_that_a_difference_needs() -> None:
    """So many show it in four of five repetitions, and fewer do not."""
    variances = Variances(0.01, 0.15, 0.1, 2 / 3, 4)
    runs = significance._runs_needed(variances, 0.6)
    assert (
        variances.with_runs(runs).detectable() <= 0.6 < variances.with_runs(runs - 1).detectable()
    )
    assert significance._runs_needed(variances, 0.2) is None
    needed = significance._sentences_needed(variances, 1.0, 1000)
    assert variances.with_sentences(needed / 1000).detectable() == pytest.approx(1.0, abs=0.01)
    assert significance._sentences_needed(variances, 0.2, 1000) is None  # seeds alone vary too much


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
