"""Arrange weights in memory for the machine's matrix products (numpy only).

A weight has N outputs and K inputs. A panel holds the weights of 64 outputs. engine.h describes the
layouts::

    PLAIN      [N][K]                       in fp32, for biases and other arrays
    fp32       [panel][K][64]
    bf16       [panel][K / 2][64][2]
    int8       [panel][K / 4][64][4]
    BITS8      [panel][K / 4][64][4]        one bit for each weight; inputs are rounded to int8
    SIGNS      [panel][K / 32][64][32]      one bit for each weight; inputs are binary or floats
    TERNARY    [panel][2][K / 32][64][32]   two signs for each weight, whose mean is -1, 0 or 1
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from fairseq_ext.engine import NUMBERS
from fairseq_ext.engine.program import FLOATS, Matrix, Reading, Signs

PANEL = 64
PLAIN, SIGNS, BITS8, TERNARY = range(len(NUMBERS), len(NUMBERS) + 4)
LINE = 64  # bytes of a cache line
PIECE = 1 << 25  # least bytes to allocate at once for many weights


class Packed(NamedTuple):
    """A weight ``[N, K]`` in the layout in which the machine reads it.

    ``kind`` names the layout: an index in :data:`fairseq_ext.engine.NUMBERS` (fp32, bf16, int8), or
    PLAIN, SIGNS, BITS8 or TERNARY.

    ``scales`` has a factor for each output. In int8 the factor is the unit of the whole numbers. In
    BITS8 and TERNARY it is the level of the signs, in SIGNS twice the level. Other kinds have no
    factors.
    """

    kind: int
    outputs: int  # N
    inputs: int  # K
    values: np.ndarray  # the numbers or bits, in the layout of the kind
    scales: np.ndarray | None = None
    sums: np.ndarray | None = None  # in int8 and BITS8, 128 times the sum of an output's weights
    reading: Reading = FLOATS  # how SIGNS and TERNARY binarize their inputs


class Pool:
    """Memory for many weights, allocated in pieces of at least ``piece`` bytes.

    Large pieces make translation faster: for them, numpy asks the system for huge pages. With pages
    of 4 KB, the processor can spend a quarter of its time on looking up pages.
    """

    def __init__(self, piece: int = PIECE) -> None:
        self._piece = piece
        self._free: np.ndarray = np.empty(0, np.uint8)

    def take(self, shape: Sequence[int], kind: DTypeLike) -> np.ndarray:
        """Return an uninitialized array of type ``kind``, whose address is a multiple of 64."""
        size = math.prod(shape) * np.dtype(kind).itemsize
        room = -(-size // LINE) * LINE
        if room > len(self._free):
            memory = np.empty(max(room, self._piece) + LINE, np.uint8)
            self._free = memory[-memory.ctypes.data % LINE :]
        array = self._free[:size].view(kind).reshape(shape)
        self._free = self._free[room:]
        return array


def pack(matrix: Matrix | Signs, numbers: str = "fp32", pool: Pool | None = None) -> Packed:
    """Pack a weight ``[N outputs, K inputs]`` in the format ``numbers`` (fp32, bf16 or int8).

    - Plain weights are packed in fp32.
    - Weights that are stored in int8 stay in int8.
    - Other float weights are packed in the format ``numbers``. In int8, the unit of an output is
      the largest magnitude of its weights, divided by 127.
    - Binary weights become SIGNS, and ternary weights TERNARY, unless ``numbers`` is int8 and their
      inputs are floats. In that case binary weights become BITS8, and ternary weights int8, for
      which the machine rounds the inputs.

    The arrays are in the memory of ``pool``; None for new memory.
    """
    pool = pool or Pool(0)
    if isinstance(matrix, Signs):
        return _pack_signs(matrix, numbers, pool)
    if matrix.units is not None:
        return _pack_int8(matrix.values, matrix.units, pool)
    values = np.asarray(matrix.values, np.float32)
    if matrix.plain:
        table = pool.take(values.shape, np.float32)
        table[...] = values
        return Packed(PLAIN, len(values), values[0].size, table)
    outputs, inputs = values.shape
    if numbers == "fp32":
        return Packed(0, outputs, inputs, _panels(values, pool))
    if numbers == "bf16":
        return Packed(1, outputs, inputs, _panels(to_bf16(values), pool, 2))
    return _pack_int8(*to_int8(values), pool)


def _pack_int8(rounded: np.ndarray, units: np.ndarray, pool: Pool) -> Packed:
    """Pack an int8 matrix ``rounded [N, K]`` with the units ``[N]`` that multiply its rows."""
    sums = 128 * rounded.sum(1, dtype=np.int32)
    outputs, inputs = rounded.shape
    return Packed(2, outputs, inputs, _panels(rounded, pool, 4), _filled(units), _filled(sums))


def _pack_signs(matrix: Signs, numbers: str, pool: Pool) -> Packed:
    outputs, inputs = len(matrix.values), matrix.inputs
    levels = _filled(np.asarray(matrix.levels, np.float32))
    bits = _padded(matrix.values, inputs)
    if numbers != "int8" or matrix.reading != FLOATS:
        kind, scales = SIGNS, 2 * levels
        if matrix.plus is not None:  # zero is stored as the mean of plus and minus
            bits = np.concatenate([bits, _padded(matrix.plus, inputs)], axis=1)
            kind, scales = TERNARY, levels
        tiles = _panels(bits.view(np.int32), pool)
        return Packed(kind, outputs, inputs, tiles, scales, reading=matrix.reading)
    if matrix.plus is not None:
        return _pack_int8(matrix.array(), np.asarray(matrix.levels, np.float32), pool)
    bits = _padded(~matrix.values, inputs)  # bit 1 stands for -1
    fours = -(-inputs // 4)
    halves = np.stack([bits & 15, bits >> 4], axis=2).reshape(outputs, -1)[:, :fours]
    panels = _panels(halves, Pool(0))[..., 0]
    values = pool.take((*panels.shape[:2], PANEL // 2), np.uint8)
    np.bitwise_or(panels[..., ::2], panels[..., 1::2] << 4, out=values)
    minus = np.unpackbits(bits, axis=1).sum(1, dtype=np.int32)
    sums = 128 * (4 * fours - 2 * minus)
    return Packed(BITS8, outputs, inputs, values, levels, _filled(sums))


def _padded(bits: np.ndarray, inputs: int) -> np.ndarray:
    """Pad rows of K bits, ``[N, K / 8]``, with zeros to a multiple of 64 bits; ``inputs`` is K."""
    size = -(-inputs // 8)
    padded = np.pad(np.ascontiguousarray(bits[:, :size]), ((0, 0), (0, -size % 8)))
    if rest := inputs % 8:
        padded[:, size - 1] &= (1 << rest) - 1
    return padded


def _filled(values: np.ndarray) -> np.ndarray:
    """Pad a vector ``[N]`` with zeros to a multiple of 64."""
    return np.pad(values, (0, -len(values) % PANEL))


def to_bf16(values: np.ndarray) -> np.ndarray:
    """Round fp32 to the nearest bf16, ties to even; return its bits as ``uint16``."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def to_int8(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Round a matrix to int8, -127 to 127; return it, and the scale of each of its rows."""
    units = np.maximum(np.abs(values).max(1), np.finfo(np.float32).tiny) / np.float32(127)
    return np.rint(values / units[:, None]).astype(np.int8), units


def _panels(values: np.ndarray, pool: Pool, together: int = 1) -> np.ndarray:
    """Arrange a matrix ``[N, K]`` in panels: ``[N / 64][K / together][64][together]``.

    ``together`` is how many inputs of an output lie side by side. Sizes are rounded up.
    """
    outputs, inputs = values.shape
    count, groups = -(-outputs // PANEL), -(-inputs // together)
    panels = pool.take((count, groups, PANEL, together), values.dtype)
    # An odd number of cache lines per row: the numbers of a column must not all fall into the same
    # set of the processor's cache.
    line = LINE // values.itemsize
    width = (-(-inputs // line) | 1) * line
    rows = np.zeros((PANEL, width), values.dtype)
    unit = f"u{together * values.itemsize}"  # because numpy moves words faster than groups of bytes
    transposed = rows[:, : groups * together].view(unit).T
    for panel, part in enumerate(range(0, outputs, PANEL)):
        filled = min(PANEL, outputs - part)
        rows[:filled, :inputs] = values[part : part + filled]
        rows[filled:] = 0
        panels[panel].view(unit)[..., 0] = transposed
    return panels
