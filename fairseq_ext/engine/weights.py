"""Weights in the layout that the machine's products read (numpy only).

Panels of 64 outputs, ``[panel][k][64]``; int8 ``[panel][k / 4][64][4]``. Signs are bits in int8's
order or, ``[panel][k / 32][64][32]``, in that of the kernels of binary products. engine.h reads
this layout.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from fairseq_ext.engine import NUMBERS
from fairseq_ext.engine.program import FLOATS, Matrix, Reading, Signs
from fairseq_ext.utils.errors import ConfigError

PANEL = 64
PLAIN, SIGNS, BITS8 = range(len(NUMBERS), len(NUMBERS) + 3)
LINE = 64  # bytes that a processor reads at once
PIECE = 1 << 25  # bytes of memory for many weights


class Packed(NamedTuple):
    """A weight as the machine reads it.

    Attributes:
        kind: place in :data:`fairseq_ext.engine.NUMBERS`, or :data:`PLAIN`; :data:`SIGNS` for
            signs times floats or signs, :data:`BITS8` for signs times inputs rounded to int8.
        outputs, inputs: N, K.
        values: its numbers.
        scales: of int8 the units of the outputs, of BITS8 their levels, of SIGNS twice these.
        sums: of int8 and BITS8: 128 times the sum of each output's weights.
        reading: of SIGNS.
    """

    kind: int
    outputs: int
    inputs: int
    values: np.ndarray
    scales: np.ndarray | None = None
    sums: np.ndarray | None = None
    reading: Reading = FLOATS


def pack(matrix: Matrix | Signs, numbers: str = "fp32") -> Packed:
    """Lay a weight out.

    Args:
        matrix: ``[N, K]``; a plain one may have any shape.
        numbers: ``fp32``; ``bf16``, rounded to the nearest; or ``int8``, each output in units of
            its largest weight / 127. Signs remain signs; with ``int8`` they multiply rounded
            inputs, unless they multiply signs.

    Raises:
        ConfigError: other numbers.
    """
    if numbers not in NUMBERS:
        raise ConfigError(f"`numbers` must be one of {', '.join(NUMBERS)}, but is `{numbers}`.")
    if isinstance(matrix, Signs):
        return _pack_signs(matrix, numbers)
    if matrix.units is not None:
        return _pack_int8(matrix.values, matrix.units)
    values = np.ascontiguousarray(matrix.values, np.float32)
    if matrix.plain:
        return Packed(PLAIN, len(values), values[0].size, values)
    outputs, inputs = values.shape
    if numbers == "fp32":
        return Packed(0, outputs, inputs, _panels(values))
    if numbers == "bf16":
        return Packed(1, outputs, inputs, _panels(to_bf16(values)))
    return _pack_int8(*to_int8(values))


def _pack_int8(rounded: np.ndarray, units: np.ndarray) -> Packed:
    """Lay out ``[N, K]`` in int8 with the units of its rows."""
    outputs, inputs = rounded.shape
    padded = np.zeros((outputs, -(-inputs // 4) * 4), np.int8)
    padded[:, :inputs] = rounded
    sums = 128 * rounded.sum(1, dtype=np.int32)
    return Packed(2, outputs, inputs, _panels(padded, 4), _whole(units), _whole(sums))


def pack_all(matrices: Iterable[Matrix | Signs], numbers: str = "fp32") -> list[Packed]:
    """Lay weights out, one after another in large pieces of memory.

    Each step of a search reads all weights once. numpy asks for huge pages where a piece is large:
    with pages of 4 KB a quarter of a step's time can go into finding them.

    Raises:
        ConfigError: as for :func:`pack`.
    """
    packed, free = [], np.empty(0, np.uint8)
    for matrix in matrices:
        weight = pack(matrix, numbers)
        size = -(-weight.values.nbytes // LINE) * LINE
        if size > len(free):
            free = _memory(max(size, PIECE))
        packed.append(weight._replace(values=_copied(weight.values, free)))
        free = free[size:]
    return packed


def _pack_signs(matrix: Signs, numbers: str) -> Packed:
    plus = np.unpackbits(matrix.values, axis=1, count=matrix.inputs, bitorder="little")
    outputs, inputs = plus.shape
    levels = _whole(np.asarray(matrix.levels, np.float32))
    if numbers != "int8" or matrix.reading != FLOATS:
        padded = np.zeros((len(levels), -(-inputs // 64) * 64), np.uint8)
        padded[:outputs, :inputs] = plus
        words = np.packbits(padded, axis=1, bitorder="little").view(np.int32)
        tiles = aligned(words.reshape(-1, PANEL, words.shape[1]).transpose(0, 2, 1))
        return Packed(SIGNS, outputs, inputs, tiles, 2 * levels, reading=matrix.reading)
    minus = np.zeros((outputs, -(-inputs // 4) * 4), np.uint8)  # inputs that are not there are 0
    minus[:, :inputs] = 1 - plus
    sums = 128 * (minus.shape[1] - 2 * minus.sum(1, dtype=np.int32))
    bits = np.packbits(_panels(minus, 4).reshape(-1, 8), axis=1, bitorder="little")
    return Packed(BITS8, outputs, inputs, aligned(bits), levels, _whole(sums))


def _whole(values: np.ndarray) -> np.ndarray:
    """Append zeros to the outputs' numbers up to a full panel."""
    padded = np.zeros(-(-len(values) // PANEL) * PANEL, values.dtype)
    padded[: len(values)] = values
    return padded


def to_bf16(values: np.ndarray) -> np.ndarray:
    """The upper halves of fp32 numbers, rounded to the nearest, ties to even; ``uint16``."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def to_int8(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """``[N, K]`` as whole numbers, and their units ``[N]``: each row's largest number is 127."""
    units = np.maximum(np.abs(values).max(1), np.finfo(np.float32).tiny) / np.float32(127)
    return np.rint(values / units[:, None]).astype(np.int8), units


def _panels(values: np.ndarray, together: int = 1) -> np.ndarray:
    """``[N, K]`` to ``[panel][K / together][64][together]``."""
    outputs, inputs = values.shape
    panels = -(-outputs // PANEL)
    padded = np.zeros((panels * PANEL, inputs), values.dtype)
    padded[:outputs] = values
    if together * values.itemsize == 4:  # numpy moves words faster than groups of bytes
        words = padded.view(np.uint32).reshape(panels, PANEL, inputs // together)
        moved = aligned(words.transpose(0, 2, 1)).view(values.dtype)
        return moved.reshape(panels, inputs // together, PANEL, together)
    split = padded.reshape(panels, PANEL, inputs // together, together)
    return aligned(split.transpose(0, 2, 1, 3))


def aligned(values: np.ndarray) -> np.ndarray:
    """A contiguous copy whose memory begins at a multiple of 64 bytes."""
    return _copied(values, _memory(values.nbytes))


def _memory(size: int) -> np.ndarray:
    """Allocate bytes, the first at a multiple of 64."""
    memory = np.empty(size + LINE, np.uint8)
    begin = -memory.ctypes.data % LINE
    return memory[begin : begin + size]


def _copied(values: np.ndarray, memory: np.ndarray) -> np.ndarray:
    """Copy values contiguously into the first bytes of the memory."""
    copy = memory[: values.nbytes].view(values.dtype).reshape(values.shape)
    copy[...] = values
    return copy
