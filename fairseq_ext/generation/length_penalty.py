"""The length penalty of GNMT: Wu et al. 2016 (arXiv 1609.08144), section 7, equation 14.

``score(Y) = log P(Y) / lp(Y)`` with ``lp(Y) = ((5 + |Y|) / 6)^α``; ``|Y|`` counts the tokens of a
hypothesis, ``</s>`` among them. fairseq's ``--lenpen`` divides by ``|Y|^lenpen`` instead.
"""

from __future__ import annotations

from typing import Any

from fairseq.sequence_generator import SequenceGenerator, SequenceGeneratorWithAlignment


def penalty(length: int, alpha: float) -> float:
    """Compute ``lp(Y)``, which is 1 for one token; a log-probability is divided by it."""
    return ((5 + length) / 6) ** alpha


class GnmtScores:
    """A mixin for fairseq's generators that divides the score of each finished hypothesis.

    The search is fairseq's: hypotheses of equal length compete by log-probability, and a sentence
    is finished with the ``--beam``-th hypothesis, whatever the scores. So the penalty only ranks
    the hypotheses that were found. Scores of single tokens stay log-probabilities.
    """

    def __init__(self, *args: Any, gnmt_alpha: float, **options: Any) -> None:
        super().__init__(*args, **{**options, "normalize_scores": False})
        self.gnmt_alpha = gnmt_alpha

    def finalize_hypos(
        self, step: int, bbsz_idx: Any, eos_scores: Any, tokens: Any, scores: Any,
        finalized: list[list[dict[str, Any]]], *rest: Any,
    ) -> list[int]:  # fmt: skip
        """Score the hypotheses that end in step ``step``, counted from 0; fairseq's hook."""
        before = [len(hypotheses) for hypotheses in finalized]
        newly_finished = super().finalize_hypos(
            step, bbsz_idx, eos_scores, tokens, scores, finalized, *rest
        )
        divisor = penalty(step + 1, self.gnmt_alpha)
        for hypotheses, old in zip(finalized, before, strict=True):
            for hypothesis in hypotheses[old:]:
                hypothesis["score"] = hypothesis["score"] / divisor
        return newly_finished


class GnmtGenerator(GnmtScores, SequenceGenerator):
    """fairseq's generator with GNMT's scores."""


class GnmtGeneratorWithAlignment(GnmtScores, SequenceGeneratorWithAlignment):
    """fairseq's generator for ``--print-alignment``, with GNMT's scores."""


def generator_options(alpha: float, generation: Any, extra: dict[str, Any] | None) -> dict:
    """Return arguments for fairseq's ``build_generator`` that give GNMT's scores."""
    options = {**(extra or {}), "gnmt_alpha": alpha}
    alignment = getattr(generation, "print_alignment", None)
    if alignment:
        options["print_alignment"] = alignment
    generator_class = GnmtGeneratorWithAlignment if alignment else GnmtGenerator
    return {"seq_gen_cls": generator_class, "extra_gen_cls_kwargs": options}
