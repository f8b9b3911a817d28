"""A linear layer with one bit for each weight, and for each input if asked for (torch only)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_ext.binary.binarize import Binarizer, require_choice
from fairseq_ext.errors import ConfigError

BINARIZER = Binarizer()
GRANULARITIES = {"channel": 1, "tensor": (0, 1)}


class BinaryLinear(nn.Linear):
    """``A_b W_b / s + b`` in place of ``A W + b`` (sections 3.1 and 3.3).

    ``weight`` ``[N, K]`` holds the latent numbers, which are trained. A bound is the largest of a
    row of it, or of a token's ``K`` inputs.

    Args:
        in_features, out_features, bias: as of ``nn.Linear``.
        weights, inputs: what becomes binary from the stage on that :meth:`set_stage` is told:
            weights in stage 1, inputs in stage 2. A new layer is in stage 2.
        scale: ``s``, by which the product is divided while its inputs are binary.
        granularity: ``tensor`` gives all weights one bound.
        weight_binarizer, input_binarizer: how.

    Raises:
        ConfigError: an unknown granularity, or a scale that is not above 0.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        weights: bool = True,
        inputs: bool = False,
        scale: float = 1.0,
        granularity: str = "channel",
        weight_binarizer: Binarizer = BINARIZER,
        input_binarizer: Binarizer = BINARIZER,
    ) -> None:
        super().__init__(in_features, out_features, bias)
        require_choice("granularity", granularity, tuple(GRANULARITIES))
        if not scale > 0:
            raise ConfigError(f"`scale` must be above 0, but is {scale} instead.")
        self.weights, self.inputs, self.scale = weights, inputs, scale
        self.granularity = granularity
        self.weight_binarizer, self.input_binarizer = weight_binarizer, input_binarizer
        self.frozen_level: Tensor | None = None
        self.set_stage(2)

    @classmethod
    def of(cls, linear: nn.Linear, **options: Any) -> BinaryLinear:
        """A binary layer with the very parameters of ``linear``; ``options`` as of the class."""
        with torch.device("meta"):  # neither memory nor random numbers for what is replaced
            binary = cls(linear.in_features, linear.out_features, **options)
        binary.weight, binary.bias = linear.weight, linear.bias
        return binary.train(linear.training)

    def set_stage(self, stage: int) -> None:
        """Binarize nothing (0), the weights (1), weights and inputs (2), as far as it is asked."""
        self.binary_weights = self.weights and stage >= 1
        self.binary_inputs = self.inputs and stage >= 2

    def forward(self, x: Tensor, dropout: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """``[..., K]`` to ``[..., N]``; ``dropout`` is applied to the inputs as they are read."""
        if not self.binary_inputs:
            x = x if dropout is None else dropout(x)
            return F.linear(x, self.binarized_weight(), self.bias)
        signs, level = self.input_binarizer.signs(x)
        signs = signs if dropout is None else dropout(signs)
        weight, weight_level = self.weight_signs()
        y = F.linear(signs, weight) * (level / self.scale)
        if weight_level is not None:
            y = y * weight_level.squeeze(1)
        return y if self.bias is None else y + self.bias

    def binarized_weight(self) -> Tensor:
        """``W_b`` ``[N, K]``; the latent weights in stage 0."""
        if not self.binary_weights:
            return self.weight
        if self.frozen_level is not None:
            return self.weight * self.frozen_level
        return self.weight_binarizer(self.weight, GRANULARITIES[self.granularity])

    def weight_signs(self) -> tuple[Tensor, Tensor | None]:
        """±1 ``[N, K]`` and their levels ``[N, 1]`` (``[1, 1]`` per tensor).

        In stage 0 the latent weights, and None.
        """
        if not self.binary_weights or self.frozen_level is not None:
            return self.weight, self.frozen_level
        return self.weight_binarizer.signs(self.weight, GRANULARITIES[self.granularity])

    @torch.no_grad()
    def make_generation_fast_(self, **unused: Any) -> None:
        """fairseq's hook before generation: the weights change no more, so binarize them once."""
        if self.binary_inputs:
            self.weight.data, self.frozen_level = self.weight_signs()
        else:
            self.weight.data = self.binarized_weight()
            self.binary_weights = False

    def extra_repr(self) -> str:
        bits = f"weight_bits={1 if self.binary_weights else 32}"
        return f"{super().extra_repr()}, {bits}, input_bits={1 if self.binary_inputs else 32}"
