"""Dropout that is fast on a CPU, because it draws only 16 random bits for each value.

torch draws a random float for each value, which takes longer than the rest of dropout. Here one
64-bit random number serves four values. Small tensors are left to torch, which is faster there.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

STEPS = 2**16
LEAST = 2**14  # with fewer values torch's dropout is faster, because ours has Python's overhead


def active_rate(dropout: nn.Module) -> float:
    """Return a dropout's probability in training or with ``--retain-dropout``, otherwise 0."""
    running = dropout.training or getattr(dropout, "apply_during_inference", False)
    return getattr(dropout, "p", 0.0) if running else 0.0


def draw(x: Tensor, p: float) -> tuple[Tensor, float]:
    """Draw a dropout mask; return the mask and the factor for the kept values.

    The mask is int8, shaped like ``x``: 1 for a kept value, else 0. A value is dropped with
    probability ``p``, rounded to a multiple of 1/65,536. The factor is ``1 / (1 - p)``, or 0 if
    ``p`` is 1.
    """
    dropped = round(p * STEPS)
    if dropped >= STEPS:  # `lowest` would be 2^15, which is not an int16
        return torch.zeros_like(x, dtype=torch.int8), 0.0
    draws = torch.empty(-(-x.numel() // 4), dtype=torch.int64, device=x.device)
    draws.random_(-(2**63), None)  # all 64 bits are random
    lowest = dropped - STEPS // 2
    values = draws.view(torch.int16)[: x.numel()].view(x.shape)
    # torch writes and reads booleans one by one: int8 is three to five times as fast.
    keep = torch.ge(values, lowest, out=torch.empty_like(values, dtype=torch.int8))
    return keep, STEPS / (STEPS - dropped)


def dropout(x: Tensor, p: float) -> Tensor:
    """Apply dropout to ``x``: a value becomes 0 with probability ``p``, else is divided by 1 - p.

    The result is a new tensor. If ``x`` is not small, ``p`` is rounded as in :func:`draw`.
    """
    if x.numel() < LEAST:
        return functional.dropout(x, p)
    return _Dropout.apply(x, p)


class _Dropout(torch.autograd.Function):
    """The autograd function of :func:`dropout`; it stores one byte per value for the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float) -> Tensor:
        keep, ctx.scale = draw(x, p)  # int8, shaped like x
        ctx.save_for_backward(keep)
        return torch.mul(x, keep).mul_(ctx.scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (keep,) = ctx.saved_tensors  # shaped like grad
        return torch.mul(grad, keep).mul_(ctx.scale), None
