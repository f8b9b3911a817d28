"""The products in torch alone: unpack some tiles of signs, and multiply them with the inputs.

Used by installations without C kernels, on other devices, and for many rows if only the plain C
kernel is available. On CUDA with Triton, ``on_cuda.py`` computes the sums in one kernel.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from fairseq_ext.binary.kernels.packing import TILE, PackedWeight

NUMBERS_AT_ONCE = 2**18  # 1 MiB of floats stays in the cache


def signed_sums(x: Tensor, packed: PackedWeight) -> Tensor:
    """``Σ_k s[n, k] a[m, k]``.

    Args:
        x: ``[..., K]``; int8 on the CPU gives exact integers.
        packed: the signs.

    Returns:
        ``[..., channels]``, int32 for int8 inputs, else of the type of ``x``.
    """
    if x.is_cuda and (fused := cuda_kernel()) is not None:
        return fused(x, packed).to(x.dtype)
    rows = x.reshape(-1, packed.in_features)
    dtype = torch.int32 if x.dtype == torch.int8 else x.dtype
    sums = x.new_empty(len(rows), packed.channels, dtype=dtype)
    for first, signs in _unpacked(packed, x.dtype):
        here = sums[:, first : first + len(signs)]
        if x.dtype == torch.int8:
            here.copy_(torch._int_mm(rows, signs.t()))
        else:
            torch.mm(rows, signs.t(), out=here)
    return sums.view(*x.shape[:-1], packed.channels)


@functools.cache
def cuda_kernel() -> Callable[[Tensor, PackedWeight], Tensor] | None:
    """:func:`signed_sums` as one kernel for CUDA; None if Triton is not installed."""
    try:
        from fairseq_ext.binary.kernels.on_cuda import signed_sums
    except ImportError:
        return None
    return signed_sums


def _unpacked(packed: PackedWeight, dtype: torch.dtype) -> Iterator[tuple[int, Tensor]]:
    """Yield some tiles at a time: their first channel, and their signs ``±1`` ``[channels, K]``."""
    table = _signs_of_bytes(packed.words.device)
    step = max(1, NUMBERS_AT_ONCE // (TILE * packed.in_features))
    for first in range(0, packed.words.shape[0], step):
        words = packed.words[first : first + step].transpose(1, 2).contiguous()
        signs = table.index_select(0, words.view(torch.uint8).flatten().int()).view(torch.int8)
        signs = signs.view(-1, 32 * packed.words.shape[1])[:, : packed.in_features]
        yield first * TILE, signs.to(dtype)


def _signs_of_bytes(device: torch.device) -> Tensor:
    """For every byte its eight bits as ``±1``, eight int8 in one int64: ``[256]``."""
    value = torch.arange(256, device=device)
    signs = (value[:, None] >> torch.arange(8, device=device)) % 2 * 2 - 1
    return signs.to(torch.int8).view(torch.int64).flatten()


def linear_1bit(x: Tensor, packed: PackedWeight, bias: Tensor | None) -> Tensor:
    """``[..., K]`` fp32 to ``[..., channels]``; ``bias`` ``[channels]``."""
    y = signed_sums(x, packed).mul_(0.5 * packed.bound)
    return y if bias is None else y.add_(bias)


def linear_1bit_1bit(
    x: Tensor,
    packed: PackedWeight,
    bias: Tensor | None,
    scale: float,
    input_bounds: Tensor | None,
) -> Tensor:
    """As :func:`linear_1bit`; ``input_bounds`` ``[...]``, one for each row."""
    # Devices without int8 products use fp32, in which sums of up to 2^24 signs are exact, too.
    dtype = torch.int8 if x.device.type == "cpu" else x.dtype
    signs = (x >= 0).to(dtype).mul_(2).sub_(1)
    bounds = x.abs().amax(dim=-1)
    if input_bounds is not None:
        bounds = input_bounds.where(~bounds.isnan(), bounds)  # NaN stays NaN
    y = signed_sums(signs, packed).to(x.dtype)
    y = y.mul_((0.5 * bounds / scale)[..., None]).mul_(0.5 * packed.bound)
    return y if bias is None else y.add_(bias)
