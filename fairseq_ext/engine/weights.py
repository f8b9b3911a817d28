"""How the machine's products read their weights (numpy only).

Panels of 64 outputs, ``[panel][k][64]``; int8 ``[panel][k / 4][64][4]``. engine.h has the other
side of it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fairseq_ext.engine.program import Matrix
from fairseq_ext.errors import ConfigError

PANEL = 64
NUMBERS = ("fp32", "bf16", "int8")
PLAIN = len(NUMBERS)


class Packed(NamedTuple):
    """A weight as the machine reads it.

    Attributes:
        kind: place in :data:`NUMBERS`, or :data:`PLAIN`.
        outputs, inputs: N, K.
        values: its numbers.
        scales, sums: of int8: units of the outputs, and 128 times the sum of each output's weights.
    """

    kind: int
    outputs: int
    inputs: int
    values: np.ndarray
    scales: np.ndarray | None = None
    sums: np.ndarray | None = None


def pack(matrix: Matrix, numbers: str = "fp32") -> Packed:
    """Lay a weight out.

    Args:
        matrix: ``[N, K]``; a plain one may have any shape.
        numbers: ``fp32``; ``bf16``, rounded to the nearest; or ``int8``, each output in units of
            its largest weight / 127.

    Raises:
        ConfigError: other numbers.
    """
    values = np.ascontiguousarray(matrix.values, np.float32)
    if matrix.plain:
        return Packed(PLAIN, len(values), values[0].size, values)
    if numbers not in NUMBERS:
        raise ConfigError(f"`numbers` must be one of {', '.join(NUMBERS)}, but is `{numbers}`.")
    outputs, inputs = values.shape
    if numbers == "fp32":
        return Packed(0, outputs, inputs, _panels(values))
    if numbers == "bf16":
        return Packed(1, outputs, inputs, _panels(to_bf16(values)))
    units = np.maximum(np.abs(values).max(1), np.finfo(np.float32).tiny) / np.float32(127)
    whole = np.rint(values / units[:, None]).astype(np.int8)
    padded = np.zeros((outputs, -(-inputs // 4) * 4), np.int8)
    padded[:, :inputs] = whole
    scales, sums = (np.zeros(-(-outputs // PANEL) * PANEL, kind) for kind in (np.float32, np.int32))
    scales[:outputs], sums[:outputs] = units, 128 * whole.sum(1, dtype=np.int32)
    return Packed(2, outputs, inputs, _panels(padded, 4), scales, sums)


def to_bf16(values: np.ndarray) -> np.ndarray:
    """The upper halves of fp32 numbers, rounded to the nearest, ties to even; ``uint16``."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def _panels(values: np.ndarray, together: int = 1) -> np.ndarray:
    """``[N, K]`` to ``[panel][K / together][64][together]``."""
    outputs, inputs = values.shape
    panels = -(-outputs // PANEL)
    padded = np.zeros((panels * PANEL, inputs), values.dtype)
    padded[:outputs] = values
    split = padded.reshape(panels, PANEL, inputs // together, together)
    return aligned(split.transpose(0, 2, 1, 3))


def aligned(values: np.ndarray) -> np.ndarray:
    """A contiguous copy whose memory begins at a multiple of 64 bytes."""
    memory = np.empty(values.nbytes + 64, np.uint8)
    begin = -memory.ctypes.data % 64
    copy = memory[begin : begin + values.nbytes].view(values.dtype).reshape(values.shape)
    copy[...] = values
    return copy
