"""Recipes to compute the arrays of a program from the named weights of a model (numpy only).

A recipe is the name of a weight, or a list such as ``["rows", "q_proj.weight", "k_proj.weight"]``:
an operation of :data:`OPERATIONS` and its operands, which are recipes or whole numbers. The
compiler and the reader of a bundle call the same functions, and therefore get the same numbers.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from fairseq_ext.engine.tensors import Tensors
from fairseq_ext.utils.errors import DataError

Recipe = str | list[Any]

DEEPEST = 8  # largest depth of nested operations; models need three
FASTEST = 1e6  # largest frequency of a sine, in radians per position; the largest in fairseq is 1


def softmax(array: np.ndarray) -> np.ndarray:
    """Compute the softmax over the last axis."""
    powers = np.exp(array - array.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def sinusoids(frequencies: np.ndarray, count: int, width: int, padding: int) -> np.ndarray:
    """Compute sinusoidal positions, ``[count, width]``, with exactly fairseq's numbers.

    ``frequencies`` are in radians per position. The row with the index ``padding`` is 0.
    """
    if not (0 <= padding < count <= 1 << 20 and 0 <= width - 2 * frequencies.size <= 1):
        raise DataError("a table of positions has a size that does not fit its frequencies")
    if not np.abs(frequencies, dtype=np.float32).max(initial=0) <= FASTEST:
        raise DataError("a table of positions has a frequency out of range")
    angles = np.arange(count, dtype=np.float32)[:, None] * frequencies
    table = np.zeros((count, width), np.float32)
    half = frequencies.size
    np.sin(angles, out=table[:, :half])
    np.cos(angles, out=table[:, half : 2 * half])
    table[padding] = 0
    return table


OPERATIONS: dict[str, Callable[..., np.ndarray]] = {
    # matrices or vectors on top of each other; matrices of equally many rows side by side
    "rows": lambda *parts: np.concatenate(parts),
    "beside": lambda *parts: np.concatenate(parts, axis=1),
    # the columns from `begin` to `end - 1`; a matrix of a list of matrices; all numbers, row by row
    "columns": lambda matrix, begin, end: np.ascontiguousarray(matrix[:, begin:end]),
    "part": lambda matrices, index: np.ascontiguousarray(matrices[index]),
    "flat": lambda array: array.reshape(-1),
    # the sum of several vectors, or of the rows of one matrix
    "total": lambda *vectors: np.add.reduce(vectors[0] if len(vectors) == 1 else vectors, axis=0),
    # weights of a convolution `[outputs, inputs, taps]` as a matrix `[outputs, taps * inputs]`
    "taps": lambda kernel: np.ascontiguousarray(kernel.transpose(0, 2, 1)).reshape(len(kernel), -1),
    "softmax": softmax,
    "sinusoids": sinusoids,
}
"""The operations of recipes, by their names in ``program.json``."""


class Evaluator:
    """An evaluator of recipes: formulas of the engine's arrays, from the weights in a file.

    All results together may take at most ``budget`` bytes: a short recipe in a damaged bundle could
    ask for any amount of memory.
    """

    def __init__(self, tensors: Tensors, budget: int) -> None:
        self._tensors, self._budget = tensors, budget

    def int8(self, recipe: Recipe) -> tuple[np.ndarray, np.ndarray] | None:
        """Compute a recipe as an int8 matrix with a factor for each row, or return None.

        The recipe must be a weight stored in int8, or ``rows``, which stacks such weights of equal
        width. For other recipes the result is None.
        """
        is_rows = isinstance(recipe, list) and recipe[:1] == ["rows"]
        names = recipe[1:] if is_rows else [recipe]
        if not all(isinstance(name, str) for name in names):
            return None
        parts = [part for part in map(self._tensors.int8, names) if part is not None]
        if not parts or len(parts) < len(names) or len({part[0].shape[1] for part in parts}) > 1:
            return None
        values, units = zip(*parts, strict=True)
        self._spend(sum(array.nbytes for array in values))
        return parts[0] if len(parts) == 1 else (np.concatenate(values), np.concatenate(units))

    def array(self, recipe: Recipe, depth: int = 0) -> np.ndarray:
        """Compute the result of a recipe as a contiguous fp32 array.

        ``depth`` is the number of operations around the recipe. A recipe that is nested too deeply
        or cannot be computed raises DataError, ValueError, TypeError, AttributeError or IndexError.
        """
        if isinstance(recipe, str):
            array = self._tensors.array(recipe)
            self._spend(array.nbytes)
        else:
            array = self._computed(recipe, depth)
        if array.dtype != np.float32 or not array.size:
            raise DataError("a recipe's result is empty or not in fp32")
        return np.ascontiguousarray(array)

    def _computed(self, recipe: list[Any], depth: int) -> np.ndarray:
        fits = isinstance(recipe, list) and len(recipe) > 1 and depth < DEEPEST
        if not (fits and isinstance(recipe[0], str) and recipe[0] in OPERATIONS):
            raise DataError("a recipe has an unknown operation")
        name, *operands = recipe
        values = [x if type(x) is int else self.array(x, depth + 1) for x in operands]
        if name == "sinusoids":
            count, width, _ = (value for value in values if isinstance(value, int))
            self._spend(4 * max(0, count) * max(0, width))
        self._spend(sum(value.nbytes for value in values if isinstance(value, np.ndarray)))
        return OPERATIONS[name](*values)

    def _spend(self, size: int) -> None:
        self._budget -= size
        if self._budget < 0:
            raise DataError("its recipes need more memory than those of any model of this size")
