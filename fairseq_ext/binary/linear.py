"""A linear layer with one bit for each weight, and for each input if asked for (torch only)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from fairseq_ext.binary.binarize import Binarizer, Bits, require_choice
from fairseq_ext.errors import ConfigError

BINARIZER = Binarizer()
GRANULARITIES = {"channel": 1, "tensor": (0, 1)}


class _BinaryProduct(torch.autograd.Function):
    """``y_n = (a / s) w_n Σ_k ±1 ±1 + b_n``, with levels ``a`` of a token and ``w_n`` of a channel.

    The sum is an exact integer. Gradients are those of ``A_b W_b / s + b``; the bits of both
    operands are found before, so that several products may share them.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        inputs: Bits,
        weights: Bits,
        kept: Tensor | None,
        scale: float,
    ) -> Tensor:
        signs = inputs.signs if kept is None else inputs.signs * kept
        y = F.linear(signs, weights.signs)
        ctx.signs, ctx.inputs, ctx.weights = signs, inputs, weights
        ctx.kept, ctx.scale, ctx.dtype = kept, scale, y.dtype
        y.mul_(inputs.level / scale).mul_(weights.level.squeeze(1))
        return y if bias is None else y.add_(bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        inputs, weights, dtype = ctx.inputs, ctx.weights, ctx.dtype
        of_x = of_weight = of_bias = None
        if ctx.needs_input_grad[0]:
            matrix = (weights.signs * (weights.level / ctx.scale)).to(dtype)
            of_x = grad.to(dtype) @ matrix
            of_x = inputs.gradient(of_x if ctx.kept is None else of_x * ctx.kept)
        if ctx.needs_input_grad[1]:
            rows = (grad * (inputs.level / ctx.scale)).to(dtype).flatten(0, -2)
            of_weight = weights.gradient(rows.t() @ ctx.signs.to(dtype).flatten(0, -2))
            of_weight = of_weight.to(weights.level.dtype)
        if ctx.needs_input_grad[2]:
            of_bias = grad.flatten(0, -2).sum(0)
        return of_x, of_weight, of_bias, None, None, None, None


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

    def forward(
        self,
        x: Tensor,
        dropout: Callable[[Tensor], Tensor] | None = None,
        bits: Bits | None = None,
    ) -> Tensor:
        """``[..., K]`` to ``[..., N]``.

        Args:
            x: the input.
            dropout: applied to the input as it is read, binarized or not.
            bits: what :meth:`bits` of a layer with the same options gave for ``x``.
        """
        if not (self.binary_inputs and self.binary_weights):
            x = self.input_binarizer(x) if self.binary_inputs else x
            x = x if dropout is None else dropout(x)
            if self.scale == 1 or not self.binary_inputs:
                return F.linear(x, self.binarized_weight(), self.bias)
            return F.linear(x / self.scale, self.binarized_weight(), self.bias)
        bits = self.bits(x) if bits is None else bits
        kept = None if dropout is None else factors(dropout, x)
        weights = self.weight_bits()
        return _BinaryProduct.apply(x, self.weight, self.bias, bits, weights, kept, self.scale)

    def bits(self, x: Tensor) -> Bits | None:
        """What the layer reads of ``x``, if that is binary."""
        if not (self.binary_inputs and self.binary_weights):
            return None
        return self.input_binarizer.bits(x, grad=x.requires_grad)

    def binarized_weight(self) -> Tensor:
        """``W_b`` ``[N, K]``; the latent weights in stage 0."""
        if not self.binary_weights:
            return self.weight
        if self.frozen_level is not None:
            return self.weight * self.frozen_level
        return self.weight_binarizer(self.weight, GRANULARITIES[self.granularity])

    def weight_bits(self) -> Bits:
        """±1 ``[N, K]`` and levels ``[N, 1]`` (``[1, 1]`` per tensor)."""
        if self.frozen_level is not None:
            return Bits(self.weight, self.frozen_level)
        dim = GRANULARITIES[self.granularity]
        return self.weight_binarizer.bits(self.weight, dim, self.weight.requires_grad)

    @torch.no_grad()
    def make_generation_fast_(self, **unused: Any) -> None:
        """fairseq's hook before generation: the weights change no more, so binarize them once."""
        if self.binary_inputs and self.binary_weights:
            bits = self.weight_bits()
            self.weight.data, self.frozen_level = bits.signs, bits.level
        else:
            self.weight.data = self.binarized_weight()
            self.binary_weights = False

    def extra_repr(self) -> str:
        bits = f"weight_bits={1 if self.binary_weights else 32}"
        return f"{super().extra_repr()}, {bits}, input_bits={1 if self.binary_inputs else 32}"


def factors(dropout: Callable[[Tensor], Tensor], x: Tensor) -> Tensor | None:
    """What ``dropout`` multiplies each of ``x`` by; None where it leaves everything."""
    if isinstance(dropout, nn.Module) and not is_active(dropout):
        return None
    return dropout(torch.ones_like(x, requires_grad=False))


def is_active(dropout: nn.Module) -> bool:
    """Whether a dropout module changes anything now, in generation with dropout as well."""
    running = dropout.training or getattr(dropout, "apply_during_inference", False)
    return bool(running and getattr(dropout, "p", 0))
