"""One bit for each number: the binarization of section 3.1 and its gradient (torch only).

The bound ``B`` is one number for each product of rows with columns: along the dimension that is
summed over. It is detached, so a gradient passes a number by itself or not at all.

Binarized numbers come in two forms: ``x_b`` itself, and signs ±1 with a level. Where both operands
of a product are binary the sum over signs is an exact integer, whatever its order: a sum that is 0
stays 0, and the next binarization sees the same sign in a batch, alone, and in a packed model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fairseq_ext.errors import ConfigError

EPSILON = 2.0**-7  # 1 - ε is exact in every precision
MASKS = ("code", "paper")
KINDS = ("bmt", "xnor")


class _TwoLevels(torch.autograd.Function):
    """``±level`` by sign, zeros ``+``; the gradient is ``slope`` where ``|x| <= limit``, else 0."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx,
        x: Tensor,
        level: Tensor,
        limit: Tensor,
        slope: Tensor | None,
    ) -> Tensor:
        if ctx.needs_input_grad[0]:
            ctx.save_for_backward(x.abs() <= limit, slope)
        return torch.where(x >= 0, level, -level)

    @staticmethod
    def backward(
        ctx: torch.autograd.function.FunctionCtx, grad: Tensor
    ) -> tuple[Tensor, None, None, None]:
        passes, slope = ctx.saved_tensors
        grad = grad * passes
        return grad if slope is None else grad * slope, None, None, None


class Bits(NamedTuple):
    """A binarized operand ``signs · level``, and what gradients of it are multiplied by.

    Attributes:
        signs: ±1.
        level: with size 1 along what is summed over.
        passes: true where the gradient passes; None where none is needed.
        slope: of the gradient there, where it is not 1.
    """

    signs: Tensor
    level: Tensor
    passes: Tensor | None = None
    slope: Tensor | None = None

    def gradient(self, grad: Tensor) -> Tensor:
        """From the gradient of ``signs · level`` to that of the latent numbers."""
        grad = grad * self.passes
        return grad if self.slope is None else grad * self.slope


@dataclass(frozen=True)
class Binarizer:
    """``x_b = (floor(clip(x / B, -1 + ε, 1 - ε)) + 0.5) B``, which is ``±B/2`` (section 3.1).

    Zeros, ``-0.0`` too, become ``+B/2``. Where all of ``x`` is 0, so are ``B`` and ``x_b``.

    Attributes:
        kind: ``bmt`` as above, or ``xnor`` for ``sign(x) · mean |x|`` with the gradient of
            ``sign`` 1 for ``|x| <= 1`` (Rastegari et al. 2016): row BASE of the paper's Table 1.
        mask: the gradient is 1 for ``|x| <= (1 - ε) B`` (``code``: clip's own gradient, 0 at the
            largest element) or for ``|x| <= B`` (``paper``: as printed), else 0.
        bound: a fixed ``B``; None for the largest ``|x|``.

    Raises:
        ConfigError: an unknown kind or mask, or a bound that is not above 0.
    """

    kind: str = "bmt"
    mask: str = "code"
    bound: float | None = None

    def __post_init__(self) -> None:
        require_choice("kind", self.kind, KINDS)
        require_choice("mask", self.mask, MASKS)
        if self.bound is not None and not self.bound > 0:
            raise ConfigError(f"`bound` must be above 0, but is {self.bound} instead.")

    def __call__(self, x: Tensor, dim: int | tuple[int, ...] = -1) -> Tensor:
        """``x_b``, like ``x``; what lies along ``dim`` (all of it: the tensor) shares a bound."""
        level, limit = self._level_and_limit(x.detach(), dim)
        return _TwoLevels.apply(x, level, limit, level if self.kind == "xnor" else None)

    def signs(self, x: Tensor, dim: int | tuple[int, ...] = -1) -> tuple[Tensor, Tensor]:
        """Signs ±1 like ``x``, and their level with size 1 along ``dim``: ``x_b`` is the product.

        The product's gradient is that of ``x_b``.
        """
        level, limit = self._level_and_limit(x.detach(), dim)
        slope = torch.ones_like(level) if self.kind == "xnor" else _inverse(level)
        return _TwoLevels.apply(x, torch.ones_like(level), limit, slope), level

    @torch.no_grad()
    def bits(self, x: Tensor, dim: int | tuple[int, ...] = -1, grad: bool = True) -> Bits:
        """The same for products that write their gradient themselves; ``grad``: if it is wanted."""
        level, limit = self._level_and_limit(x, dim)
        signs = torch.where(x >= 0, torch.ones_like(level), -torch.ones_like(level))
        passes = x.abs() <= limit if grad else None
        return Bits(signs, level, passes, level if self.kind == "xnor" else None)

    def _level_and_limit(self, x: Tensor, dim: int | tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """The size of ``x_b``, and of the ``|x|`` up to which the gradient passes."""
        if self.kind == "xnor":
            mean = x.abs().mean(dim, keepdim=True)
            return mean, torch.ones_like(mean)
        bound = torch.linalg.vector_norm(x, torch.inf, dim, keepdim=True)
        if self.bound is not None:
            bound = torch.full_like(bound, self.bound)
        return bound * 0.5, bound * (1 - EPSILON) if self.mask == "code" else bound


def zero_or_one(x: Tensor) -> tuple[Tensor, Tensor]:
    """The unsigned variant for numbers from 0 up: ``B`` for those of at least ``B/2``, else 0.

    Returns:
        0 and 1 like ``x``, and ``B`` ``[..., 1]``, the largest of each row. The gradient of their
        product is 1.
    """
    bound = x.detach().amax(-1, keepdim=True)
    signs = _TwoLevels.apply(x - bound * 0.5, torch.ones_like(bound), bound, 2 * _inverse(bound))
    return signs * 0.5 + 0.5, bound


def _inverse(level: Tensor) -> Tensor:
    """``1 / level``, and 1 where that is 0: there every gradient is multiplied by 0 later."""
    return 1 / level.where(level > 0, 1.0)


def require_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Raise :class:`ConfigError` where ``value`` is not one of ``choices``."""
    if value not in choices:
        raise ConfigError(f"`{name}` must be one of {choices}, but is {value} instead.")
