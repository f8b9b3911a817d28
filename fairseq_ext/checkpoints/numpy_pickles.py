"""numpy's arrays and numbers in checkpoints, read without anything of numpy's being called.

torch's safe loading calls what is on its list with arguments of the file. ``numpy.ndarray`` and
``numpy.dtype`` could make an array of Python objects whose addresses are bytes of the file. A
pickle that names them gets what is here instead, which makes numbers and arrays of numbers only.
"""

from __future__ import annotations

import re
from pickle import UnpicklingError
from typing import Any

import numpy as np


class NumberKind:
    """In the place of ``numpy.dtype``: integers, real numbers or truth values.

    Raises:
        UnpicklingError: another kind.
    """

    def __init__(self, code: object, *flags: object) -> None:
        if not (isinstance(code, str) and re.fullmatch("b1|[iu][1248]|f[248]", code)):
            raise _refused("dtype")
        self.dtype = np.dtype(code)

    def __setstate__(self, state: Any) -> None:
        _, order, subarray, names, fields, *_ = state
        if subarray is not None or names is not None or fields is not None:
            raise _refused("dtype")
        if order == ">":
            self.dtype = self.dtype.newbyteorder(">")


class NumberArray(np.ndarray):
    """In the place of ``numpy.ndarray``; it is pickled as one again.

    Raises:
        UnpicklingError: it is called, or gets something else than numbers.
    """

    def __new__(cls, *arguments: object) -> NumberArray:
        raise _refused("ndarray")

    def __setstate__(self, state: Any) -> None:
        version, shape, kind, fortran, data = state
        if not (isinstance(kind, NumberKind) and isinstance(data, bytes)):
            raise _refused("ndarray")
        super().__setstate__((version, shape, kind.dtype, fortran, data))

    def __reduce_ex__(self, protocol: Any) -> Any:
        return np.asarray(self).__reduce_ex__(protocol)


def reconstruct(kind: object, *shape: object) -> NumberArray:
    """An empty array, which gets its numbers by :meth:`NumberArray.__setstate__`.

    Raises:
        UnpicklingError: the array is of another class.
    """
    if kind is not NumberArray:
        raise _refused("ndarray")
    return np.ndarray.__new__(NumberArray, (0,), np.int8)


def scalar(kind: object, data: object) -> np.generic:
    """Return a number.

    Raises:
        UnpicklingError: the data are not a number.
    """
    if not (isinstance(kind, NumberKind) and isinstance(data, bytes)):
        raise _refused("dtype")
    (number,) = np.frombuffer(data, kind.dtype)
    return number


def _refused(name: str) -> UnpicklingError:
    return UnpicklingError(f"Unsupported class numpy.{name} with such contents")


STAND_INS: list[tuple[Any, str]] = [
    (NumberKind, "numpy.dtype"),
    (NumberArray, "numpy.ndarray"),
    *((reconstruct, f"numpy.{core}.multiarray._reconstruct") for core in ("core", "_core")),
    *((scalar, f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")),
]
"""Stand-ins with numpy's names for them, for unpickling; numpy 1 has ``core``, 2 has ``_core``."""
