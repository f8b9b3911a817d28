r"""Test whether a difference would persist on another test set and after another training.

The difference between the mean scores of two systems A and B varies for two reasons. Its variance
is

.. math:: V = V_g + c s^2, \qquad c = 1/R_A + 1/R_B

where :math:`V_g` is due to the choice of test sentences, some of which favour one system whatever
its seed, and :math:`s^2` is the variance of single trainings. :math:`s^2` is measured over the
:math:`R_A` runs of A and the :math:`R_B` runs of B, with :math:`\nu = R_A + R_B - 2` degrees of
freedom.

A part :math:`e^2` of :math:`s^2` is noise: one run happens to translate some sentences better than
another run of the same system. The bootstrap below measures two variances over samples of the test
sentences. The variance of the difference between two runs of a system is :math:`2 e^2`. The
variance of the difference between the means of A and B is :math:`V_g + c e^2`. :math:`V_g` is
computed from both.

The interval at level :math:`1 - p` is Banerjee's (1960, "Approximate confidence interval for linear
functions of means of k populations when the population variances are not equal"). The probability
that it contains the true difference is at least :math:`1 - p` for any ratio of the two variances:

.. math:: d \pm \sqrt{z_{p/2}^2 V_g + t_{\nu, p/2}^2 c s^2}

Here :math:`d` is the measured difference. The p of a difference is the p for which this interval
ends at zero. With one run of each system, :math:`s^2` is unknown. Then p comes from the paired
bootstrap, and says nothing about other trainings.

The bootstrap draws samples of sentences from the test set with replacement, the same for all
systems and runs (Koehn 2004). With one run of each system, ``sacrebleu --paired-bs`` draws the same
samples, and gives the same scores and intervals.
"""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtri, stdtrit
from tqdm import tqdm

from fairseq_ext.utils.errors import wrong_value

SAMPLES = 1000  # sacrebleu's default
SEED = "12345"  # sacrebleu's default, if SACREBLEU_SEED is not set
FEWEST = 100  # with fewer samples, the outer 2.5% on each side would be two samples at most

LEVEL = 0.05
POWER = 0.8  # probability with which a detectable difference is found
TRAININGS, SENTENCES = "trainings", "sentences"
FEWEST_SENTENCES = 30
"""Fewest sentences from which the bootstrap can tell what another test set would be like."""
SMALLEST_P = 1e-100  # below it, p counts as 0
MOST_RUNS, MOST_SENTENCES = 100, 10_000_000  # larger needs are reported as None
DRAWS = 20_000  # draws in the simulation of a detectable difference
NORMAL = float(ndtri(1 - LEVEL / 2))  # upper end of the normal 95% interval


@dataclass(frozen=True)
class Difference:
    """A system's score minus the baseline's, with its 95% interval."""

    value: float
    low: float | None  # ends of the 95% interval; None if the test set is too small
    high: float | None
    # `trainings` if p and interval are about another test set and other trainings; `sentences` if
    # only about another test set, because each system was trained once.
    test: str
    # The smallest difference whose p would be below 0.05 in four of five repetitions; None if the
    # test set is too small, or the translations are equal and do not show how scores vary.
    detectable: float | None = None
    # Numbers that would make `value` detectable: runs of each system on this test set, or sentences
    # with these runs; None if `value` is 0, the variance of seeds is unknown, or none is enough.
    runs_needed: int | None = None
    sentences_needed: int | None = None


@dataclass(frozen=True)
class Estimate:
    """A system's score by one metric, with its interval and its difference from the baseline."""

    value: float  # score on the test set in the metric's own unit, averaged over the runs
    # Bounds of the 95% interval over other test sets and, with several runs, other trainings; None
    # for a single sentence.
    low: float | None
    high: float | None
    # p of the difference from the baseline, and p corrected for the number of systems; None for
    # the baseline, or if the test set is too small.
    p: float | None = None
    p_holm: float | None = None
    runs: int = 1  # number of trainings in the mean `value`
    deviation: float | None = None  # standard deviation over the runs; None for a single run
    difference: Difference | None = None  # from the baseline; None for the baseline itself

    @property
    def half_width(self) -> float | None:
        """Half the width of the interval; None without an interval."""
        return None if self.low is None or self.high is None else (self.high - self.low) / 2


