"""Systems that were trained several times: does the difference outlive another seed?

The paired bootstrap of :mod:`~fairseq_ext.evaluation.bootstrap` asks whether a difference outlives
another test set. Here trainings are drawn as well: each sample draws sentences, the same ones for
all systems, and as many runs of each system as it has, both with replacement; a system's score is
the mean over the runs drawn, with their spread widened by ``sqrt(n / (n - 1))``. With one run for
each system the samples and p are those of the paired bootstrap.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence

import numpy as np
from tqdm import tqdm

from fairseq_ext.evaluation.bootstrap import (
    SAMPLES,
    Comparison,
    Estimate,
    check_comparable,
    chosen_seed,
    draw_sentences,
    full_signature,
    generator,
    metrics,
    p_value,
    score_samples,
)


def bootstrap_over_runs(
    systems: Mapping[str, Sequence[Sequence[str]]],
    references: Sequence[str],
    baseline: str,
    samples: int = SAMPLES,
) -> Comparison:
    """BLEU and chrF2 of systems with one or several runs each, compared with the baseline.

    Args:
        systems: by name, the detokenized translations of each run.
        references: detokenized, as many lines as each translation.
        baseline: one of the names.
        samples: how many test sets, and draws of runs, to make.

    Returns:
        Estimates whose ``value`` is the mean over runs.

    Raises:
        ConfigError: no such baseline, or too few samples.
        DataError: unequal numbers of lines, or none.
    """
    translations = {
        f"{name}, run {number}": run
        for name, runs in systems.items()
        for number, run in enumerate(runs, start=1)
    }
    check_comparable(translations, references, baseline, list(systems), samples)
    sentences, drawn = _draws(
        {name: len(runs) for name, runs in systems.items()}, len(references), samples
    )
    estimates: dict[str, dict[str, Estimate]] = {name: {} for name in systems}
    signatures = {}
    for label, metric in metrics(references).items():
        found = {}
        for name in tqdm(systems, desc=label, unit=" systems", file=sys.stderr, disable=None):
            found[name] = [score_samples(metric, run, sentences) for run in systems[name]]
        for name, estimate in _estimates(found, drawn, baseline).items():
            estimates[name][label] = estimate
        signatures[label] = full_signature(metric, samples)
    return Comparison(estimates, signatures)


def bootstrap_of_means(
    label: str,
    systems: Mapping[str, Sequence[Sequence[float]]],
    signature: str,
    baseline: str,
    samples: int = SAMPLES,
) -> Comparison:
    """The same test of a metric whose score of a text is the mean of its segments' scores.

    Args:
        label: name of the metric.
        systems: by name, of each run the scores of all segments.
        signature: of the metric.
        baseline: one of the names.
        samples: how many test sets, and draws of runs, to make; the same as of the other metrics.
    """
    counts = {name: len(runs) for name, runs in systems.items()}
    sentences, drawn = _draws(counts, len(systems[baseline][0]), samples)
    found = {
        name: [(statistics.fmean(run), np.array(run)[sentences].mean(axis=1)) for run in runs]
        for name, runs in systems.items()
    }
    estimates = _estimates(found, drawn, baseline)
    return Comparison(
        {name: {label: estimate} for name, estimate in estimates.items()},
        {label: f"{signature}|bs:{samples}|seed:{chosen_seed()}"},
    )


def _draws(
    runs: Mapping[str, int], sentences: int, samples: int
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Numbers of sentences, ``[samples, sentences]``; by system of runs, ``[samples, runs]``."""
    draw = generator()
    chosen = draw_sentences(draw, sentences, samples)
    return chosen, {name: _drawn_runs(draw, samples, count) for name, count in runs.items()}


def _estimates(
    found: Mapping[str, Sequence[tuple[float, np.ndarray]]],
    drawn: Mapping[str, np.ndarray],
    baseline: str,
) -> dict[str, Estimate]:
    """By system, from score and samples' scores of each of its runs."""
    values, sampled = {}, {}
    for name, runs in found.items():
        values[name] = [value for value, _ in runs]
        of_runs = np.stack([scores for _, scores in runs], axis=1)  # [samples, runs]
        middle, count = of_runs.mean(axis=1), len(runs)
        means = np.take_along_axis(of_runs, drawn[name], axis=1).mean(axis=1)
        # Means of n runs drawn from n have only (n - 1) / n of the variance of means of n new runs.
        factor = (count / (count - 1)) ** 0.5 if count > 1 else 1.0
        sampled[name] = middle + factor * (means - middle)
    return {name: _estimate(name, baseline, values, sampled) for name in found}


def _drawn_runs(draw: np.random.Generator, samples: int, runs: int) -> np.ndarray:
    """Numbers of runs, ``[samples, runs]``; of a single run nothing is drawn."""
    if runs == 1:
        return np.zeros((samples, 1), dtype=np.int64)
    return draw.integers(runs, size=(samples, runs))


def _estimate(
    name: str,
    baseline: str,
    values: Mapping[str, Sequence[float]],
    sampled: Mapping[str, np.ndarray],
) -> Estimate:
    mean = statistics.fmean(values[name])
    low, high = np.percentile(sampled[name], (2.5, 97.5))
    p = None
    if name != baseline:
        p = p_value(sampled[name] - sampled[baseline], mean - statistics.fmean(values[baseline]))
    several = len(values[name]) > 1
    return Estimate(
        mean,
        float(low),
        float(high),
        p,
        runs=len(values[name]),
        deviation=statistics.stdev(values[name]) if several else None,
    )
