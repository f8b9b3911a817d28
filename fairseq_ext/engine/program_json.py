"""Programs as JSON: lists of numbers, and names of operations."""

from __future__ import annotations

from typing import Any

import numpy as np

from fairseq_ext.engine.program import (
    Code,
    Columns,
    Operation,
    Output,
    Phase,
    Program,
    Shape,
    Symbols,
)
from fairseq_ext.utils.errors import DataError

LISTS = ("encoder", "decoder")
NUMBERS = ("longest_source", "longest_target", "caches")


def encode(program: Program) -> dict[str, Any]:
    """Encode the program of one model, without its weights."""
    (layer,) = program.outputs
    return {
        "symbols": program.symbols,
        **{name: getattr(program, name) for name in NUMBERS},
        "shapes": [(shape.width, Phase(shape.phase).name, shape.rows) for shape in program.shapes],
        **{
            name: [(operation.code.name, *operation[1:]) for operation in getattr(program, name)]
            for name in LISTS
        },
        "result": layer.result,
        "output": (layer.weight, layer.bias),
    }


def decode(encoded: dict[str, Any]) -> Program:
    """Undo :func:`encode`; only the types of the parts are checked.

    Raises:
        DataError: a number that is not whole where it must be, or too large for the machine.
        KeyError, TypeError, ValueError: a part is missing or of another type.
    """
    return Program(
        symbols=Symbols(*_whole_numbers(encoded["symbols"])),
        **dict(zip(NUMBERS, _whole_numbers([encoded[name] for name in NUMBERS]), strict=True)),
        shapes=[
            Shape(whole_number(w), Phase[phase], whole_number(rows))
            for w, phase, rows in encoded["shapes"]
        ],
        **{name: [_operation(*operation) for operation in encoded[name]] for name in LISTS},
        outputs=[Output(Columns(*_whole_numbers(encoded["result"])), *_pair(encoded["output"]))],
    )


def whole_number(value: Any) -> int:
    """Return a whole number that fits into the machine's int32.

    Raises:
        DataError: it is not whole, or does not fit.
    """
    if type(value) is not int or not -(1 << 31) <= value < 1 << 31:
        raise DataError("a number is not whole, or too large")
    return value


def number(value: Any) -> int | float:
    """Return a number that fits into the machine's int32 or fp32.

    Raises:
        DataError: it does not fit.
    """
    if type(value) is not float:
        return whole_number(value)
    with np.errstate(over="ignore"):
        if not np.isfinite(np.float32(value)):
            raise DataError("a number is out of range")
    return value


def _operation(code: str, out: Any, inputs: Any, weights: Any, ints: Any, reals: Any) -> Operation:
    read = tuple(Columns(*_whole_numbers(columns)) for columns in inputs)
    factors = tuple(number(factor) for factor in reals)
    return Operation(
        Code[code],
        Columns(*_whole_numbers(out)),
        read,
        _whole_numbers(weights),
        _whole_numbers(ints),
        factors,
    )


def _pair(values: Any) -> tuple[int, int]:
    first, second = _whole_numbers(values)
    return first, second


def _whole_numbers(values: Any) -> tuple[int, ...]:
    return tuple(whole_number(value) for value in values)
