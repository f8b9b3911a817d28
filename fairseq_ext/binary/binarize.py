"""Binarize or ternarize tensors, with gradients for training.

In a matrix product, each row of inputs and each row of weights has a bound ``B``, by default its
largest magnitude. In the backward pass ``B`` is a constant, and the gradient of a binarized number
``x_b`` passes to ``x`` if ``|x|`` is at most a limit such as ``B``, and stops otherwise.

A binarized number is a sign, ±1, times a magnitude, the *level*. A ternary sign may also be 0. A
sum of products of signs is an exact integer in any order (half precision rounds it once, at the
end). So a sentence gets the same sums in a batch, alone, and with weights from stored bits.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

EPSILON = 2.0**-7  # 1 - ε is exact in every precision
TERNARY = "ternary"


class _Quantized(torch.autograd.Function):
    """Autograd function that maps ``x`` to its signs times ``level``; None stands for a level of 1.

    The :class:`Levels` decide which signs are 0, and which gradients pass.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, levels: "Levels", level: Tensor | None) -> Tensor:
        if ctx.needs_input_grad[0]:
            ctx.save_for_backward(levels.passes(x).to(torch.int8), levels.slope)
        signs = levels.signs(x)  # shaped like x
        return signs if level is None else signs.mul_(level)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        passes, slope = ctx.saved_tensors  # shaped like x; [..., 1]
        of_x = passes.to(grad.dtype).mul_(grad)  # shaped like x
        return of_x if slope is None else of_x.mul_(slope), None, None


def signs_of(x: Tensor) -> Tensor:
    """Return the signs of ``x``, without gradient: -1 for negative numbers, 1 for all others."""
    # torch vectorizes these operations; `torch.where` and bool masks take up to 100 times as long.
    return torch.lt(x.detach(), 0, out=torch.empty_like(x)).mul_(-2).add_(1)


class Levels(NamedTuple):
    """The magnitude of binarized numbers ``x_b``, and the range of ``x`` whose gradient passes.

    ``level`` is ``|x_b|``. ``limit`` is the largest ``|x|`` whose gradient passes; ``slope`` is a
    factor for this gradient, None for 1. ``zero`` is the largest ``|x|`` that becomes 0, None if no
    number does. All have size 1 in the dimension that a product sums over.
    """

    level: Tensor
    limit: Tensor
    slope: Tensor | None = None
    zero: Tensor | None = None

    def signs(self, x: Tensor) -> Tensor:
        """Return the signs of the binarized ``x``, ±1 or 0, shaped like ``x``, without gradient."""
        signs = signs_of(x)
        return signs if self.zero is None else signs.mul_(x.detach().abs() > self.zero)

    def passes(self, x: Tensor) -> Tensor:
        """Return 1 where the gradient of ``x_b`` passes to ``x``, else 0; shaped like ``x``."""
        return x.detach().abs().le_(self.limit)

    def mask_(self, grad: Tensor, x: Tensor) -> Tensor:
        """Turn ``grad``, the gradient of the binarized ``x``, into that of ``x``; return it."""
        grad.mul_(self.passes(x))
        return grad if self.slope is None else grad.mul_(self.slope)


