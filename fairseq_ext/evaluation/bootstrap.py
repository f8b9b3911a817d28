"""Compute scores with 95% intervals, and test systems for a difference from a baseline.

Samples are drawn from the test set with replacement, the same ones for all systems and runs
(Koehn 2004). With one run of each system, ``sacrebleu --paired-bs`` gives the same scores, samples
and intervals. :mod:`~fairseq_ext.evaluation.significance` tests the differences on these samples.
"""

import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tqdm import tqdm

from fairseq_ext.evaluation.score import build_metrics
from fairseq_ext.evaluation.significance import Difference, Runs, Variances, compare_runs, holm
from fairseq_ext.text.bleu_tokenizers import USUAL
from fairseq_ext.utils.errors import ConfigError

SAMPLES = 1000  # sacrebleu's default
SEED = "12345"  # sacrebleu's default, if SACREBLEU_SEED is not set
FEWEST = 100  # with fewer samples, each outer 2.5% would be two at most


@dataclass(frozen=True)
class Estimate:
    """A score of a system, with its interval and its difference from the baseline."""

    value: float  # score on the test set in the metric's own unit, averaged over the runs
    # Bounds of the 95% interval over other test sets and, with several runs, other trainings.
    low: float
    high: float
    # p of the difference from the baseline, and p corrected for the number of systems; None for
    # the baseline, or if the test set is too small.
    p: float | None = None
    p_holm: float | None = None
    runs: int = 1  # number of trainings in the mean `value`
    deviation: float | None = None  # standard deviation over the runs; None for a single run
    difference: Difference | None = None  # from the baseline; None for the baseline itself

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2


@dataclass(frozen=True)
class Comparison:
    """The estimates by system and metric (``BLEU``, ``chrF``), and the metrics' signatures."""

    estimates: dict[str, dict[str, Estimate]]
    signatures: dict[str, str]


def bootstrap(
    systems: Mapping[str, Sequence[Sequence[str]]],
    references: Sequence[str],
    baseline: str,
    samples: int = SAMPLES,
    tokenizer: str = USUAL,
    extra_metrics: Sequence[str] = (),
) -> Comparison:
    """Compare systems with a baseline by BLEU, chrF2 and further metrics of sacrebleu.

    ``systems`` has the detokenized translations of each run, by system. ``SACREBLEU_SEED`` seeds
    the samples, as for the command ``sacrebleu --paired-bs``.
    """
    drawn = draw_sentences(len(references), samples)
    estimates: dict[str, dict[str, Estimate]] = {name: {} for name in systems}
    signatures = {}
    for label, metric in build_metrics(references, tokenizer, extra_metrics).items():
        scored = {}
        for name in tqdm(systems, desc=label, unit=" systems", disable=None):
            scored[name] = _runs([score_samples(metric, run, drawn) for run in systems[name]])
        for name, estimate in _estimates(scored, baseline, len(references)).items():
            estimates[name][label] = estimate
        signature = metric.get_signature()
        signature.update("bs", samples)
        signature.update("seed", chosen_seed())
        signatures[label] = str(signature)
    return Comparison(estimates, signatures)


def bootstrap_of_means(
    label: str,
    systems: Mapping[str, Sequence[Sequence[float]]],
    signature: str,
    baseline: str,
    samples: int = SAMPLES,
) -> Comparison:
    """Compare systems by a metric whose score of a text is the mean of its segments' scores.

    ``systems`` has the scores of all segments for each run, by system.
    """
    sentences = len(systems[baseline][0])
    drawn = draw_sentences(sentences, samples)
    scored = {
        name: _runs([(statistics.fmean(run), np.array(run)[drawn].mean(axis=1)) for run in runs])
        for name, runs in systems.items()
    }
    estimates = _estimates(scored, baseline, sentences)
    return Comparison(
        {name: {label: estimate} for name, estimate in estimates.items()},
        {label: f"{signature}|bs:{samples}|seed:{chosen_seed()}"},
    )


def _runs(scores: Sequence[tuple[float, np.ndarray]]) -> Runs:
    return Runs(
        np.array([value for value, _ in scores]),
        np.stack([sampled for _, sampled in scores], axis=1),
    )


def _estimates(scored: Mapping[str, Runs], baseline: str, sentences: int) -> dict[str, Estimate]:
    """Estimate the score of each system, and its difference from the baseline."""
    from sacrebleu.significance import estimate_ci

    estimates = {}
    for name, system in scored.items():
        value, count = statistics.fmean(system.values), len(system.values)
        if count == 1:
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


def draw_sentences(sentences: int, samples: int) -> np.ndarray:
    """Draw the same sentence numbers as sacrebleu, ``[samples, sentences]``, in every call."""
    seed = chosen_seed()
    draw = np.random.default_rng(None if seed == "none" else int(seed))
    return draw.choice(sentences, size=(samples, sentences), replace=True)


def score_samples(metric: Any, lines: Sequence[str], draws: np.ndarray) -> tuple[float, np.ndarray]:
    """Compute a metric on a translation, and on each of its samples, ``[samples]``."""
    sentence_statistics = metric._extract_corpus_statistics(lines, None)
    # Computed as in sacrebleu, to agree in the last digits.
    counts = np.array(sentence_statistics, dtype=np.float32)
    sampled = [metric._compute_score_from_stats(counts[rows].sum(0)).score for rows in draws]
    return float(metric._aggregate_and_compute(sentence_statistics).score), np.array(sampled)


def chosen_seed() -> str:
    """Return the seed of the samples, as in sacrebleu's signatures: a number, or ``none``."""
    seed = os.environ.get("SACREBLEU_SEED", SEED).lower()
    if seed != "none" and not (seed.isascii() and seed.isdigit()):
        raise ConfigError(
            f"`SACREBLEU_SEED` must be a whole number from 0 on, or none, but is `{seed}` instead."
        )
    return seed
