"""The product on CUDA: one Triton kernel that unpacks the bits in registers.

Letters: ``M`` rows, ``K`` inputs, ``N`` output channels.
"""

# ruff: noqa: ANN001, ANN202  (in a kernel, Triton gives annotations another meaning)

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fairseq_ext.binary.kernels.packing import TILE, PackedWeight

ROWS = 16  # at a time; a product on tensor cores takes at least this many
WORD_BITS = 32


@triton.jit
def _signed_sums(
    x,
    words,
    sums,
    rows,
    inputs,
    word_count,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    WORD_BITS: tl.constexpr,
):
    """Program ``(i, j)`` adds up rows ``i·ROWS …`` and channels ``j·TILE …``."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    channel = tl.arange(0, TILE)
    bit = tl.arange(0, WORD_BITS)
    tile = words + tl.program_id(1).to(tl.int64) * word_count * TILE
    start = x + row.to(tl.int64)[:, None] * inputs
    total = tl.zeros((ROWS, TILE), dtype=tl.float32)
    for word in range(word_count):
        k = word * WORD_BITS + bit
        inside = (row[:, None] < rows) & (k[None, :] < inputs)
        a = tl.load(start + k[None, :], mask=inside, other=0.0).to(tl.float32)  # 0 beyond K
        packed = tl.load(tile + word * TILE + channel)
        signs = ((packed[None, :] >> bit[:, None]) & 1) * 2 - 1  # [WORD_BITS, TILE]
        total = tl.dot(a, signs.to(tl.float32), total, input_precision="ieee")
    column = tl.program_id(1) * TILE + channel
    out = sums + row.to(tl.int64)[:, None] * (tl.num_programs(1) * TILE) + column[None, :]
    tl.store(out, total, mask=row[:, None] < rows)


def signed_sums(x: Tensor, packed: PackedWeight) -> Tensor:
    """``Σ_k s[n, k] a[m, k]``, summed in fp32 for every type of ``x``.

    Args:
        x: ``[..., K]`` fp32, fp16 or bf16.
        packed: the signs, on the device of ``x``.

    Returns:
        ``[..., channels]`` fp32.
    """
    rows = x.reshape(-1, packed.in_features).contiguous()
    sums = rows.new_empty(len(rows), packed.channels, dtype=torch.float32)
    grid = (triton.cdiv(len(rows), ROWS), packed.words.shape[0])
    if rows.numel():
        shape = (len(rows), packed.in_features, packed.words.shape[1])
        _signed_sums[grid](rows, packed.words, sums, *shape, ROWS, TILE, WORD_BITS)
    return sums.view(*x.shape[:-1], packed.channels)
