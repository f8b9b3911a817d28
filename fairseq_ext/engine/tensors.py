"""Read the named weights of a safetensors file, one at a time (numpy only).

A weight is stored under its name, in floats or whole numbers. A matrix ``[N, K]`` may instead be
stored in one of three compact forms, as two tensors:

=====================================  ===========================================================
``NAME.int8``, ``NAME.scale``          int8 ``[N, K]``, and a factor for each row, ``[N]``
``NAME.bits``, ``NAME.levels``         eight signs in each byte, ``[N, K / 8]``, as bits, lowest
                                       first: 0 is minus, 1 is plus; and a factor for each row
``NAME.trits``, ``NAME.levels``        five signs in each byte, ``[N, K / 5]``, as base-3 digits,
                                       lowest first: 0 is minus, 1 is zero, 2 is plus; and a factor
                                       for each row
=====================================  ===========================================================
"""

import math
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from fairseq_ext.engine.program import Signs
from fairseq_ext.utils import files
from fairseq_ext.utils.errors import CheckpointError, DataError
from fairseq_ext.utils.json_files import parse_json

TYPES = {
    **{"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "uint16"},
    **{"I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool"},
}
FLOATS = {"F64", "F32", "F16", "BF16"}
INT8, SCALE, BITS, TRITS, LEVELS = ".int8", ".scale", ".bits", ".trits", ".levels"
PARTNERS = {SCALE: (INT8,), LEVELS: (BITS, TRITS)}
TRIPLES = 3 ** np.arange(5)  # the place values of a byte's five digits
DIGITS = (np.arange(3**5)[:, None] // TRIPLES % 3 - 1).astype(np.int8)
"""The five signs that each value of a byte stands for."""

LARGEST = 1e18  # largest magnitude of a weight; products of larger weights could overflow


class Tensors:
    """The weights of a safetensors file; each is read when it is requested.

    A file that is missing, truncated, damaged or not in this format raises CheckpointError.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = path
        try:
            path = files.require_file(path)
            with safe_open(path, framework="numpy"):  # checks the file
                self.size = path.stat().st_size
            # It stays open, because opening it takes longer than reading most weights.
            self._file = path.open("rb")
            weakref.finalize(self, self._file.close)
            length = int.from_bytes(self._file.read(8), "little")
            header = self._file.read(length)
            self._begin = 8 + length
            self._table = parse_json(header.decode("utf-8"), "its header")
            self._table.pop("__metadata__", None)
        except (SafetensorError, OSError, ValueError, TypeError, AttributeError) as error:
            raise self.damaged(error) from None

    def damaged(self, error: Exception) -> CheckpointError:
        """Return a CheckpointError that names the file, for an ``error`` met while reading it."""
        if isinstance(error, DataError) and str(self._path) in str(error):
            return CheckpointError(str(error))
        reason = str(error).partition("\n")[0].rstrip(".") or type(error).__name__
        return CheckpointError(
            f"{self._path} is truncated or damaged ({reason:.200}). Copy or download the bundle "
            "again."
        )

    def __contains__(self, name: str) -> bool:
        return name in self._table

    def names(self) -> Iterator[str]:
        """Yield the names of all weights, without endings such as ``.int8`` of compact forms."""
        for name in self._table:
            stem, dot, ending = name.rpartition(".")
            if dot + ending in (INT8, BITS, TRITS):
                yield stem
            elif not any(stem + main in self._table for main in PARTNERS.get(dot + ending, ())):
                yield name

    def all_names(self) -> Iterator[str]:
        """Yield the names of all tensors in the file, such as ``NAME.int8`` and ``NAME.scale``."""
        yield from self._table

    def number_format(self, name: str) -> str:
        """Return the number format of a tensor, such as ``fp32``."""
        kind = self._entry(name)["dtype"]
        return {"F32": "fp32", "BF16": "bf16"}.get(kind, kind.lower())

    def stored(self, name: str) -> np.ndarray:
        """Read a tensor in the number format in which it is stored; bf16 is read as uint16."""
        entry = self._entry(name)
        kind, count = TYPES[entry["dtype"]], math.prod(entry["shape"])
        array = np.empty(count, kind)
        try:
            self._file.seek(self._begin + entry["data_offsets"][0])
            length = self._file.readinto(array.data)
        except OSError as error:
            raise self.damaged(error) from None
        if length < array.nbytes:
            raise DataError(f"it ends within the weight `{name:.60}`")
        return array.reshape(entry["shape"])

    def _entry(self, name: str) -> dict[str, Any]:
        entry = self._table.get(name)
        if entry is None or entry["dtype"] not in TYPES:
            raise DataError(f"it has no weight `{name:.60}`")
        return entry

    def array(self, name: str) -> np.ndarray:
        """Read a weight that is stored in floats, whole numbers or int8 with a scale.

        The result is in fp32; only whole numbers without a scale keep their type. Raise DataError
        if the file has no such weight, or if a number in it is NaN or above 1e18.
        """
        if (compact := self.int8(name)) is not None:
            rounded, units = compact
            return rounded * units[:, None]
        kind, stored = self._entry(name)["dtype"], self.stored(name)
        if kind == "BF16":
            return _in_range(name, (stored.astype(np.uint32) << 16).view(np.float32))
        if kind not in FLOATS:
            return stored
        with np.errstate(over="ignore", invalid="ignore"):
            return _in_range(name, stored.astype(np.float32, copy=False))

    def int8(self, name: str) -> tuple[np.ndarray, np.ndarray] | None:
        """Read a weight's int8 matrix and the scale of each row; None if it is not in int8."""
        return self._pair(name, INT8, SCALE) if name + INT8 in self else None

    def signs(self, name: str, inputs: int) -> Signs | None:
        """Read a binary or ternary weight ``[rows, inputs]``; None if it is not stored as such."""
        ending = next((ending for ending in (BITS, TRITS) if name + ending in self), None)
        if ending is None:
            return None
        packed, levels = self._pair(name, ending, LEVELS)
        if packed.shape[1] != -(-inputs // (8 if ending == BITS else 5)):
            raise DataError(f"{name} has the wrong size")
        if ending == BITS:
            return Signs(packed, levels, inputs)
        return Signs.packed(unpack_trits(packed, inputs), levels, ternary=True)

    def _pair(self, name: str, ending: str, partner: str) -> tuple[np.ndarray, np.ndarray]:
        """Read the tensors ``name + ending`` (bytes) and ``name + partner`` (a factor per row)."""
        matrix = self.stored(name + ending)
        factors = self.stored(name + partner) if name + partner in self else np.empty(())
        kind = np.int8 if ending == INT8 else np.uint8
        stored = matrix.dtype, matrix.ndim, factors.dtype, factors.shape
        if stored != (kind, 2, np.float32, matrix.shape[:1]):
            raise DataError(f"{name}{ending} and its {partner[1:]} do not fit together")
        return matrix, _in_range(name, factors)


def pack_trits(signs: np.ndarray) -> np.ndarray:
    """Pack signs -1, 0 and 1, ``[rows, inputs]``, five to a byte, ``[rows, inputs / 5]``."""
    padded = np.pad(signs, ((0, 0), (0, -signs.shape[1] % 5)))
    digits = padded.reshape(len(signs), -1, 5) + 1
    return (digits @ TRIPLES).astype(np.uint8)


def unpack_trits(packed: np.ndarray, inputs: int) -> np.ndarray:
    """Unpack the result of :func:`pack_trits` to signs -1, 0 and 1, ``[rows, inputs]`` in int8."""
    if packed.size and packed.max() >= len(DIGITS):
        raise DataError(f"a byte of its ternary weights is above {len(DIGITS) - 1}")
    return DIGITS[packed].reshape(len(packed), -1)[:, :inputs]


def _in_range(name: str, values: np.ndarray) -> np.ndarray:
    """Return ``values``; raise DataError if one is NaN or has a magnitude above LARGEST."""
    if values.size and not (values.min() >= -LARGEST and values.max() <= LARGEST):
        raise DataError(f"the weight `{name:.60}` has numbers that are not finite or above 1e18")
    return values
