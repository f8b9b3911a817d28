"""Epsilon sampling and GNMT's length penalty for fairseq's generator.

Epsilon sampling draws among the tokens whose probability is at least ε (Hewitt et al. 2022, arXiv
2210.15191). It leaves out the many improbable tokens, which make little sense, but together have
much of the probability. Unlike top-k and top-p, it keeps all good tokens if a distribution is flat.
Freitag et al. 2023 (arXiv 2305.09860) use it for minimum Bayes risk decoding, with ε = 0.02.

The length penalty is equation 14 of Wu et al. 2016 (arXiv 1609.08144), section 7:
``score(Y) = log P(Y) / lp(Y)`` with ``lp(Y) = ((5 + |Y|) / 6)^α``; ``|Y|`` counts the tokens of a
hypothesis, ``</s>`` among them. fairseq's ``--lenpen`` divides by ``|Y|^lenpen`` instead.
"""

import math
from collections.abc import Sequence
from itertools import chain

from fairseq.data import Dictionary
from fairseq.search import Sampling
from torch import Tensor


def truncate(log_probabilities: Tensor, epsilon: float) -> Tensor:
    """Return a copy of ``log_probabilities``, with ``-inf`` for probabilities below ``epsilon``.

    ``log_probabilities [..., V]`` are natural logarithms for ``V`` symbols. The most probable token
    always stays. The other log-probabilities are not normalized again.
    """
    top = log_probabilities.amax(dim=-1, keepdim=True)
    threshold = top.clamp(max=math.log(epsilon) if epsilon > 0 else -math.inf)
    return log_probabilities.masked_fill(log_probabilities < threshold, -math.inf)


class EpsilonSampling(Sampling):
    """A variant of fairseq's ``--sampling`` that draws only tokens with probability at least ε.

    ``--temperature`` is applied first, then the threshold. As in fairseq's own sampling, scores are
    the log-probabilities before truncation.
    """

    def __init__(self, dictionary: Dictionary, epsilon: float) -> None:
        super().__init__(dictionary)
        self.epsilon = epsilon

    def step(self, step: int, lprobs: Tensor, *state: Tensor | None) -> tuple[Tensor, ...]:
        """Truncate ``lprobs``, then draw a token for each hypothesis.

        ``lprobs [B, K, V]`` has ``B`` sentences, ``K`` hypotheses of each, and ``V`` symbols. The
        other arguments and the result are those of fairseq's ``Sampling.step``.
        """
        return super().step(step, truncate(lprobs, self.epsilon), *state)


def with_gnmt_scores(
    sentences: Sequence[Sequence[dict[str, Tensor]]], alpha: float
) -> list[list[dict[str, Tensor]]]:
    """Divide hypotheses' log-probabilities by GNMT's penalty; sort hypotheses, best first.

    ``sentences`` has the finished hypotheses of each sentence, found by fairseq's search. The
    penalty only ranks them, and does not change the search. Scores of single tokens stay
    log-probabilities.
    """
    for hypothesis in chain(*sentences):
        scores = hypothesis["positional_scores"]
        hypothesis["score"] = scores.sum() / ((5 + len(scores)) / 6) ** alpha
    return [sorted(row, key=lambda hypothesis: -float(hypothesis["score"])) for row in sentences]
