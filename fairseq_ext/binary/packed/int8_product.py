"""int8 times int8 on the CPU: weights packed by FBGEMM where that is exact, else as they are.

Letters: ``M`` rows, ``C`` inputs, ``V`` output channels.
"""

from __future__ import annotations

import functools
import warnings
from typing import Any

import torch
from torch import Tensor

ZERO = 128  # FBGEMM's inputs are unsigned: -127 … 127 are 1 … 255


class Int8Product:
    """``y[m, v] = scale[v] · Σ_c x[m, c] table[v, c]``; packs the table when first used.

    Changes within a table go unseen, another one does not. Packed it is read two to three times
    faster, and is in memory twice.
    """

    def __init__(self) -> None:
        self._packed: Any = None
        self._of: tuple[Tensor, Tensor] | None = None  # kept, so that no other takes their place

    def __call__(self, x: Tensor, table: Tensor, scale: Tensor) -> Tensor:
        """``[M, C]`` whole numbers of -127 … 127 in fp32, int8 ``[V, C]`` and ``[V]``: ``[M, V]``.

        The sums are exact integers.
        """
        if not can_pack():
            return torch._int_mm(x.to(torch.int8), table.t()).float().mul_(scale)
        if self._of is None or self._of[0] is not table or self._of[1] is not scale:
            self._packed, self._of = _pack(table, scale), (table, scale)
        return _product(x, self._packed)

    def __reduce__(self) -> tuple[type[Int8Product], tuple[()]]:
        return Int8Product, ()  # copies of a model pack their own tables


def _pack(table: Tensor, scale: Tensor) -> Any:
    zeros = torch.zeros(len(table), dtype=torch.long)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated; without it `can_pack` says no
        weight = torch._make_per_channel_quantized_tensor(table, scale.double(), zeros, 0)
    return torch.ops.quantized.linear_prepack(weight, None)


def _product(x: Tensor, packed: Any) -> Tensor:
    product = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32
    return product(x, 1.0, ZERO, packed)


@functools.cache
def can_pack() -> bool:
    """Whether FBGEMM is here, and exact: without VNNI its sums of two products saturate."""
    largest = torch.full((2, 64), 127, dtype=torch.int8)
    try:
        found = _product(largest.float(), _pack(largest, torch.ones(2)))
    except (AttributeError, RuntimeError):  # another engine, or a torch without it
        return False
    return bool((found == 64 * 127**2).all())
