"""What layers must know of a dropout module beside its call (torch only)."""

from __future__ import annotations

from torch import nn


def rate(dropout: nn.Module) -> float:
    """The share a dropout module drops now, in generation with dropout as well; else 0."""
    running = dropout.training or getattr(dropout, "apply_during_inference", False)
    return float(getattr(dropout, "p", 0.0)) if running else 0.0


def is_active(dropout: nn.Module) -> bool:
    """Whether a dropout module changes anything now."""
    return rate(dropout) > 0
