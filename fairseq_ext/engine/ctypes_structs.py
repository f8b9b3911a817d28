"""The C structures of engine.h, machine.h and search.h as ctypes classes."""

import ctypes
from collections.abc import Sequence
from typing import Any

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
    """Return the address of an array's data; None if ``array`` is None."""
    return None if array is None else array.ctypes.data


def weight(packed: Packed) -> Weight:
    """Return the C structure of a weight; it points to the weight's arrays, and copies nothing."""
    scales, sums = map(address, (packed.scales, packed.sums))
    method, bound, divisor = packed.reading
    return Weight(
        *(packed.kind, program.READINGS.index(method), packed.inputs, packed.outputs),
        *(packed.values.ctypes.data, scales, sums, bound, divisor),
    )


def operation(source: program.Operation) -> Operation:
    """Convert an operation to the C structure; missing inputs are NOTHING, missing weights -1."""
    inputs = (*source.inputs, *[program.NOTHING] * 3)[:3]
    return Operation(
        *(source.code, Columns(*source.out), (Columns * 3)(*(Columns(*x) for x in inputs))),
        *((INT * 3)(*(*source.weights, -1, -1, -1)[:3]), (INT * 4)(*source.ints)),
        (FLOAT * 2)(*source.reals),
    )


def program_struct(source: program.Program, weights: Sequence[Packed]) -> Program:
    """Return the C structure of a program; the arrays of ``weights`` must outlive it."""
    lists: tuple[ctypes.Array[Any], ...] = (
        (Weight * len(weights))(*map(weight, weights)),
        (Shape * len(source.shapes))(*(Shape(*shape) for shape in source.shapes)),
        (Operation * len(source.encoder))(*map(operation, source.encoder)),
        (Operation * len(source.decoder))(*map(operation, source.decoder)),
        (Output * len(source.outputs))(
            *(Output(Columns(*layer.result), layer.weight, layer.bias) for layer in source.outputs)
        ),
    )
    symbols = source.symbols
    struct = Program(
        *map(ctypes.addressof, lists),
        *(len(source.encoder), len(source.decoder), len(source.shapes), source.caches),
        len(source.outputs),
        *(symbols.begin, symbols.end, symbols.pad, symbols.unknown),
    )
    struct.lists = lists  # keeps them alive, because the structure points to them
    return struct
