#!/usr/bin/env python
"""Measure how often `fairseq-ext compare` finds a true difference, and how often a false one.

    python benchmarks/significance.py --experiments 10000 --json docs/results/significance.json
    python benchmarks/significance.py --pseudo docs/results/multi30k_all/translations.tsv.xz \\
        --ref test.de --spread uniform --experiments 10000 --json uniform.json

Every experiment compares two systems, by the test of :mod:`fairseq_ext.evaluation.significance`.
Each system has a few *runs*: trainings that differ only in their seed.

The first command draws the runs' scores at random. A score is the system's true score plus three
random effects, whose standard deviations are about those that we measured on our translations:

- an effect of the run's seed (several standard deviations are tried, from 0);
- an effect of the test sentences on this run alone;
- an effect of the test sentences on all runs of the system (two standard deviations are tried).

The second command makes *pseudo-runs* from the published translations in the table --pseudo. A
pseudo-run takes the translation of each sentence from a random run or, with some probability, from
a worse system. Each pseudo-run has its own random probability, which stands for the effect of its
seed. The pseudo-runs of both systems are made from the same runs, so there is no true difference.
"""

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import NormalDist

import numpy as np

from fairseq_ext.evaluation import tables
from fairseq_ext.evaluation.score import build_metrics, plain_lines
from fairseq_ext.evaluation.significance import LEVEL, Runs, Variances, student_quantile
from fairseq_ext.text.generated import Postprocessor
from fairseq_ext.utils import files

RUNS = [(left, right) for left in range(1, 6) for right in range(1, left + 1) if left + right > 2]
SEEDS = (0.0, 0.15, 0.3, 0.6)  # standard deviations of the effect of a run's seed, over UNITS
# Standard deviations of the effect of the test sentences: on one run, and on all runs of a system.
NOISE = {"BLEU": 0.33, "chrF": 0.25, "COMET": 0.0025}
SHARED = {"BLEU": (0.07, 0.3), "chrF": (0.07, 0.3), "COMET": (0.0007, 0.003)}
UNITS = {"BLEU": 1.0, "chrF": 1.0, "COMET": 0.01}  # true differences, and factors of SEEDS
SAMPLES = 1000  # samples of the bootstrap
POOL, WORSE = ("transformer", "muse"), "linformer-8"  # systems from which pseudo-runs are made
GAP = 2.5  # BLEU by which the worse system is below the pool


def simulate(
    left: int, right: int, seeds: float, noise: float, shared: float, gain: float, count: int
) -> tuple[float, float]:
    """Simulate experiments with random scores of two systems.

    Args:
        left: runs of the first system.
        right: runs of the second system.
        seeds: standard deviation of the effect of a run's seed.
        noise: standard deviation of the effect of the test sentences on one run.
        shared: standard deviation of the effect of the test sentences on all runs of a system.
        gain: true difference, by which the first system is better.
        count: number of experiments.

    Returns:
        The percentage of experiments with p < 0.05, and the percentage in which the confidence
        interval contains the true difference.
    """
    draw = np.random.default_rng(1)
    scores = draw.normal(0, math.hypot(seeds, noise), (count, left + right))
    scores[:, :left] += draw.normal(gain, shared, (count, 1))
    scores[:, left:] += draw.normal(0, shared, (count, 1))
    weight, freedom = 1 / left + 1 / right, left + right - 2
    # The bootstrap's variances have a random error, because there are only ``SAMPLES`` samples.
    by_sentences = (2 * shared**2 + weight * noise**2) * _of_samples(draw, count)
    of_noise = noise**2 * _of_samples(draw, count)
    ours, theirs = scores[:, :left], scores[:, left:]
    squares = left * ours.var(axis=1) + right * theirs.var(axis=1)
    differences = ours.mean(axis=1) - theirs.mean(axis=1)
    half = half_widths(by_sentences, of_noise, squares / freedom, weight, freedom)
    return _share(np.abs(differences) > half), _share(np.abs(differences - gain) <= half)


