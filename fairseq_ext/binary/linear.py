"""Linear layers with binary or ternary weights and, optionally, binary inputs (torch only)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from fairseq_ext.base.dropout import is_active
from fairseq_ext.binary.binarize import TERNARY, Binarizer, Bits, Levels, signs_of

BINARIZER = Binarizer()
GRANULARITIES = {"channel": 1, "tensor": (0, 1)}


class _WeightProduct(torch.autograd.Function):
    """Compute ``A W_b + b`` with float inputs; the backward pass computes ``W_b`` again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, levels: Levels) -> Tensor:
        y = F.linear(x, levels.signs(weight).mul_(levels.level), bias)  # [..., N]
        ctx.save_for_backward(x, weight)
        ctx.levels, ctx.dtype = levels, y.dtype
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors  # [..., K], [N, K]
        levels: Levels = ctx.levels
        of_x = of_weight = None
        if ctx.needs_input_grad[0]:
            matrix = levels.signs(weight).mul_(levels.level)  # W_b: [N, K]
            of_x = (grad @ matrix.to(ctx.dtype)).to(x.dtype)
        if ctx.needs_input_grad[1]:
            of_weight = _of_weight(grad, x.to(ctx.dtype), weight, levels)  # [N, K]
        return of_x, of_weight, _of_bias(ctx, grad), None


class _BinaryProduct(torch.autograd.Function):
    """Compute ``y_n = (a / s) w_n Σ_k ±1 ±1 + b_n`` from levels ``a`` of tokens, ``w`` of channels.

    Signs of ternary weights may be 0.

    The sum is an exact integer, rounded once in half precision. The gradients are those of
    ``A_b W_b / s + b``. ``scale`` is ``s``.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        inputs: Bits,
        levels: Levels,
        scale: float,
    ) -> Tensor:
        y = _product(inputs, levels.signs(weight), levels.level, bias, scale)  # [..., N]
        ctx.save_for_backward(weight)
        ctx.inputs, ctx.levels, ctx.scale, ctx.dtype = inputs, levels, scale, y.dtype
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (weight,) = ctx.saved_tensors  # [N, K]
        inputs, levels, scale, dtype = ctx.inputs, ctx.levels, ctx.scale, ctx.dtype
        of_x = of_weight = None
        if ctx.needs_input_grad[0]:
            matrix = levels.signs(weight).mul_(levels.level / scale)  # W_b / s: [N, K]
            of_x = inputs.mask_((grad @ matrix.to(dtype)).to(inputs.level.dtype))  # [..., K]
        if ctx.needs_input_grad[1]:
            x_b = inputs.signs.to(inputs.level.dtype).mul_(inputs.level / scale)  # [..., K]
            of_weight = _of_weight(grad, x_b.to(dtype), weight, levels)  # [N, K]
        return of_x, of_weight, _of_bias(ctx, grad), None, None, None


def _product(
    inputs: Bits, signs: Tensor, level: Tensor, bias: Tensor | None, scale: float
) -> Tensor:
    """Compute the product from signs ``[N, K]`` and level ``[N, 1]`` of the weights."""
    y = F.linear(inputs.signs.to(signs.dtype), signs)  # Σ ±1 ±1: [..., N]
    y.mul_(inputs.level / scale).mul_(level.squeeze(1))  # by [..., 1] and [N]
    return y if bias is None else y.add_(bias)


def _of_weight(grad: Tensor, x: Tensor, weight: Tensor, levels: Levels) -> Tensor:
    """Return the latent weights' gradient, from ``grad`` ``[..., N]`` and inputs ``[..., K]``."""
    of_weight = _rows(grad).t() @ _rows(x)  # [N, M] [M, K]
    return levels.mask_(of_weight.to(weight.dtype), weight)


def _of_bias(ctx: Any, grad: Tensor) -> Tensor | None:
    return _rows(grad).sum(0) if ctx.needs_input_grad[2] else None


def _rows(x: Tensor) -> Tensor:
    """Reshape ``[..., K]`` to a matrix ``[M, K]``; a vector is one row."""
    return x.reshape(-1, x.size(-1))


