"""Scores with 95% intervals, and whether a system differs from a baseline (Koehn 2004).

Both come from the paired bootstrap: test sets are drawn from the test set with replacement, the
same ones for both systems. Scores, samples and intervals are those of ``sacrebleu --paired-bs``;
p is not, see :func:`p_value`. Training a system again with another seed is not part of the chance
that p speaks of.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from tqdm import tqdm

from fairseq_ext.evaluation.score import load_sacrebleu
from fairseq_ext.utils.errors import ConfigError, DataError

SAMPLES = 1000  # sacrebleu's default
SEED = "12345"  # sacrebleu's, where SACREBLEU_SEED is not set
FEWEST = 100  # of fewer samples, the outer 2.5% are two or less


@dataclass(frozen=True)
class Estimate:
    """One score of one system.

    Attributes:
        value: on the test set as it is; BLEU and chrF 0 to 100, others in their own unit.
        low, high: bounds of the 95% interval, around the mean of the samples.
        p: of the difference to the baseline; None for the baseline.
        runs: trainings that ``value`` is the mean of.
        deviation: standard deviation of the score over them; None for a single run.
    """

    value: float
    low: float
    high: float
    p: float | None = None
    runs: int = 1
    deviation: float | None = None

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Comparison:
    """Estimates by system and metric (``BLEU``, ``chrF``), and the metrics' signatures."""

    estimates: Mapping[str, Mapping[str, Estimate]]
    signatures: Mapping[str, str]


def paired_bootstrap(
    systems: Mapping[str, Sequence[str]],
    references: Sequence[str],
    baseline: str,
    samples: int = SAMPLES,
) -> Comparison:
    """BLEU and chrF2 of several translations of one text, each compared with the baseline.

    ``SACREBLEU_SEED`` chooses the samples, as for the command ``sacrebleu --paired-bs``, which
    gives the same scores and intervals.

    Args:
        systems: by name, the detokenized translations.
        references: detokenized, as many lines.
        baseline: one of the names.
        samples: how many test sets to draw.

    Raises:
        ConfigError: no such baseline, or too few samples.
        DataError: unequal numbers of lines, or none.
    """
    check_comparable(systems, references, baseline, list(systems), samples)
    chosen = draw_sentences(generator(), len(references), samples)
    estimates: dict[str, dict[str, Estimate]] = {name: {} for name in systems}
    signatures = {}
    for label, metric in metrics(references).items():
        found = {}
        for name in tqdm(systems, desc=label, unit=" systems", file=sys.stderr, disable=None):
            found[name] = score_samples(metric, systems[name], chosen)
        for name, (value, sampled) in found.items():
            low, high = _interval(sampled)
            p = None
            if name != baseline:
                other, others = found[baseline]
                p = p_value(sampled - others, value - other)
            estimates[name][label] = Estimate(value, low, high, p)
        signatures[label] = full_signature(metric, samples)
    return Comparison(estimates, signatures)


def p_value(differences: np.ndarray, measured: float) -> float:
    """Estimate how often two equally good systems differ as much, in either direction.

    Were they equally good, the differences of the samples would lie around zero as they now lie
    around their mean (Efron and Tibshirani 1993, section 16.4). sacrebleu, after a script of Moses,
    centres the absolute differences instead; where all have one sign, that counts one direction
    only, about half as many.

    Args:
        differences: of the two systems' scores, ``[samples]``.
        measured: the difference on the test set itself.

    Returns:
        ``(larger + 1) / (samples + 1)`` (Davison and Hinkley 1997, section 4.2), never 0; 1 where
        nothing was measured.
    """
    if not measured:
        return 1.0
    larger = int((np.abs(differences - differences.mean()) > abs(measured)).sum())
    return (larger + 1) / (len(differences) + 1)


def generator() -> np.random.Generator:
    """Return the generator of all draws, seeded like sacrebleu."""
    seed = chosen_seed()
    return np.random.default_rng(None if seed == "none" else int(seed))


def draw_sentences(draw: np.random.Generator, sentences: int, samples: int) -> np.ndarray:
    """Numbers of sentences, ``[samples, sentences]``: from a new generator, sacrebleu's own."""
    return draw.choice(sentences, size=(samples, sentences), replace=True)


def score_samples(
    metric: Any, lines: Sequence[str], chosen: np.ndarray
) -> tuple[float, np.ndarray]:
    """The score of a translation, and of its samples, ``[samples]``.

    Args:
        metric: of :func:`metrics`, with references.
        lines: of the translation.
        chosen: numbers of sentences, ``[samples, sentences]``.
    """
    found = metric._extract_corpus_statistics(lines, None)
    counts = np.array(found, dtype=np.float32)  # as in sacrebleu, for the same last digits
    sampled = [metric._compute_score_from_stats(counts[rows].sum(0)).score for rows in chosen]
    return float(metric._aggregate_and_compute(found).score), np.array(sampled)


def _interval(sampled: np.ndarray) -> tuple[float, float]:
    """Return sacrebleu's interval, which lies evenly around the mean."""
    from sacrebleu.significance import estimate_ci

    mean, half_width = map(float, estimate_ci(sampled))
    return mean - half_width, mean + half_width


def full_signature(metric: Any, samples: int) -> str:
    """sacrebleu's signature of a metric, with the samples and their seed."""
    found = metric.get_signature()
    found.update("bs", samples)
    found.update("seed", chosen_seed())
    return str(found)


def metrics(references: Sequence[str]) -> dict[str, Any]:
    """sacrebleu's BLEU and chrF2, with the references prepared.

    Raises:
        EnvironmentProblem: sacrebleu is missing, or too old.
    """
    sacrebleu = load_sacrebleu()
    prepared = [list(references)]
    return {
        "BLEU": sacrebleu.BLEU(references=prepared),
        "chrF": sacrebleu.CHRF(references=prepared),
    }


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