def half_widths(
    by_sentences: np.ndarray, noise: np.ndarray, seeds: np.ndarray, weight: float, freedom: int
) -> np.ndarray:
    """Compute half the width of the confidence interval of each of ``E`` experiments.

    This is :meth:`Variances.half_width` for many experiments at once. The result and three
    variances are ``[E]``: ``by_sentences``, the bootstrap's variance of the systems' difference;
    ``noise``, the bootstrap's variance of a run's score; and ``seeds``, the variance between runs
    of a system. This last variance has ``freedom`` degrees of freedom. ``weight`` is 1 / runs,
    summed over the systems.
    """
    normal, student = NormalDist().inv_cdf(1 - LEVEL / 2), student_quantile(freedom)
    shared = np.maximum(0, by_sentences - weight * noise)
    variances = Variances(float(shared[0]), float(seeds[0]), float(noise[0]), weight, freedom)
    half = np.sqrt(normal**2 * shared + student**2 * weight * seeds)
    assert math.isclose(half[0], variances.half_width(), rel_tol=1e-9)
    return half


def _of_samples(draw: np.random.Generator, count: int) -> np.ndarray:
    return draw.chisquare(SAMPLES - 1, count) / (SAMPLES - 1)


def _share(cases: np.ndarray) -> float:
    return round(100 * float(cases.mean()), 2)


def model_rows(count: int) -> Iterator[dict]:
    """Simulate ``count`` experiments for each metric, standard deviation and number of runs.

    Yield a row for each combination, with these percentages:

    - ``errors``: experiments with p < 0.05 although there is no true difference;
    - ``covered``: experiments without true difference whose confidence interval contains 0;
    - ``power``: experiments with p < 0.05 where there is a true difference.
    """
    for metric, unit in UNITS.items():
        for shared in SHARED[metric]:
            for seeds in SEEDS:
                for left, right in RUNS:
                    parts = (left, right, seeds * unit, NOISE[metric], shared)
                    errors, covered = simulate(*parts, 0.0, count)
                    power, _ = simulate(*parts, unit, count)
                    yield {
                        "metric": metric,
                        "shared": shared,
                        "seeds": seeds * unit,
                        "runs": [left, right],
                        "errors": errors,
                        "covered": covered,
                        "power": power,
                    }


def pseudo_rows(table: Path, reference: Path, spread: str, count: int) -> Iterator[dict]:
    """Make ``count`` experiments for each metric, effect of seeds and number of pseudo-runs.

    Yield a row for each combination; ``errors`` is the percentage of experiments with p < 0.05.

    Args:
        table: file of translations of several systems.
        reference: file of their references.
        spread: ``normal`` or ``uniform``, the distribution from which each pseudo-run draws its
            probability of taking a translation from the worse system.
        count: number of experiments.
    """
    references = plain_lines(reference)
    undo = Postprocessor.by_language(reference.suffix[1:])
    systems = {name: columns.runs for name, columns in tables.read_table(table).items()}
    draw = np.random.default_rng(1)
    for label, metric in build_metrics(references).items():
        pool = [_counts(metric, undo.text(run)) for name in POOL for run in systems[name]]
        worse = _counts(metric, undo.text(systems[WORSE][0]))
        weights = draw.multinomial(
            len(references), [1 / len(references)] * len(references), 200
        ).astype(np.float32)
        for seeds in SEEDS:
            for left, right in ((2, 1), (3, 1), (5, 1), (2, 2), (3, 3), (5, 5)):
                errors = [
                    _pseudo_experiment(
                        metric, np.stack(pool), worse, weights, seeds, (left, right), spread, draw
                    )
                    for _ in range(count)
                ]
                yield {
                    "metric": label,
                    "seeds": seeds,
                    "runs": [left, right],
                    "errors": _share(np.array(errors)),
                }


def _counts(metric, lines: Sequence[str]) -> np.ndarray:
    return np.array(metric._extract_corpus_statistics(list(lines), None), dtype=np.float32)


