"""The two products, computed by the fastest kernel of this machine.

Letters: ``M`` rows, ``K`` inputs, ``N`` output channels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fairseq_ext.binary.kernels import native, portable
from fairseq_ext.binary.kernels.packing import PackedWeight, pad_channels
from fairseq_ext.utils.errors import DataError

# From this number of rows on, a float product with unpacked weights is faster than the plain C
# kernel (benchmarks/binary_layers.py --path c). The AVX2 and AVX-512 kernels are always faster.
MANY_ROWS = 16


def linear_1bit(
    x: Tensor, packed: PackedWeight, bias: Tensor | None = None, *, path: str | None = None
) -> Tensor:
    """``y = A W_b^T + bias``: 1-bit weights, float inputs (section 3.1).

    Sums are computed in fp32 for every type of ``x``, and must be finite before they are multiplied
    by ``B_W / 2``. There is no gradient.

    Args:
        x: ``[..., K]``, floating.
        packed: ``W_b``, on the device of ``x``.
        bias: ``[N]``.
        path: the kernel, one of :func:`~fairseq_ext.binary.kernels.native.available_paths`;
            None for the best.

    Returns:
        ``[..., N]`` of the type of ``x``.

    Raises:
        DataError: the last dimension is not ``K``.
        ConfigError: this machine cannot run that ``path``.
        RuntimeError: ``x`` requires a gradient.
    """
    path, inputs, bias = _path(path, x), _inputs(x, packed), _padded(bias)
    if path == "c" and inputs.numel() >= MANY_ROWS * packed.in_features:
        path = "torch"
    if path == "torch":
        y = portable.linear_1bit(inputs, packed, bias)
    else:
        y = native.linear_1bit(inputs, packed, bias, path)
    return _as(x, packed, y)


def linear_1bit_1bit(
    x: Tensor,
    packed: PackedWeight,
    bias: Tensor | None = None,
    scale: float = 1.0,
    *,
    input_bounds: Tensor | float | None = None,
    path: str | None = None,
) -> Tensor:
    """``y = A_b W_b^T / s + bias``: one bit for each weight and each input (sections 3.1, 3.3).

    The sums of signs are exact integers, and later steps round as
    :class:`~fairseq_ext.binary.linear.BinaryLinear` does, so that results agree to the last bit. A
    row of zeros gives the bias, and a row with NaN gives NaN.

    Args:
        x: ``[..., K]``, floating; binarized here, one bound for each row.
        packed, bias, path: as for :func:`linear_1bit`.
        scale: ``s``; the product is divided by it.
        input_bounds: ``B_A`` in place of ``max |a|``: a number, or ``[...]``, one for each row.

    Returns, Raises: as for :func:`linear_1bit`.
    """
    path, inputs, bias = _path(path, x), _inputs(x, packed), _padded(bias)
    if input_bounds is not None:
        bounds = torch.as_tensor(input_bounds, dtype=torch.float32, device=x.device)
        input_bounds = bounds.detach().expand(x.shape[:-1]).contiguous()
    if path == "torch":
        y = portable.linear_1bit_1bit(inputs, packed, bias, scale, input_bounds)
    else:
        y = native.linear_1bit_1bit(inputs, packed, bias, scale, input_bounds, path)
    return _as(x, packed, y)


def _inputs(x: Tensor, packed: PackedWeight) -> Tensor:
    """``x`` as contiguous fp32."""
    if x.dim() == 0 or x.shape[-1] != packed.in_features:
        raise DataError(
            f"Inputs must be [..., {packed.in_features}], but have shape {list(x.shape)}."
        )
    if x.requires_grad and torch.is_grad_enabled():
        raise RuntimeError("Packed weights have no gradient; use torch.no_grad().")
    return x.float().contiguous()


def _padded(bias: Tensor | None) -> Tensor | None:
    return None if bias is None else pad_channels(bias.detach().float())


def _path(path: str | None, x: Tensor) -> str:
    if not x.is_cpu:
        return "torch"
    return native.active_path() if path is None else native.require_path(path)


def _as(x: Tensor, packed: PackedWeight, y: Tensor) -> Tensor:
    """``y`` without padded channels, of the type of ``x``."""
    if packed.channels != packed.out_features:
        y = y[..., : packed.out_features].contiguous()
    return y if y.dtype == x.dtype else y.to(x.dtype)
