"""Checks of the arrays of a weight, which the machine reads without looking (numpy only)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fairseq_ext.engine import NUMBERS
from fairseq_ext.engine.program import READINGS
from fairseq_ext.engine.weights import BITS8, PANEL, PLAIN, SIGNS, Packed

_UNITS = {"scales": ("float32", lambda _: PANEL), "sums": ("int32", lambda _: PANEL)}
PANELS: dict[int, dict[str, tuple[str, Callable[[int], int]]]] = {
    NUMBERS.index("fp32"): {"values": ("float32", lambda inputs: PANEL * inputs)},
    NUMBERS.index("bf16"): {"values": ("uint16", lambda inputs: PANEL * inputs)},
    NUMBERS.index("int8"): {
        "values": ("int8", lambda inputs: PANEL * 4 * -(-inputs // 4)),
        **_UNITS,
    },
    SIGNS: {
        "values": ("int32", lambda inputs: PANEL * 2 * -(-inputs // 64)),
        "scales": _UNITS["scales"],
    },
    BITS8: {"values": ("uint8", lambda inputs: PANEL // 2 * -(-inputs // 4)), **_UNITS},
}
"""By kind: the arrays of a weight, their types, and how many numbers of each a panel has."""

EMBEDDINGS = {PLAIN, *map(NUMBERS.index, ("fp32", "bf16", "int8"))}
"""Kinds of which a single output can be read."""

LONGEST_SUM = 1 << 16
"""Products of two bytes that int32 has room for."""

MOST = 1 << 24
"""Numbers in a row, rows, numbers of operations: no model comes near it."""

MOST_COLUMNS = 16
"""Columns of all registers, over the rows and columns of all weights; models have about half."""


def is_whole(weight: Packed) -> bool:
    """Whether a weight has the numbers that its kind and size need."""
    kind, outputs, inputs = weight[:3]
    if not (0 < outputs < MOST and 0 < inputs < MOST and (kind == PLAIN or kind in PANELS)):
        return False
    parts = {"values": ("float32", outputs * inputs)}
    if kind != PLAIN:
        panels = -(-outputs // PANEL)
        parts = {n: (t, panels * count(inputs)) for n, (t, count) in PANELS[kind].items()}
    arrays = {n: x for n, x in weight._asdict().items() if isinstance(x, np.ndarray)}
    sized = arrays.keys() == parts.keys() and all(
        (array.dtype.name, array.size) == parts[name] and array.flags.c_contiguous
        for name, array in arrays.items()
    )
    return sized and _sums_fit(weight) and _can_be_read(weight)


def _sums_fit(weight: Packed) -> bool:
    """Whether no sum of products of bytes is out of int32's range."""
    if weight.sums is None:
        return True
    bound = weight.inputs * 128 * 128
    return (
        weight.inputs <= LONGEST_SUM and -bound <= weight.sums.min() <= weight.sums.max() <= bound
    )


def _can_be_read(weight: Packed) -> bool:
    """Whether the reading of inputs is known and its numbers are finite."""
    how, bound, divisor = weight.reading
    with np.errstate(over="ignore"):
        return how in READINGS and bool(np.isfinite(np.float32([bound, divisor])).all())