@dataclass(frozen=True)
class Runs:
    """The scores of a system's runs, on the test set and on the bootstrap's samples of it."""

    values: np.ndarray  # score of each run, `[runs]`
    sampled: np.ndarray  # scores on the bootstrap's samples, `[samples, runs]`


@dataclass(frozen=True)
class Variances:
    """The parts of the variance of a mean score, or of a difference; see the module's docstring."""

    shared: float  # V_g: from the sentences, shared by all runs of a system
    seeds: float  # s²: of single runs
    noise: float  # e²: the part of s² that is noise of sentences, which a larger test set reduces
    weight: float  # c: one divided by the number of runs, summed over the systems
    freedom: int  # ν: degrees of freedom of s²

    @classmethod
    def of(cls, *systems: Runs) -> Variances:
        """Measure the variances of one system's mean score, or of the difference of two means.

        ``systems`` are the runs of one system or of two; at least one must have several runs.
        """
        weight = sum(1 / len(system.values) for system in systems)
        freedom = sum(len(system.values) - 1 for system in systems)
        means = [system.sampled.mean(axis=1) for system in systems]
        by_sentences = float((means[0] - sum(means[1:])).var(ddof=1))
        # The squared deviations of runs from their mean, and the mean contribution of sentences.
        deviations = [system.values - system.values.mean() for system in systems]
        seeds = sum(float((values**2).sum()) for values in deviations) / freedom
        centred = [x.sampled - x.sampled.mean(axis=1, keepdims=True) for x in systems]
        noise = sum(float(x.var(axis=0, ddof=1).sum()) for x in centred) / freedom
        return cls(max(0.0, by_sentences - weight * noise), seeds, noise, weight, freedom)

    def half_width(self) -> float:
        """Return half the width of the 95% interval around the mean or the difference."""
        student = student_quantile(self.freedom)
        return math.sqrt(NORMAL**2 * self.shared + student**2 * self.weight * self.seeds)

    def p_value(self, difference: float) -> float:
        """Find the p for which the interval at level 1 - p around ``difference`` ends at zero."""
        if not difference:
            return 1.0

        def excess(log_p: float) -> float:
            half = math.exp(log_p) / 2
            normal, student = float(ndtri(half)), float(stdtrit(self.freedom, half))
            square = normal**2 * self.shared + student**2 * self.weight * self.seeds
            return square - difference**2

        lowest = math.log(SMALLEST_P)
        return math.exp(brentq(excess, lowest, 0.0)) if excess(lowest) > 0 else 0.0

    def detectable(self) -> float:
        """Find the smallest true difference that gives p < 0.05 with a probability of 80%."""
        draw = np.random.default_rng(1)
        spread = math.sqrt(self.shared + self.weight * self.seeds)
        seeds = self.seeds * draw.chisquare(self.freedom, DRAWS) / self.freedom
        student = student_quantile(self.freedom)
        half_widths = np.sqrt(NORMAL**2 * self.shared + student**2 * self.weight * seeds)
        return float(np.quantile(half_widths + spread * draw.standard_normal(DRAWS), POWER))

    def with_runs(self, runs: int) -> Variances:
        """Return the variances expected if two systems had ``runs`` runs each."""
        return replace(self, weight=2 / runs, freedom=2 * runs - 2)

    def with_sentences(self, factor: float) -> Variances:
        """Return the variances expected if the test set were ``factor`` times as large."""
        between = max(0.0, self.seeds - self.noise)
        noise = self.noise / factor
        return replace(self, shared=self.shared / factor, seeds=between + noise, noise=noise)


