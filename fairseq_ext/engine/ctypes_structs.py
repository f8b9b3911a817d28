"""Structures of engine.h, machine.h and search.h, as ctypes has them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np

from fairseq_ext.engine import program
from fairseq_ext.engine.weights import Packed

POINTER, LONG, INT, FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32, ctypes.c_float


class Weight(ctypes.Structure):
    _fields_ = (
        *(("kind", INT), ("reading", INT), ("inputs", LONG), ("outputs", LONG)),
        *(("values", POINTER), ("scales", POINTER), ("sums", POINTER)),
        *(("bound", FLOAT), ("divisor", FLOAT)),
    )


class Shape(ctypes.Structure):
    _fields_ = tuple((name, INT) for name in ("width", "phase", "rows"))


class Columns(ctypes.Structure):
    _fields_ = tuple((name, INT) for name in ("index", "offset", "width"))


class Operation(ctypes.Structure):
    _fields_ = (
        *(("code", INT), ("out", Columns), ("inputs", Columns * 3)),
        *(("weights", INT * 3), ("ints", INT * 4), ("reals", FLOAT * 2)),
    )


class Output(ctypes.Structure):
    _fields_ = (("result", Columns), ("weight", INT), ("bias", INT))


class Program(ctypes.Structure):
    _fields_ = (
        *((name, POINTER) for name in ("weights", "shapes", "encoder", "decoder", "outputs")),
        *((name, INT) for name in ("encoder_count", "decoder_count", "shape_count", "caches")),
        *((name, INT) for name in ("output_count", "bos", "eos", "pad", "unk")),
    )


class Translation(ctypes.Structure):
    _fields_ = (
        *(("sentence", INT), ("length", INT), ("score", FLOAT), ("columns", INT)),
        *(("first", LONG), ("attention", LONG)),
    )


class Results(ctypes.Structure):
    _fields_ = (
        *(("found", ctypes.POINTER(Translation)), ("count", LONG), ("room", LONG)),
        *(("tokens", ctypes.POINTER(INT)), ("scores", ctypes.POINTER(FLOAT))),
        *(("length", LONG), ("length_room", LONG)),
        *(("attention", ctypes.POINTER(FLOAT)), ("attention_length", LONG)),
        ("attention_room", LONG),
    )


def address(array: np.ndarray | None) -> int | None:
    """Return the address of an array's data, or None."""
    return None if array is None else array.ctypes.data


def weight(packed: Packed) -> Weight:
    """A weight; its arrays must be kept as long as it is used."""
    scales, sums = map(address, (packed.scales, packed.sums))
    how, bound, divisor = packed.reading
    return Weight(
        *(packed.kind, program.READINGS.index(how), packed.inputs, packed.outputs),
        *(packed.values.ctypes.data, scales, sums, bound, divisor),
    )


def operation(one: program.Operation) -> Operation:
    """An operation, its operands filled up."""
    made = Operation(one.code, Columns(*one.out))
    for i in range(3):
        made.inputs[i] = Columns(*(one.inputs[i] if i < len(one.inputs) else program.NOTHING))
        made.weights[i] = one.weights[i] if i < len(one.weights) else -1
    for i, value in enumerate(one.ints):
        made.ints[i] = value
    for i, value in enumerate(one.reals):
        made.reals[i] = value
    return made


def whole(what: program.Program, weights: Sequence[Packed]) -> Program:
    """A program with its weights, whose arrays must be kept as long as it is used."""
    lists = (
        (Weight * len(weights))(*map(weight, weights)),
        (Shape * len(what.shapes))(*(Shape(*shape) for shape in what.shapes)),
        (Operation * len(what.encoder))(*map(operation, what.encoder)),
        (Operation * len(what.decoder))(*map(operation, what.decoder)),
        (Output * len(what.outputs))(
            *(Output(Columns(*one.result), one.weight, one.bias) for one in what.outputs)
        ),
    )
    symbols = what.symbols
    made = Program(
        *map(ctypes.addressof, lists),
        *(len(what.encoder), len(what.decoder), len(what.shapes), what.caches),
        len(what.outputs),
        *(symbols.begin, symbols.end, symbols.pad, symbols.unknown),
    )
    made.lists = lists  # which it points to
    return made
