"""Tied weights: several names of a model for one and the same memory."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def memory(weight: Tensor) -> tuple[Any, ...]:
    """Return where the numbers of a weight are and how they are read: equal for tied weights.

    Callers leave out weights without elements: all of these have address 0.
    """
    return weight.data_ptr(), weight.dtype, tuple(weight.shape), weight.stride()