def compare_runs(system: Runs, baseline: Runs, sentences: int) -> tuple[Difference, float | None]:
    """Return a system's difference from the baseline, and the p value of the difference.

    ``sentences`` is the size of the test set. Below 30 there is no p value and no interval.
    """
    value = float(system.values.mean() - baseline.values.mean())
    is_single = len(system.values) + len(baseline.values) == 2
    test = SENTENCES if is_single else TRAININGS
    if sentences < FEWEST_SENTENCES:
        return Difference(value, None, None, test), None
    needs: tuple[int | None, int | None] = (None, None)
    if is_single:
        differences = system.sampled[:, 0] - baseline.sampled[:, 0]
        half = float(np.quantile(np.abs(differences - differences.mean()), 1 - LEVEL))
        detectable = (NORMAL + float(ndtri(POWER))) * float(differences.std(ddof=1))
        if value and (needed := sentences * (detectable / value) ** 2) <= MOST_SENTENCES:
            needs = (None, math.ceil(needed))
        p = bootstrap_p(differences, value)
    else:
        variances = Variances.of(system, baseline)
        half, detectable = variances.half_width(), variances.detectable()
        if value:
            runs_needed = _runs_needed(variances, abs(value))
            needs = (runs_needed, _sentences_needed(variances, abs(value), sentences))
        p = variances.p_value(value)
    return Difference(value, value - half, value + half, test, detectable or None, *needs), p


def _runs_needed(variances: Variances, value: float) -> int | None:
    if variances.with_runs(MOST_RUNS).detectable() > value:
        return None
    numbers = range(2, MOST_RUNS + 1)
    return next(runs for runs in numbers if variances.with_runs(runs).detectable() <= value)


def _sentences_needed(variances: Variances, value: float, sentences: int) -> int | None:
    def excess(logarithm: float) -> float:
        return variances.with_sentences(math.exp(logarithm)).detectable() - value

    limit = math.log(MOST_SENTENCES / sentences)
    if limit <= 0 or excess(limit) > 0:
        return None
    if excess(-limit) <= 0:
        return 1
    return math.ceil(sentences * math.exp(brentq(excess, -limit, limit, xtol=1e-3)))


def bootstrap_p(differences: np.ndarray, measured: float) -> float:
    """Estimate how often equally good systems would differ more than ``measured``, up or down.

    ``differences`` has the difference of the two systems on each sample, ``[samples]``. The method
    assumes that differences of equally good systems vary around zero as ``differences`` vary around
    their mean (Efron and Tibshirani 1993, section 16.4).

    The result is ``(larger + 1) / (samples + 1)``, where ``larger`` is the number of samples whose
    difference is farther from the mean than ``measured`` is from zero. So it is never 0 (Davison
    and Hinkley 1997, section 4.2). If ``measured`` is 0, the result is 1.

    ``sacrebleu --paired-bs`` counts only samples whose absolute difference is above the mean, not
    those below it. So its p is about half as large if all differences have the same sign.
    """
    if not measured:
        return 1.0
    larger = int((np.abs(differences - differences.mean()) > abs(measured)).sum())
    return (larger + 1) / (len(differences) + 1)


def holm(p_values: Mapping[str, float | None]) -> dict[str, float | None]:
    """Correct p values, by system, for multiple tests (Holm 1979); None stays None."""
    ranked = sorted((p, name) for name, p in p_values.items() if p is not None)
    corrected: dict[str, float | None] = dict.fromkeys(p_values)
    largest = 0.0
    for rank, (p, name) in enumerate(ranked):
        largest = max(largest, min(1.0, (len(ranked) - rank) * p))
        corrected[name] = largest
    return corrected


def student_quantile(freedom: int) -> float:
    """Return the 97.5% quantile of Student's t with ``freedom`` degrees of freedom."""
    return float(stdtrit(freedom, 1 - LEVEL / 2))


