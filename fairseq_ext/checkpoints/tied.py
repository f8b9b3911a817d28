"""Tied weights: several names of a model for one and the same memory."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def memory(weight: Tensor) -> tuple[Any, ...]:
    """Return where the numbers of a weight are and how they are read: equal for tied weights.

    A weight without elements has no memory of its own, so that it is not tied to any other.
    """
    return weight.data_ptr(), weight.dtype, tuple(weight.shape), weight.stride()
