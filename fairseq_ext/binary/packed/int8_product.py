"""int8 products on the CPU: by FBGEMM with packed weights where it is exact, else by torch.

Letters: ``M`` rows, ``C`` inputs, ``V`` output channels.
"""

from __future__ import annotations

import functools
import warnings
from typing import Any

import torch
from torch import Tensor

ZERO = 128  # FBGEMM's inputs are unsigned, so -127 … 127 become 1 … 255


class Int8Product:
    """``y[m, v] = scale[v] · Σ_c x[m, c] table[v, c]``; the table is packed at its first use.

    Another table is noticed, but changes within a table are not. The packed copy is read two to
    three times as fast, and takes as much memory again.
    """

    def __init__(self) -> None:
        self._packed: Any = None
        self._of: tuple[Tensor, Tensor] | None = None  # alive, so their addresses stay theirs

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
        return Int8Product, ()  # a copy of a model packs its own tables


def _pack(table: Tensor, scale: Tensor) -> Any:
    zeros = torch.zeros(len(table), dtype=torch.long)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is deprecated; once it is gone, `can_pack` is false
        weight = torch._make_per_channel_quantized_tensor(table, scale.double(), zeros, 0)
    return torch.ops.quantized.linear_prepack(weight, None)


def _product(x: Tensor, packed: Any) -> Tensor:
    product = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32
    return product(x, 1.0, ZERO, packed)


@functools.cache
def can_pack() -> bool:
    """Whether FBGEMM is available and exact; without VNNI its sums of two products saturate."""
    largest = torch.full((2, 64), 127, dtype=torch.int8)
    try:
        found = _product(largest.float(), _pack(largest, torch.ones(2)))
    except (AttributeError, RuntimeError):  # torch has another engine, or none
        return False
    return bool((found == 64 * 127**2).all())