class BinaryLinear(nn.Linear):
    """A linear layer with ``A_b W_b / s + b`` instead of ``A W + b`` (sections 3.1 and 3.3).

    ``weight`` ``[N, K]`` holds the latent (float) numbers, which are trained. Each row has a bound,
    its largest magnitude, and so have the ``K`` inputs of each token. After
    :meth:`make_generation_fast_` only binary weights are left; the stage is fixed until reloading.

    Args:
        in_features, out_features, bias: as for ``nn.Linear``.
        weights, inputs: whether they become binary, the weights from stage 1 on and the inputs from
            stage 2 on (:meth:`set_stage`). A new layer is in stage 2.
        scale: ``s``; the product is divided by it while its inputs are binary.
        granularity: ``channel`` for a bound for each row, ``tensor`` for one bound for all weights.
        weight_binarizer, input_binarizer: how weights and inputs are binarized.
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
        self.weights, self.inputs, self.scale = weights, inputs, scale
        self.granularity = granularity
        self.weight_binarizer, self.input_binarizer = weight_binarizer, input_binarizer
        self.frozen_level: Tensor | None
        self.register_buffer("frozen_level", None, persistent=False)
        self.set_stage(2)

    @classmethod
    def of(cls, linear: nn.Linear, **options: Any) -> BinaryLinear:
        """Convert ``linear``; the parameters are the same objects. ``options``: see the class."""
        with torch.device("meta"):  # uses no memory and no random numbers; all is replaced
            binary = cls(linear.in_features, linear.out_features, **options)
        binary.weight, binary.bias = linear.weight, linear.bias
        return binary.train(linear.training)

    def set_stage(self, stage: int) -> None:
        """Binarize nothing (0), weights (1), or weights and inputs (2), if the options say so."""
        self.stage = stage
        if self.frozen_level is None:
            self.binary_weights = self.weights and stage >= 1
            self.binary_inputs = self.inputs and stage >= 2

    def forward(self, x: Tensor, dropout: nn.Module | None = None) -> Tensor:
        """Map ``x``, ``[..., K]``, to ``[..., N]``.

        Args:
            x: the input.
            dropout: applied to the input after its binarization, if it is binarized.
        """
        if not self.binary_weights:
            x = self._read(x, dropout)
            return F.linear(x, self.weight, self.bias)
        if not self.binary_inputs:
            x = self._read(x, dropout)
            if self.frozen_level is not None:
                return F.linear(x, self.weight, self.bias)
            return _WeightProduct.apply(x, self.weight, self.bias, self._levels())
        bits, scale = self.input_binarizer.bits(x, grad=x.requires_grad), self.scale
        if dropout is not None and is_active(dropout):
            bits, scale_up = bits.drop(dropout.p)
            scale = scale / scale_up if scale_up else math.inf  # everything is dropped
        if self.frozen_level is not None:  # the weight holds its signs
            with torch.no_grad():
                return _product(bits, self.weight, self.frozen_level, self.bias, scale)
        return _BinaryProduct.apply(x, self.weight, self.bias, bits, self._levels(), scale)

    def _read(self, x: Tensor, dropout: nn.Module | None) -> Tensor:
        """Return the input of a product in floats, with dropout and, if asked for, binarized."""
        if self.binary_inputs:
            x = self.input_binarizer(x)
            x = x if self.scale == 1 else x / self.scale
        return x if dropout is None else dropout(x)

    def binarized_weight(self) -> Tensor:
        """Return ``W_b`` ``[N, K]``, or the latent weights in stage 0."""
        if not self.binary_weights:
            return self.weight
        if self.frozen_level is not None:
            return self.weight * self.frozen_level
        return self.weight_binarizer(self.weight, GRANULARITIES[self.granularity])

    @torch.no_grad()
    def signs(self) -> tuple[Tensor, Tensor]:
        """Return the signs of ``W_b``, ±1 or 0, int8 ``[N, K]``, and their levels ``[N]``, fp32."""
        weight = self.binarized_weight().float()
        ternary = self.weight_binarizer.kind == TERNARY
        signs = weight.sign() if ternary else signs_of(weight)  # binary ones also of a level of 0
        return signs.to(torch.int8), weight.abs().amax(1)

    def _levels(self) -> Levels:
        """Return the levels of the latent weights."""
        return self.weight_binarizer.levels(self.weight, GRANULARITIES[self.granularity])

    @torch.no_grad()
    def make_generation_fast_(self, **unused: Any) -> None:
        """Binarize the weights once; fairseq calls this before generation, when they are final."""
        if not self.binary_weights or self.frozen_level is not None:
            return
        levels = self._levels()
        level, weight = levels.level, levels.signs(self.weight)
        if not self.binary_inputs:  # a product with floats reads W_b itself
            weight, level = weight.mul_(level), torch.ones_like(level)
        self.weight.data, self.frozen_level = weight, level

    def _load_from_state_dict(
        self, state_dict: Mapping[str, Tensor], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        if f"{prefix}weight" in state_dict:  # latent weights
            self.frozen_level = None
            self.set_stage(self.stage)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def extra_repr(self) -> str:
        ternary = self.weight_binarizer.kind == TERNARY
        size = ("1.58" if ternary else "1") if self.binary_weights else "32"
        bits = f"weight_bits={size}"
        return f"{super().extra_repr()}, {bits}, input_bits={1 if self.binary_inputs else 32}"


class FeedForwardOutput(nn.Module):
    """Compute ``LN(LN(h)_b W_2b + b_2)`` (3.4) of the hidden layer ``h = max(0, A_b W_1b + b_1)``.

    ``h`` is never negative. The inner norm centres it, so that both signs occur.

    Args:
        linear: ``W_2`` and ``b_2``.
        dropout: applied to the hidden layer.
        norms: use the two layer norms.
        dropout_first: apply dropout before binarization, as the paper's code does, so that a
            dropped number becomes ``+B/2``. Otherwise it counts as 0.
    """

    def __init__(
        self,
        linear: BinaryLinear,
        dropout: nn.Module,
        norms: bool = True,
        dropout_first: bool = False,
    ) -> None:
        super().__init__()
        self.linear, self.dropout, self.dropout_first = linear, dropout, dropout_first
        self.input_norm = nn.LayerNorm(linear.in_features) if norms else nn.Identity()
        self.output_norm = nn.LayerNorm(linear.out_features) if norms else nn.Identity()

    def forward(self, hidden: Tensor) -> Tensor:
        """Map ``[..., F]`` to ``[..., C]``."""
        x, dropout = self.input_norm(hidden), self.dropout
        if self.dropout_first:
            x, dropout = dropout(x), None
        return self.output_norm(self.linear(x, dropout))
