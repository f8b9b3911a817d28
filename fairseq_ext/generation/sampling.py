"""Epsilon sampling: draw among the tokens whose probability is at least ε.

Hewitt et al. 2022 (arXiv 2210.15191), for minimum Bayes risk decoding Freitag et al. 2023 (arXiv
2305.09860, with ε = 0.02). Rare tokens together have much of a model's probability but make little
sense. Unlike top-k and top-p, a threshold keeps all good tokens of a flat distribution.

Shapes: ``B`` sentences, ``K`` hypotheses of each (``--beam``), ``V`` symbols.
"""

from __future__ import annotations

import math

from fairseq.data import Dictionary
from fairseq.search import Sampling
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
    """fairseq's ``--sampling`` from the truncated and renormalized distribution.

    ``--temperature`` comes before the threshold. Scores are the model's log-probabilities, as with
    fairseq's own sampling, and not those of the truncated distribution.
    """

    def __init__(self, dictionary: Dictionary, epsilon: float) -> None:
        super().__init__(dictionary)
        self.epsilon = epsilon

    def step(self, step: int, lprobs: Tensor, *state: Tensor | None) -> tuple[Tensor, ...]:
        """Draw one token for each hypothesis; ``lprobs`` is ``[B, K, V]``."""
        return super().step(step, truncate(lprobs, self.epsilon), *state)
