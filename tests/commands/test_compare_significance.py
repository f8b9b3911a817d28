"""p of ``fairseq-ext compare``: its samples, its definitions, and how often it errs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import numpy as np
import pytest
import sacrebleu
from sacrebleu.metrics import BLEU
from sacrebleu.significance import PairedTest
from scipy import stats

from fairseq_ext.evaluation import significance
from fairseq_ext.evaluation.bootstrap import bootstrap
from fairseq_ext.evaluation.significance import Variances, bootstrap_p
from tests.commands.test_compare import damaged, sentences


def test_samples_are_sacrebleus_to_the_last_digit() -> None:
    text = sentences()
    systems = {name: damaged(text, 0.3, seed) for seed, name in enumerate(("a", "b"))}
    ours = bootstrap({name: [lines] for name, lines in systems.items()}, text, "a").estimates
    test = PairedTest(list(systems.items()), {"x": BLEU()}, [text], test_type="bs", n_jobs=1)
    for name, theirs in zip(systems, test()[1]["BLEU"], strict=True):
        low, high = theirs.mean - theirs.ci, theirs.mean + theirs.ci
        estimate = ours[name]["BLEU"]
        assert (estimate.value, estimate.low, estimate.high) == (theirs.score, low, high)


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
