"""The C structures of engine.h, machine.h and search.h, as ctypes classes and numpy types."""

import ctypes
from collections.abc import Sequence

import numpy as np

from fairseq_ext.engine import program
from fairseq_ext.engine.weights import Packed

POINTER, LONG, INT, FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32, ctypes.c_float

WEIGHT = np.dtype(
    [
        *(("kind", "i4"), ("reading", "i4"), ("inputs", "i8"), ("outputs", "i8")),
        *(("values", "u8"), ("scales", "u8"), ("sums", "u8")),  # addresses; 0 for none
        *(("bound", "f4"), ("divisor", "f4")),
    ]
)
OPERATION = np.dtype(
    [
        *(("code", "i4"), ("out", "i4", 3), ("inputs", "i4", (3, 3))),
        *(("weights", "i4", 3), ("ints", "i4", 4), ("reals", "f4", 2)),
    ]
)


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


def weight_structs(weights: Sequence[Packed]) -> np.ndarray:
    """Return the C structures of weights; they point to the weights' arrays, and copy nothing."""
    structs = []
    for kind, outputs, inputs, *arrays, (method, bound, divisor) in weights:
        addresses = (address(array) or 0 for array in arrays)
        number = program.READINGS.index(method)
        structs.append((kind, number, inputs, outputs, *addresses, bound, divisor))
    return np.array(structs, WEIGHT)


def operation_structs(operations: Sequence[program.Operation]) -> np.ndarray:
    """Return the C structures of operations; missing inputs are NOTHING, missing weights -1."""
    structs = np.zeros(len(operations), OPERATION)
    structs["inputs"], structs["weights"] = program.NOTHING, -1
    for struct, operation in zip(structs, operations, strict=True):
        struct["code"], struct["out"] = operation.code, operation.out
        for name in ("inputs", "weights", "ints", "reals"):
            operands = getattr(operation, name)
            if operands:
                struct[name][: len(operands)] = operands
    return structs


def program_struct(source: program.Program, weights: Sequence[Packed]) -> Program:
    """Return the C structure of a program; the arrays of ``weights`` must outlive it."""
    layers = [(*layer.result, layer.weight, layer.bias) for layer in source.outputs]
    arrays = (
        weight_structs(weights),
        np.array(source.shapes, np.int32),
        operation_structs(source.encoder),
        operation_structs(source.decoder),
        np.array(layers, np.int32),
    )
    struct = Program(
        *map(address, arrays),
        *(len(source.encoder), len(source.decoder), len(source.shapes), source.caches),
        *(len(layers), *source.symbols),
    )
    struct.arrays = arrays  # keeps them alive, because the structure points to them
    return struct
