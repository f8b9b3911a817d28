"""Scores with 95% intervals, and whether a system differs from a baseline.

Test sets are drawn from the test set with replacement, the same ones for all systems and runs
(Koehn 2004); with one run of each system, scores, samples and intervals are those of
``sacrebleu --paired-bs``. What the samples say about a difference is in
:mod:`~fairseq_ext.evaluation.significance`.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tqdm import tqdm

from fairseq_ext.evaluation.score import build_metrics
from fairseq_ext.evaluation.significance import Difference, Runs, Variances, compare_runs, holm
from fairseq_ext.evaluation.tokenizers import USUAL
from fairseq_ext.utils.errors import ConfigError, DataError

SAMPLES = 1000  # sacrebleu's default
SEED = "12345"  # sacrebleu's, where SACREBLEU_SEED is not set
FEWEST = 100  # of fewer samples, the outer 2.5% are two or less


@dataclass(frozen=True)
class Estimate:
    """A score of a system, with its interval and its difference to the baseline.

    Attributes:
        value: on the test set as it is, the mean of the runs; BLEU and chrF 0 to 100, others in
            their own unit.
        low, high: bounds of the 95% interval: of another test set, and with several runs of other
            trainings as well.
        p: of the difference to the baseline; None for the baseline, and where the test set is too
            small to say.
        p_holm: p corrected for the number of systems; likewise.
        runs: trainings that ``value`` is the mean of.
        deviation: standard deviation of the score over them; None for a single run.
        difference: to the baseline; None for the baseline.
    """

    value: float
    low: float
    high: float
    p: float | None = None
    p_holm: float | None = None
    runs: int = 1
    deviation: float | None = None
    difference: Difference | None = None

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2


@dataclass(frozen=True)
class Comparison:
    """Estimates by system and metric (``BLEU``, ``chrF``), and the metrics' signatures."""

    estimates: Mapping[str, Mapping[str, Estimate]]
    signatures: Mapping[str, str]


def bootstrap(
    systems: Mapping[str, Sequence[Sequence[str]]],
    references: Sequence[str],
    baseline: str,
    samples: int = SAMPLES,
    tokenizer: str = USUAL,
    extra_metrics: Sequence[str] = (),
) -> Comparison:
    """BLEU, chrF2 and others of systems with one or several runs, compared with the baseline.

    ``SACREBLEU_SEED`` chooses the samples, as for the command ``sacrebleu --paired-bs``.

    Args:
        systems: by name, the detokenized translations of each run.
        references: detokenized, as many lines as each translation.
        baseline: one of the names.
        samples: how many test sets to draw.
        tokenizer: of sacrebleu, for BLEU.
        extra_metrics: further metrics, see :func:`~fairseq_ext.evaluation.score.build_metrics`.

    Raises:
        ConfigError: no such baseline, or too few samples.
        DataError: unequal numbers of lines, or none.
    """
    translations = {
        f"{name}, run {number}" if len(runs) > 1 else name: run
        for name, runs in systems.items()
        for number, run in enumerate(runs, start=1)
    }
    check_comparable(translations, references, baseline, list(systems), samples)
    drawn = draw_sentences(generator(), len(references), samples)
    estimates: dict[str, dict[str, Estimate]] = {name: {} for name in systems}
    signatures = {}
    for label, metric in build_metrics(references, tokenizer, extra_metrics).items():
        scored = {}
        for name in tqdm(systems, desc=label, unit=" systems", disable=None):
            scored[name] = _runs([score_samples(metric, run, drawn) for run in systems[name]])
        for name, estimate in _estimates(scored, baseline, len(references)).items():
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
    """Compare systems by a metric whose score of a text is the mean of its segments' scores.

    Args:
        label: name of the metric.
        systems: by name, of each run the scores of all segments.
        signature: of the metric.
        baseline: one of the names.
        samples: how many test sets to draw; the same as of the other metrics.
    """
    sentences = len(systems[baseline][0])
    drawn = draw_sentences(generator(), sentences, samples)
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
    """Estimate the score of each system, and its difference to the baseline."""
    estimates = {}
    for name, system in scored.items():
        value, count = statistics.fmean(system.values), len(system.values)
        if count == 1:
            low, high = _interval(system.sampled[:, 0])
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


def generator() -> np.random.Generator:
    """Return the generator of all draws, seeded like sacrebleu."""
    seed = chosen_seed()
    return np.random.default_rng(None if seed == "none" else int(seed))


def draw_sentences(draw: np.random.Generator, sentences: int, samples: int) -> np.ndarray:
    """Numbers of sentences, ``[samples, sentences]``: from a new generator, sacrebleu's own."""
    return draw.choice(sentences, size=(samples, sentences), replace=True)


def score_samples(metric: Any, lines: Sequence[str], draws: np.ndarray) -> tuple[float, np.ndarray]:
    """The score of a translation, and of its samples, ``[samples]``.

    Args:
        metric: of :func:`~fairseq_ext.evaluation.score.build_metrics`.
        lines: of the translation.
        draws: numbers of sentences, ``[samples, sentences]``.
    """
    sentence_statistics = metric._extract_corpus_statistics(lines, None)
    counts = np.array(
        sentence_statistics, dtype=np.float32
    )  # as in sacrebleu, for the same last digits
    sampled = [metric._compute_score_from_stats(counts[rows].sum(0)).score for rows in draws]
    return float(metric._aggregate_and_compute(sentence_statistics).score), np.array(sampled)


def _interval(sampled: np.ndarray) -> tuple[float, float]:
    """Return sacrebleu's interval, which lies evenly around the mean."""
    from sacrebleu.significance import estimate_ci

    mean, half_width = map(float, estimate_ci(sampled))
    return mean - half_width, mean + half_width


def full_signature(metric: Any, samples: int) -> str:
    """sacrebleu's signature of a metric, with the samples and their seed."""
    signature = metric.get_signature()
    signature.update("bs", samples)
    signature.update("seed", chosen_seed())
    return str(signature)


def chosen_seed() -> str:
    """The seed of the samples as sacrebleu's signatures have it: a number, or ``none``.

    Raises:
        ConfigError: ``SACREBLEU_SEED`` is neither.
    """
    seed = os.environ.get("SACREBLEU_SEED", SEED).lower()
    if seed != "none" and not (seed.isascii() and seed.isdigit()):
        raise ConfigError(
            f"`SACREBLEU_SEED` must be a whole number from 0 on, or none, but is `{seed}` instead."
        )
    return seed


def check_comparable(
    translations: Mapping[str, Sequence[str]],
    references: Sequence[str],
    baseline: str,
    names: Sequence[str],
    samples: int,
) -> None:
    """Refuse systems that are not comparable.

    Args:
        translations: by the name that a message gives them.
        references: of all of them.
        baseline: one of ``names``, the systems.
        names: see ``baseline``.
        samples: of the bootstrap.

    Raises:
        ConfigError: no such baseline, too few samples, or no number as `SACREBLEU_SEED`.
        DataError: unequal numbers of lines, or none.
    """
    chosen_seed()
    if baseline not in names:
        raise ConfigError(
            f"`--baseline` must be one of {', '.join(names)}, but is `{baseline}` instead."
        )
    if samples < FEWEST:
        raise ConfigError(f"`--samples` must be at least {FEWEST}, but is {samples} instead.")
    for name, lines in translations.items():
        if len(lines) != len(references) or not references:
            raise DataError(
                f"`{name}` translates {len(lines)} sentences, but the reference has "
                f"{len(references)}; both must be the same text, and not empty."
            )
