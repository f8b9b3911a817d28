"""Scores with 95% intervals, and whether a system differs from a baseline (Koehn 2004).

Both come from sacrebleu's paired bootstrap: test sets are drawn from the test set with
replacement, the same ones for both systems. The p-value estimates how often a difference as large
as the measured one would arise by chance between two equally good systems. Training a system
again with another seed is not part of that chance.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tqdm import tqdm

from fairseq_ext.errors import ConfigError, DataError, EnvironmentProblem

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
    gives the same figures.

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
    others = [name for name in systems if name != baseline]
    estimates: dict[str, dict[str, Estimate]] = {}
    signatures: dict[str, str] = {}
    # One system at a time, for the progress bar; sacrebleu begins each with the same seed.
    for name in tqdm(
        others or [None], desc="bootstrap", unit=" systems", file=sys.stderr, disable=None
    ):
        names = [baseline, name] if name is not None else [baseline]
        signatures, found = _test([(one, list(systems[one])) for one in names], references, samples)
        estimates |= found
    ordered = {name: estimates[name] for name in systems}
    return Comparison(ordered, signatures)


def _test(
    named: Sequence[tuple[str, list[str]]], references: Sequence[str], samples: int
) -> tuple[dict[str, str], dict[str, dict[str, Estimate]]]:
    """sacrebleu's own test of the later systems against the first."""
    found = metrics()
    from sacrebleu.significance import PairedTest

    test = PairedTest(
        list(named), found, [list(references)], test_type="bs", n_samples=samples, n_jobs=1
    )
    signatures, results = test()
    names = {"chrF2": "chrF"}  # as `fairseq-ext score` calls it
    estimates: dict[str, dict[str, Estimate]] = {name: {} for name, _ in named}
    for metric in signatures:
        baseline = results[metric][0].score
        for (name, _), result in zip(named, results[metric], strict=True):
            low, high = result.mean - result.ci, result.mean + result.ci
            p = result.p_value
            if p is not None and result.score == baseline:
                p = 1.0  # no difference is no evidence, but sacrebleu counts larger ones alone
            estimate = Estimate(*map(float, (result.score, low, high)), p=p)
            estimates[name][names.get(metric, metric)] = estimate
    return {names.get(m, m): str(signature) for m, signature in signatures.items()}, estimates


def metrics(references: Sequence[str] | None = None) -> dict[str, Any]:
    """sacrebleu's BLEU and chrF2, with the references prepared where they are given.

    Raises:
        EnvironmentProblem: sacrebleu is missing, or too old.
    """
    try:
        from sacrebleu.metrics import BLEU, CHRF
    except ImportError as error:
        raise EnvironmentProblem(
            "Comparing needs sacrebleu 2 or later: `pip install 'sacrebleu>=2.4'`."
        ) from error
    prepared = None if references is None else [list(references)]
    return {"BLEU": BLEU(references=prepared), "chrF": CHRF(references=prepared)}


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
    """Refuse what cannot be compared.

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
