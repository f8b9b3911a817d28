"""Epsilon sampling and GNMT's length penalty for fairseq's generator.

Epsilon sampling draws among the tokens whose probability is at least ε (Hewitt et al. 2022, arXiv
2210.15191). Freitag et al. 2023 (arXiv 2305.09860) use it for minimum Bayes risk decoding, with
ε = 0.02. Improbable tokens together have much of a model's probability, but make little sense.
Unlike top-k and top-p, a threshold keeps all good tokens of a flat distribution.

The length penalty is equation 14 of Wu et al. 2016 (arXiv 1609.08144), section 7:
``score(Y) = log P(Y) / lp(Y)`` with ``lp(Y) = ((5 + |Y|) / 6)^α``; ``|Y|`` counts the tokens of a
hypothesis, ``</s>`` among them. fairseq's ``--lenpen`` divides by ``|Y|^lenpen`` instead.

Shapes: ``B`` sentences, ``K`` hypotheses of each (``--beam``), ``V`` symbols.
"""

import math
from typing import Any

from fairseq.data import Dictionary
from fairseq.search import Sampling
from fairseq.sequence_generator import SequenceGenerator, SequenceGeneratorWithAlignment
from torch import Tensor


def truncate(log_probabilities: Tensor, epsilon: float) -> Tensor:
    """Set tokens of probability below ``epsilon`` to ``-inf``, but never the most probable token.

    Args:
        log_probabilities: ``[..., V]``, natural logarithms; not changed.
        epsilon: threshold, 0 to 1.

    Returns:
        ``[..., V]``, not normalized again.
    """
    top = log_probabilities.amax(dim=-1, keepdim=True)
    threshold = top.clamp(max=math.log(epsilon) if epsilon > 0 else -math.inf)
    return log_probabilities.masked_fill(log_probabilities < threshold, -math.inf)


class EpsilonSampling(Sampling):
    """A variant of fairseq's ``--sampling`` that draws only tokens of sufficient probability.

    ``--temperature`` is applied before the threshold. Scores are the model's log-probabilities from
    before truncation, as in fairseq's own sampling.
    """

    def __init__(self, dictionary: Dictionary, epsilon: float) -> None:
        super().__init__(dictionary)
        self.epsilon = epsilon

    def step(self, step: int, lprobs: Tensor, *state: Tensor | None) -> tuple[Tensor, ...]:
        """Draw one token for each hypothesis; ``lprobs`` is ``[B, K, V]``."""
        return super().step(step, truncate(lprobs, self.epsilon), *state)


def penalty(length: int, alpha: float) -> float:
    """Compute ``lp(Y)``, the divisor of log-probabilities, which is 1 for a single token."""
    return ((5 + length) / 6) ** alpha


class GnmtScores:
    """A mixin for fairseq's generators that divides the scores of hypotheses by GNMT's penalty.

    The search itself stays fairseq's: hypotheses of equal length compete by log-probability, and a
    sentence is done when ``--beam`` hypotheses have ended. So the penalty only ranks the finished
    hypotheses. Scores of single tokens stay log-probabilities.
    """

    def __init__(self, *args: Any, gnmt_alpha: float, **options: Any) -> None:
        super().__init__(*args, **{**options, "normalize_scores": False})
        self.gnmt_alpha = gnmt_alpha

    def finalize_hypos(
        self, step: int, bbsz_idx: Any, eos_scores: Any, tokens: Any, scores: Any,
        finalized: list[list[dict[str, Any]]], *rest: Any,
    ) -> list[int]:  # fmt: skip
        """Score the hypotheses that end in step ``step``, counted from 0; fairseq calls this."""
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


def gnmt_options(alpha: float, generation: Any, extra: dict[str, Any] | None) -> dict:
    """Return arguments for fairseq's ``build_generator`` that give GNMT's scores."""
    options = {**(extra or {}), "gnmt_alpha": alpha}
    alignment = getattr(generation, "print_alignment", None)
    if alignment:
        options["print_alignment"] = alignment
    generator_class = GnmtGeneratorWithAlignment if alignment else GnmtGenerator
    return {"seq_gen_cls": generator_class, "extra_gen_cls_kwargs": options}