def bootstrap(
    systems: Mapping[str, Sequence[Sequence[str]]],
    metrics: Mapping[str, Any],
    baseline: str,
    samples: int = SAMPLES,
    segments: Mapping[str, Mapping[str, Sequence[Sequence[float]]]] | None = None,
) -> dict[str, dict[str, Estimate]]:
    """Compare systems with a baseline; return their estimated scores, by system and metric.

    ``systems[system]`` has the detokenized translations of each run, and ``baseline`` names one of
    the systems. ``samples`` is the number of samples of the bootstrap. ``metrics`` are those of
    :func:`~fairseq_ext.evaluation.score.build_metrics`. For a neural metric,
    ``segments[metric][system]`` has the scores of each run's segments; their mean is the score of
    the run. ``SACREBLEU_SEED`` seeds the samples, as for ``sacrebleu --paired-bs``.
    """
    seed, sentences = chosen_seed(), len(systems[baseline][0])
    draw = np.random.default_rng(None if seed == "none" else int(seed))
    drawn = draw.choice(sentences, size=(samples, sentences), replace=True)
    scored: dict[str, dict[str, Runs]] = {}
    for label, metric in metrics.items():
        scored[label] = {
            name: _runs([score_samples(metric, run, drawn) for run in systems[name]])
            for name in tqdm(systems, desc=label, unit=" systems", disable=None)
        }
    for label, scores in (segments or {}).items():
        scored[label] = {
            name: _runs(
                [(statistics.fmean(run), np.array(run)[drawn].mean(axis=1)) for run in runs]
            )
            for name, runs in scores.items()
        }
    estimates: dict[str, dict[str, Estimate]] = {name: {} for name in systems}
    for label, runs_by_system in scored.items():
        for name, estimate in _estimates(runs_by_system, baseline, sentences).items():
            estimates[name][label] = estimate
    return estimates


def _runs(scores: Sequence[tuple[float, np.ndarray]]) -> Runs:
    values, sampled = zip(*scores, strict=True)
    return Runs(np.array(values), np.stack(sampled, axis=1))


def _estimates(scored: Mapping[str, Runs], baseline: str, sentences: int) -> dict[str, Estimate]:
    """Estimate each system's score by one metric, and its difference from the baseline.

    ``scored`` has the runs of each system, and ``sentences`` is the size of the test set.
    """
    from sacrebleu.significance import estimate_ci

    estimates = {}
    for name, system in scored.items():
        value, count = statistics.fmean(system.values), len(system.values)
        if sentences == 1:  # all samples would be this sentence
            low = high = None
        elif count == 1:
            # sacrebleu's interval, which is symmetric about the samples' mean.
            mean, half = map(float, estimate_ci(system.sampled[:, 0]))
            low, high = mean - half, mean + half
        else:
            half = Variances.of(system).half_width()
            low, high = value - half, value + half
        difference, p = None, None
        if name != baseline:
            difference, p = compare_runs(system, scored[baseline], sentences)
        deviation = statistics.stdev(system.values) if count > 1 else None
        estimates[name] = Estimate(value, low, high, p, None, count, deviation, difference)
    corrected = holm({name: estimate.p for name, estimate in estimates.items()})
    return {name: replace(estimate, p_holm=corrected[name]) for name, estimate in estimates.items()}


def score_samples(metric: Any, lines: Sequence[str], draws: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the score of all lines of a translation, and its score on each sample, ``[samples]``.

    ``draws`` has the line numbers of each sample, ``[samples, lines]``.
    """
    sentence_statistics = metric._extract_corpus_statistics(lines, None)
    # Computed as in sacrebleu, to agree in the last digits.
    counts = np.array(sentence_statistics, dtype=np.float32)
    sampled = [metric._compute_score_from_stats(counts[rows].sum(0)).score for rows in draws]
    return float(metric._aggregate_and_compute(sentence_statistics).score), np.array(sampled)


def chosen_seed() -> str:
    """Return the bootstrap's seed, a number or ``none``, from ``SACREBLEU_SEED`` or by default.

    Raise ConfigError if ``SACREBLEU_SEED`` is neither.
    """
    seed = os.environ.get("SACREBLEU_SEED", SEED).lower()
    if seed != "none" and not (seed.isascii() and seed.isdigit()):
        raise wrong_value("SACREBLEU_SEED", "a whole number from 0 on, or none", seed)
    return seed