def _pseudo_experiment(metric, pool, worse, weights, seeds, runs, spread, draw) -> bool:
    """Make the pseudo-runs of two systems from the same runs; return whether p < 0.05.

    ``pool`` has sacrebleu's statistics of the runs' sentences, and ``worse`` those of the worse
    system. ``weights`` say how often each bootstrap sample has each sentence. ``seeds`` is the
    standard deviation of pseudo-runs' BLEU. ``runs`` are the two systems' numbers of pseudo-runs.
    ``spread`` is as in :func:`pseudo_rows`.
    """
    total, sentences = sum(runs), len(worse)
    # Each run's share of the worse system; in BLEU, its standard deviation is ``seeds``.
    if spread == "uniform":
        rate = draw.uniform(0, min(1.0, seeds * math.sqrt(12) / GAP), total)
    else:
        rate = np.clip(draw.normal(0.5, seeds / GAP, total), 0, 1)
    values, sampled = [], []
    for run in range(total):
        counts = pool[draw.integers(len(pool), size=sentences), np.arange(sentences)]
        counts = np.where(draw.random((sentences, 1)) < rate[run], worse, counts)
        scores = _scores(metric, np.vstack([counts.sum(axis=0), weights @ counts]))
        values.append(scores[0])
        sampled.append(scores[1:])
    drawn = np.stack(sampled, axis=1)
    ours = Runs(np.array(values[: runs[0]]), drawn[:, : runs[0]])
    theirs = Runs(np.array(values[runs[0] :]), drawn[:, runs[0] :])
    difference = ours.values.mean() - theirs.values.mean()
    return abs(difference) > Variances.of(ours, theirs).half_width()


def _scores(metric, counts: np.ndarray) -> np.ndarray:
    """Return BLEU without smoothing, or chrF, of ``N`` texts, ``[N]``.

    ``counts`` are the sums of sacrebleu's ``S`` statistics over each text's sentences, ``[N, S]``.
    """
    if hasattr(metric, "char_order"):
        hyp, ref, match = (counts[:, part::3] for part in range(3))
        precision, recall = match / np.maximum(hyp, 1), match / np.maximum(ref, 1)
        beta = metric.beta**2
        denominator = beta * precision + recall
        return 100 * ((1 + beta) * precision * recall / np.maximum(denominator, 1e-9)).mean(axis=1)
    length, reference = counts[:, 0], counts[:, 1]
    correct, total = counts[:, 2:6], counts[:, 6:10]
    brevity = np.minimum(0, 1 - reference / length)
    return 100 * np.exp(brevity + np.log(correct / total).mean(axis=1))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--experiments", type=int, default=10_000, metavar="N", help="experiments for each row")
    add("--pseudo", type=Path, metavar="TABLE", help="make pseudo-runs of this table's runs")
    add("--ref", type=Path, metavar="FILE", help="with --pseudo: the table's reference")
    spread = "with --pseudo: distribution of the pseudo-runs' random probabilities (normal)"
    add("--spread", choices=("normal", "uniform"), default="normal", help=spread)
    add("--json", type=Path, metavar="FILE", help="write the percentages there")
    options = parser.parse_args()
    if options.pseudo:
        parts = (options.pseudo, options.ref, options.spread, options.experiments)
        rows = list(pseudo_rows(*parts))
    else:
        rows = list(model_rows(options.experiments))
    print(markdown(rows))
    if options.json:
        report = {"experiments": options.experiments, "rows": rows}
        with files.atomic_write(options.json) as file:
            file.write(json.dumps(report) + "\n")


def markdown(rows: Sequence[dict]) -> str:
    """Format tables of errors, coverage and power; the column "3 v 2" is for 3 runs against 2."""
    names = [f"{left} v {right}" for left, right in dict.fromkeys(tuple(r["runs"]) for r in rows)]
    parts = []
    for rate_name in ("errors", "covered", "power"):
        if rate_name not in rows[0]:
            continue
        heading = [f"{rate_name}, %", "shared", "seeds", *names]
        cells: dict[tuple, list[str]] = {}
        for row in rows:
            key = (row["metric"], row.get("shared", "–"), row["seeds"])
            cells.setdefault(key, []).append(f"{row[rate_name]:.1f}")
        body = [[*map(str, key), *rates] for key, rates in cells.items()]
        parts.append(tables.markdown([heading, *body]))
    return "\n\n".join(parts)


if __name__ == "__main__":
    main()