@dataclass(frozen=True)
class Binarizer:
    """The function ``x_b = (floor(clip(x / B, -1 + ε, 1 - ε)) + 0.5) B``, that is ``±B/2`` (3.1).

    Zeros, including ``-0.0``, become ``+B/2``. Without a fixed bound, ``B`` and ``x_b`` are 0 if
    all of ``x`` is 0.

    Attributes:
        kind: the function. ``bmt`` is the function above. ``xnor`` is ``sign(x) · mean |x|``, row
            BASE of the paper's Table 1 (Rastegari et al. 2016); the gradient of the sign is 1 for
            ``|x| <= 1``. ``ternary``, only for weights, is ``round(clip(x / γ, -1, 1)) γ`` with
            ``γ = mean |x|``, as in BitNet b1.58 (Ma et al. 2024); its gradient is 1 everywhere.
        mask: where the gradient of ``bmt`` is 1; elsewhere it is 0. ``paper``: where ``|x| <= B``.
            ``code``, as in the authors' program: where ``|x| <= (1 - ε) B``, with ε =
            :data:`EPSILON`, so the largest number gets no gradient.
        bound: a fixed ``B`` for ``bmt``, or None for the largest ``|x|``.
    """

    kind: str = "bmt"
    mask: str = "code"
    bound: float | None = None

    def __call__(self, x: Tensor, dim: int | tuple[int, ...] = -1) -> Tensor:
        """Binarize ``x``: return ``x_b``, shaped like ``x``.

        All numbers along ``dim`` share a bound ``B``, see the class.
        """
        levels = self.levels(x, dim)
        return _Quantized.apply(x, levels, levels.level)

    def signs(self, x: Tensor, dim: int | tuple[int, ...] = -1) -> tuple[Tensor, Tensor]:
        """Binarize ``x``, and return signs, shaped like ``x``, and levels, of size 1 along ``dim``.

        Signs are ±1 or, if ternary, 0. All numbers along ``dim`` share a level. ``signs * levels``
        equals ``x_b``, the result of calling the binarizer, and has the gradient of ``x_b`` with
        respect to ``x``. There is one exception: if all numbers along ``dim`` are 0 (or subnormal
        in fp32), the gradient is about 0.
        """
        levels = self.levels(x, dim)
        # The product multiplies the gradient by the level, which is what `xnor` needs.
        slope = None if self.kind == "xnor" else _inverse(levels.level)
        return _Quantized.apply(x, levels._replace(slope=slope), None), levels.level

    @torch.no_grad()
    def levels(self, x: Tensor, dim: int | tuple[int, ...] = -1) -> Levels:
        """Compute the level of each vector of ``x`` along ``dim``, and where gradients pass."""
        magnitudes = x.abs()
        if self.kind == "xnor":
            mean = magnitudes.mean(dim, keepdim=True)
            return Levels(mean, torch.ones_like(mean), mean)
        if self.kind == TERNARY:
            # A mean of doubles does not depend on the order of the sum. So weights read from a
            # bundle have exactly the level of the trained weights.
            level = magnitudes.mean(dim, keepdim=True, dtype=torch.float64).to(magnitudes.dtype)
            return Levels(level, torch.full_like(level, torch.inf), zero=level * 0.5)
        bound = magnitudes.amax(dim, keepdim=True)
        if self.bound is not None:
            bound = bound.masked_fill(~bound.isnan(), self.bound)  # NaN stays NaN
        return Levels(bound * 0.5, bound * (1 - EPSILON) if self.mask == "code" else bound)


def zero_or_one(x: Tensor) -> tuple[Tensor, Tensor]:
    """Binarize non-negative numbers to 0 or ``B``, the largest number in the last dimension.

    Numbers below ``B/2`` become 0. Return two tensors: 0 or 1, shaped like ``x``, and ``B``
    ``[..., 1]``. Their product has the gradient 1 with respect to ``x``.
    """
    bound = x.detach().amax(-1, keepdim=True)
    levels = Levels(torch.ones_like(bound), bound, 2 * _inverse(bound))
    signs = _Quantized.apply(x - bound * 0.5, levels, None)
    return signs * 0.5 + 0.5, bound


def _inverse(level: Tensor) -> Tensor:
    """Return ``1 / level`` at least in fp32, or 1 where the level is 0 or subnormal.

    In the backward pass, ``signs * level`` multiplies the gradient by ``level``. Multiplying the
    gradient of the signs by this result undoes that.
    """
    level = level.to(torch.promote_types(level.dtype, torch.float32))  # fp16 ends at 65504
    return 1 / level.where(level >= torch.finfo(level.dtype).tiny, 1.0)
