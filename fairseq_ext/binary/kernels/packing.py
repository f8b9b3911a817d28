"""Signs as bits: in rows, the layout of files, and in tiles, the layout of the kernels.

*Rows*: ``[N, bytes]`` of uint8. Bit ``k % 8`` (from the lowest) of byte ``k // 8`` is the sign of
input ``k``, 1 for ``+``. Rows are padded with zero bits to a multiple of 64 bits.

*Tiles*: ``[N / 64, words, 64]`` of int32: the 32-bit words of 64 channels are neighbours, so that
one load reads the same inputs of several channels. Channels are padded with zero bits.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_ext.utils.errors import DataError

TILE = 64  # channels side by side
ROW_BITS = 64  # rows are padded to a multiple of it


def row_bytes(in_features: int) -> int:
    """Bytes of one padded row of ``in_features`` signs."""
    return -(-in_features // ROW_BITS) * ROW_BITS // 8


def pack_signs(weight: Tensor) -> Tensor:
    """The signs of a matrix as rows of bits; zeros, including ``-0.0``, are ``+``.

    Args:
        weight: ``[N, K]``, any real type.

    Returns:
        ``[N, row_bytes(K)]`` uint8, on the CPU.
    """
    signs = (weight.detach() >= 0).cpu().numpy()
    packed = np.packbits(signs, axis=1, bitorder="little")
    padding = row_bytes(weight.shape[1]) - packed.shape[1]
    return torch.from_numpy(np.pad(packed, ((0, 0), (0, padding))))


def unpack_signs(bits: Tensor, in_features: int) -> Tensor:
    """The inverse of :func:`pack_signs`: ``[N, K]`` bool, true for ``+``.

    Raises:
        DataError: the rows have a wrong number of bytes for ``in_features`` signs, or a bit after
            the last sign is set.
    """
    _check_bits(bits, in_features)
    signs = np.unpackbits(bits.cpu().numpy(), axis=1, count=in_features, bitorder="little")
    return torch.from_numpy(signs.astype(bool))


def _check_bits(bits: Tensor, in_features: int) -> None:
    shape = (bits.shape[0], row_bytes(in_features)) if bits.dim() == 2 else None
    if bits.dtype != torch.uint8 or bits.shape != shape or in_features < 1:
        raise DataError(
            f"Bits of rows of {in_features} signs must be uint8 of shape "
            f"[N, {row_bytes(in_features)}], but are {bits.dtype} of shape {list(bits.shape)}."
        )
    used, extra = divmod(in_features, 8)
    padding = bits[:, used:].clone()
    if extra:
        padding[:, 0] >>= extra
    if padding.any():
        raise DataError(f"Bits beyond the last of {in_features} signs must be 0, but are not.")


class PackedWeight:
    """A weight of ``±B/2`` with one bit for each number, in the layout of the kernels.

    Args:
        bits: rows of :func:`pack_signs`, ``[N, row_bytes(in_features)]``.
        bound: ``B`` of each channel, ``[N]``.
        in_features: ``K``.

    Raises:
        DataError: shapes or types do not fit each other, or a bit after the last sign is set.
    """

    def __init__(self, bits: Tensor, bound: Tensor, in_features: int) -> None:
        _check_bits(bits, in_features)
        if bound.shape != bits.shape[:1] or not bound.is_floating_point():
            raise DataError(
                f"Bounds of {bits.shape[0]} channels must be floats of shape [{bits.shape[0]}], "
                f"but are {bound.dtype} of shape {list(bound.shape)}."
            )
        self.in_features = in_features
        self.out_features = bits.shape[0]
        self.words = _tiles(bits)  # [N / 64, words, 64] int32
        self.bound = pad_channels(bound.detach().float())  # [N, rounded up to 64]

    @classmethod
    def of(cls, weight: Tensor, bound: Tensor | None = None) -> PackedWeight:
        """Pack ``[N, K]`` latent weights; ``bound`` is by default ``max |w|`` of each row."""
        if bound is None:
            bound = weight.detach().abs().amax(dim=1)
        return cls(pack_signs(weight), bound.cpu(), weight.shape[1])

    @property
    def channels(self) -> int:
        """``N``, rounded up to whole tiles."""
        return self.words.shape[0] * TILE

    @property
    def nbytes(self) -> int:
        """Bytes of memory that bits and bounds take."""
        return self.words.nbytes + self.bound.nbytes

    def bits(self) -> Tensor:
        """The rows of bits that it was made of."""
        rows = self.words.transpose(1, 2).reshape(self.channels, -1)
        return rows[: self.out_features].contiguous().view(torch.uint8)

    def unpack(self) -> Tensor:
        """``W_b`` ``[N, K]`` fp32, ``±B/2``."""
        level = 0.5 * self.bound[: self.out_features, None]
        signs = unpack_signs(self.bits(), self.in_features).to(level.device)
        return torch.where(signs, level, -level)

    def to(self, device: torch.device | str) -> PackedWeight:
        """A copy on ``device``."""
        moved = object.__new__(PackedWeight)
        moved.__dict__.update(self.__dict__)
        moved.words, moved.bound = self.words.to(device), self.bound.to(device)
        return moved

    def __repr__(self) -> str:
        return f"PackedWeight(in_features={self.in_features}, out_features={self.out_features})"


def pad_channels(values: Tensor) -> Tensor:
    """``[N, ...]`` with zeros up to a multiple of 64 channels, contiguous."""
    missing = -len(values) % TILE
    if missing:
        values = F.pad(values, (0, 0) * (values.dim() - 1) + (0, missing))
    return values.contiguous()


def _tiles(bits: Tensor) -> Tensor:
    words = pad_channels(bits).view(torch.int32)
    return words.view(-1, TILE, words.shape[1]).transpose(1, 2).contiguous()
