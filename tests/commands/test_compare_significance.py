"""p of ``fairseq-ext compare``: its samples, its definition, and how often it errs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import sacrebleu
from sacrebleu.metrics import BLEU
from sacrebleu.significance import PairedTest

from fairseq_ext.evaluation.bootstrap import p_value, paired_bootstrap
from tests.commands.test_compare import damaged, sentences


def test_samples_are_sacrebleus_to_the_last_digit() -> None:
    text = sentences()
    systems = {name: damaged(text, 0.3, seed) for seed, name in enumerate(("a", "b"))}
    ours = paired_bootstrap(systems, text, "a").estimates
    test = PairedTest(list(systems.items()), {"x": BLEU()}, [text], test_type="bs", n_jobs=1)
    for name, theirs in zip(systems, test()[1]["BLEU"], strict=True):
        low, high = theirs.mean - theirs.ci, theirs.mean + theirs.ci
        found = ours[name]["BLEU"]
        assert (found.value, found.low, found.high) == (theirs.score, low, high)


def test_p_from_its_definition() -> None:
    """Each sample scored as a text of its own; differences counted in both directions."""
    text = sentences(20)
    systems = {name: damaged(text, share, 3) for name, share in (("a", 0.2), ("b", 0.25))}
    found = paired_bootstrap(systems, text, "a", samples=200).estimates
    places = np.random.default_rng(12345).choice(20, size=(200, 20), replace=True)

    def bleu(name: str, rows: Sequence[int]) -> float:
        drawn = [text[i] for i in rows]
        return sacrebleu.corpus_bleu([systems[name][i] for i in rows], [drawn]).score

    measured = bleu("b", range(20)) - bleu("a", range(20))
    differences = np.array([bleu("b", rows) - bleu("a", rows) for rows in places])
    centred = differences - differences.mean()
    larger = sum(centred > abs(measured)) + sum(centred < -abs(measured))
    assert found["b"]["BLEU"].p == (larger + 1) / 201
    assert 0.05 < found["b"]["BLEU"].p < 0.95


def test_equally_good_systems_differ_significantly_in_five_of_a_hundred_cases() -> None:
    """sacrebleu's p would be below 0.05 in some ten."""
    draw = np.random.default_rng(1)
    count, below = 2000, 0
    for _ in range(count):
        gains = draw.normal(size=100)  # of one system over the other, in each sentence
        samples = gains[draw.integers(100, size=(200, 100))].mean(axis=1)
        below += p_value(samples, gains.mean()) < 0.05
    assert 0.035 < below / count < 0.07
