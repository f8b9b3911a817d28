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

from fairseq_ext.base.dropout import draw
from fairseq_ext.errors import ConfigError

EPSILON = 2.0**-7  # 1 - ε is exact in every precision
MASKS = ("code", "paper")
KINDS = ("bmt", "xnor")


class _TwoLevels(torch.autograd.Function):
    """``±level``, or ±1, by sign; the gradient is ``slope`` where ``|x| <= limit``, else 0."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx, x: Tensor, levels: Levels, level: Tensor | None
    ) -> Tensor:
        if ctx.needs_input_grad[0]:
            ctx.save_for_backward(levels.passes(x).to(torch.int8), levels.slope)
        signs = signs_of(x)  # like x
        return signs if level is None else signs.mul_(level)

    @staticmethod
    def backward(
        ctx: torch.autograd.function.FunctionCtx, grad: Tensor
    ) -> tuple[Tensor, None, None]:
        passes, slope = ctx.saved_tensors  # like x, [..., 1]
        of_x = passes.to(grad.dtype).mul_(grad)  # like x
        return of_x if slope is None else of_x.mul_(slope), None, None


def signs_of(x: Tensor) -> Tensor:
    """±1 like ``x``, of zeros +1, without gradient."""
    # By passes that torch vectorizes: `torch.where` and masks of bool take up to 100 times as long.
    return torch.lt(x.detach(), 0, out=torch.empty_like(x)).mul_(-2).add_(1)


class Levels(NamedTuple):
    """How large binarized numbers are, and where their gradient passes.

    Attributes:
        level: of ``x_b``, with size 1 along what is summed over.
        limit: the largest ``|x|`` whose gradient passes.
        slope: of the gradient there, where it is not 1.
    """

    level: Tensor
    limit: Tensor
    slope: Tensor | None = None

    def passes(self, x: Tensor) -> Tensor:
        """1 where the gradient passes and 0 elsewhere, like ``x``."""
        return x.detach().abs().le_(self.limit)

    def mask_(self, grad: Tensor, x: Tensor) -> Tensor:
        """From the gradient of ``x_b`` to that of ``x``, in its place."""
        grad.mul_(self.passes(x))
        return grad if self.slope is None else grad.mul_(self.slope)


class Bits(NamedTuple):
    """An operand ``signs · level`` in a byte for each number, and what its gradient takes.

    Attributes:
        signs: ±1, or 0 for what is dropped.
        level: with size 1 along what is summed over.
        passes: 1 where the gradient passes, else 0; None where none is needed.
        slope: of the gradient there, where it is not 1.
    """

    signs: Tensor
    level: Tensor
    passes: Tensor | None = None
    slope: Tensor | None = None

    def drop(self, p: float) -> tuple[Bits, float]:
        """The same with numbers dropped with probability ``p``, and by what all must be scaled."""
        kept, scale = draw(self.signs, p)
        kept = kept.view(torch.int8)
        passes = None if self.passes is None else self.passes * kept
        return self._replace(signs=self.signs * kept, passes=passes), scale

    def mask_(self, grad: Tensor) -> Tensor:
        """From the gradient of ``signs · level`` to that of the latent numbers, in its place."""
        grad.mul_(self.passes.to(grad.dtype))
        return grad if self.slope is None else grad.mul_(self.slope)


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
        levels = self.levels(x, dim)
        return _TwoLevels.apply(x, levels, levels.level)

    def signs(self, x: Tensor, dim: int | tuple[int, ...] = -1) -> tuple[Tensor, Tensor]:
        """Signs ±1 like ``x``, and their level with size 1 along ``dim``: ``x_b`` is the product.

        The product's gradient is that of ``x_b``, except where all of ``x`` is 0: the level is 0
        there, so the product's gradient is too, while that of ``x_b`` is 1 (0 is within ``±B``).
        """
        levels = self.levels(x, dim)
        # A product with the level multiplies the gradient by it: right for `xnor`.
        slope = None if self.kind == "xnor" else _inverse(levels.level)
        return _TwoLevels.apply(x, levels._replace(slope=slope), None), levels.level

    @torch.no_grad()
    def bits(self, x: Tensor, grad: bool = True) -> Bits:
        """The same for products that write their gradient themselves; ``grad``: if it is wanted."""
        magnitudes = x.abs()
        levels = self._levels(magnitudes, -1)
        passes = magnitudes.le_(levels.limit).to(torch.int8) if grad else None
        return Bits(signs_of(x).to(torch.int8), levels.level, passes, levels.slope)

    @torch.no_grad()
    def levels(self, x: Tensor, dim: int | tuple[int, ...] = -1) -> Levels:
        """The levels of what shares a bound along ``dim``."""
        return self._levels(x.abs(), dim)

    def _levels(self, magnitudes: Tensor, dim: int | tuple[int, ...]) -> Levels:
        if self.kind == "xnor":
            mean = magnitudes.mean(dim, keepdim=True)
            return Levels(mean, torch.ones_like(mean), mean)
        bound = magnitudes.amax(dim, keepdim=True)
        if self.bound is not None:
            bound = torch.full_like(bound, self.bound)
        return Levels(bound * 0.5, bound * (1 - EPSILON) if self.mask == "code" else bound)


def zero_or_one(x: Tensor) -> tuple[Tensor, Tensor]:
    """The unsigned variant for numbers from 0 up: ``B`` for those of at least ``B/2``, else 0.

    Returns:
        0 and 1 like ``x``, and ``B`` ``[..., 1]``, the largest of each row. The gradient of their
        product is 1.
    """
    bound = x.detach().amax(-1, keepdim=True)
    levels = Levels(torch.ones_like(bound), bound, 2 * _inverse(bound))
    signs = _TwoLevels.apply(x - bound * 0.5, levels, None)
    return signs * 0.5 + 0.5, bound


def _inverse(level: Tensor) -> Tensor:
    """``1 / level``, and 1 where that is 0: there every gradient is multiplied by 0 later."""
    return 1 / level.where(level > 0, 1.0)


def require_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Raise :class:`ConfigError` where ``value`` is not one of ``choices``."""
    if value not in choices:
        raise ConfigError(f"`{name}` must be one of {choices}, but is {value} instead.")
