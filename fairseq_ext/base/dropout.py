"""Dropout from 16 random bits for each value, four from each draw (torch only).

torch draws a float for each value on the CPU, which takes longer than everything else a dropout
does.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

STEPS = 2**16


def is_active(dropout: nn.Module) -> bool:
    """Whether a dropout module changes anything now, in generation with dropout as well."""
    running = dropout.training or getattr(dropout, "apply_during_inference", False)
    return bool(running and getattr(dropout, "p", 0))


def draw(x: Tensor, p: float) -> tuple[Tensor, float]:
    """What stays of ``x`` (bool, like it) with probability ``1 - p``, and by what it is scaled.

    ``p`` is rounded to one of 65,536 steps.
    """
    dropped = round(p * STEPS)
    draws = torch.empty(-(-x.numel() // 4), dtype=torch.int64, device=x.device)
    draws.random_(-(2**63), None)  # all 64 bits
    lowest = dropped - STEPS // 2
    keep = draws.view(torch.int16)[: x.numel()].view(x.shape) >= lowest
    return keep, STEPS / (STEPS - dropped) if dropped < STEPS else 0.0


def dropout(x: Tensor, p: float) -> Tensor:
    """Zero each value with probability p, to the nearest of 65,536 steps; scale the others."""
    return _Dropout.apply(x, p)


class _Dropout(torch.autograd.Function):
    """:func:`dropout`, which keeps one byte for each value."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float) -> Tensor:
        keep, ctx.scale = draw(x, p)  # bool, like x
        ctx.save_for_backward(keep)
        return torch.mul(x, keep).mul_(ctx.scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (keep,) = ctx.saved_tensors  # like grad
        return torch.mul(grad, keep).mul_(ctx.scale), None
