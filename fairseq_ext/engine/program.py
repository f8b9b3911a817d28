"""A program: a model's computation as a list of operations on registers (numpy only).

A register is a matrix of floats that operations read and write. Its *phase* says what a row stands
for: a source token, a sentence, a hypothesis, or a slot. Slots are the K mixtures of tokens to
which a Linformer compresses every sentence. ``native/machine.c`` runs the encoder's operations once
per batch, and the decoder's once per step of the search. The program of an ensemble lists the
operations of all its models, one model after another.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from fairseq_ext.utils.errors import ConfigError, DataError


class Phase(enum.IntEnum):
    """The possible meanings of a register's rows: source tokens, sentences, hypotheses or slots."""

    TOKENS = 0
    SENTENCES = 1
    HYPOTHESES = 2
    SLOTS = 3


class Code(enum.IntEnum):
    """The types of operations; their names and numbers are those of machine.h.

    ``operands`` says how many inputs, weights, integers and floats an operation has.
    """

    EMBED = 0, (0, 2, 1, 1)
    LINEAR = 1, (2, 2, 1, 0)
    NORM = 2, (1, 2, 1, 1)
    ADD = 3, (2, 0, 0, 2)
    ACTIVATE = 4, (1, 0, 1, 0)
    TRANSPOSE = 5, (1, 0, 1, 0)
    ATTEND = 6, (3, 0, 3, 1)
    ATTEND_PAST = 7, (3, 0, 3, 1)
    ATTEND_SOURCE = 8, (3, 0, 3, 1)
    MIX = 9, (1, 1, 0, 0)
    CONVOLVE = 10, (2, 1, 2, 0)
    TAPS = 11, (1, 0, 3, 0)
    RECUR = 12, (1, 2, 1, 0)
    PICK = 13, (1, 0, 1, 0)
    RECALL = 14, (2, 0, 0, 0)
    GRU = 15, (3, 0, 0, 0)
    ADDITIVE = 16, (3, 1, 2, 0)
    BINARIZE = 17, (1, 0, 1, 0)
    GATE = 18, (2, 0, 0, 0)
    FILTER = 19, (1, 1, 3, 0)
    LSTM = 20, (3, 0, 0, 0)

    operands: tuple[int, int, int, int]

    def __new__(cls, number: int, operands: tuple[int, int, int, int]) -> "Code":
        code = int.__new__(cls, number)
        code._value_, code.operands = number, operands
        return code


WEIGHTS = {None: 0, "signed": 1, "unsigned": 2}
"""The ways to binarize attention weights, with their numbers in machine.h."""

ACTIVATIONS = {"linear": 0, "relu": 1, "gelu": 2, "tanh": 3, "gelu_accurate": 4}
"""Activation functions of fairseq's layers, with their numbers in engine.h."""

BACKWARDS, CELLS = 1, 2
"""Flags of :attr:`Code.RECUR`: read the last token first; compute an LSTM instead of a GRU."""


class Shape(NamedTuple):
    """The shape of a register: its number of columns, and what its rows stand for."""

    width: int
    phase: Phase
    rows: int = 0  # of each sentence, if they are slots


class Columns(NamedTuple):
    """A range of columns of a register: ``width`` columns, from column ``offset`` on."""

    register: int
    offset: int
    width: int

    def split(self, parts: int) -> "list[Columns]":
        """Cut the columns into ``parts`` ranges of equal width, from left to right."""
        return self.cut([self.width // parts] * parts)

    def cut(self, widths: Sequence[int]) -> "list[Columns]":
        """Cut the columns into ranges of the given widths, from left to right."""
        begins = accumulate(widths, initial=self.offset)
        return [Columns(self.register, *part) for part in zip(begins, widths, strict=False)]


NOTHING = Columns(-1, 0, 0)


class Operation(NamedTuple):
    """One operation, which writes the columns ``out``; machine.h explains all operands."""

    code: Code
    out: Columns
    inputs: tuple[Columns, ...] = ()
    weights: tuple[int, ...] = ()  # indices in `Program.matrices`
    ints: tuple[int, ...] = ()
    reals: tuple[float, ...] = ()


class Symbols(NamedTuple):
    """The ids of the target's special symbols; ``begin`` is the first input of the decoder."""

    begin: int
    end: int
    pad: int
    unknown: int


@dataclass(frozen=True)
class Matrix:
    """An array of a program.

    ``plain`` is False for a weight ``[outputs, inputs]`` and for a table of embeddings, which the
    engine may keep in bf16 or int8. It is True for all other arrays, such as biases, which the
    engine reads in fp32.
    """

    values: np.ndarray  # in fp32, or in int8 with a factor for each row in `units`
    plain: bool = False
    recipe: Any = None  # how to compute it from the model's weights (recipes.py)
    units: np.ndarray | None = None


READINGS = ("floats", "largest", "mean", "bound")


class Reading(NamedTuple):
    """The way in which a product with a binary weight binarizes its inputs.

    If ``method`` is ``floats``, inputs stay as they are. Otherwise an input x becomes
    ``sign(x) · level / divisor``, and ``method`` says what the level is:

    - ``largest``: half of the largest magnitude in the row of x;
    - ``mean``: the mean magnitude of the row;
    - ``bound``: half of the field ``bound``.
    """

    method: str = "floats"  # one of READINGS
    bound: float = 0.0  # used only if `method` is `bound`
    divisor: float = 1.0


FLOATS = Reading()


@dataclass(frozen=True)
class Signs:
    """A binary or ternary weight ``[N outputs, K inputs]``: signs times a level for each output."""

    values: np.ndarray  # bits [N, at least K / 8] in uint8, lowest first; bit 0 stands for -1
    levels: np.ndarray  # [N], fp32
    inputs: int  # K
    reading: Reading = FLOATS
    name: str | None = None  # name, in the model, of the weight with these signs
    plus: np.ndarray | None = None  # bits like `values`; bit 1 stands for 1; None if binary
    plain = False

    @classmethod
    def packed(cls, signs: np.ndarray, levels: np.ndarray, ternary: bool, **fields: Any) -> "Signs":
        """Pack signs ``[N outputs, K inputs]`` into bits: ±1 or, if ``ternary``, -1, 0 and 1.

        ``levels`` ``[N]`` and ``fields`` are the other fields of :class:`Signs`.
        """
        plus = pack_bits(signs - 1) if ternary else None
        return cls(pack_bits(signs), levels, signs.shape[1], plus=plus, **fields)

    def array(self) -> np.ndarray:
        """Return the signs -1, 0 and 1, ``[N outputs, K inputs]`` in int8."""
        positive, plus = (
            np.unpackbits(bits, axis=1, count=self.inputs, bitorder="little").view(np.int8)
            for bits in (self.values, self.values if self.plus is None else self.plus)
        )
        return positive + plus - 1


def pack_bits(weight: np.ndarray) -> np.ndarray:
    """Pack the signs of a matrix into bits for :attr:`Signs.values`; zero counts as plus."""
    return np.packbits(weight >= 0, axis=1, bitorder="little")


class Output(NamedTuple):
    """An output layer: the columns it reads, and the indices of its matrix and bias (-1: none)."""

    result: Columns
    weight: int
    bias: int = -1


@dataclass
class Program:
    """The computation of a model, built by :class:`fairseq_ext.engine.writer.Writer`.

    An ensemble has an output layer for each model, and takes the mean of the models'
    probabilities, like fairseq's ``EnsembleModel``.
    """

    symbols: Symbols  # the target's special symbols
    longest_source: int  # largest number of tokens, `</s>` included
    longest_target: int  # largest number of tokens, `</s>` included
    matrices: list[Matrix | Signs] = field(default_factory=list)  # the weights
    shapes: list[Shape] = field(default_factory=list)  # of the registers
    encoder: list[Operation] = field(default_factory=list)  # to run once per batch
    decoder: list[Operation] = field(default_factory=list)  # to run once per step
    caches: int = 0  # number of the decoder's caches of past steps
    outputs: list[Output] = field(default_factory=list)

    @property
    def source_tables(self) -> set[int]:
        """The indices in ``matrices`` of the source embeddings, one for each model."""
        return {operation.weights[0] for operation in self.encoder if operation.code is Code.EMBED}

    @property
    def has_alignment(self) -> bool:
        """Whether the program has an attention whose weights are the alignment of translations."""
        over_source = (Code.ATTEND_SOURCE, Code.ADDITIVE)
        return any(op.code in over_source and op.ints[1] for op in self.decoder)


CACHED = (Code.ATTEND_PAST, Code.CONVOLVE, Code.TAPS, Code.FILTER)
"""Operations whose ``ints[1]`` is the number of a cache, or -1."""


def merged(programs: Sequence[Program], counts: Sequence[int] | None = None) -> Program:
    """Join the programs of several models into the program of an ensemble.

    ``counts`` has the number of weights of each program; None for the lengths of the programs'
    ``matrices``. Raise ConfigError if the models have different special symbols.
    """
    first, *rest = programs
    if not rest:
        return first
    if any(model.symbols != first.symbols for model in rest):
        raise ConfigError("the engine has no ensembles of models with different target tokens.")
    source = min(model.longest_source for model in programs)
    target = min(model.longest_target for model in programs)
    ensemble = Program(first.symbols, source, target)
    counts = counts or [len(model.matrices) for model in programs]
    for model, number in zip(programs, accumulate(counts, initial=0), strict=False):
        _append(ensemble, model, number)
    return ensemble


def _append(ensemble: Program, model: Program, first_weight: int) -> None:
    """Add a model to an ensemble, where its weights have indices from ``first_weight`` on."""
    registers, caches = len(ensemble.shapes), ensemble.caches

    def place(old: Columns) -> Columns:
        return old if old == NOTHING else old._replace(register=old.register + registers)

    def weight(number: int) -> int:
        return number if number < 0 else number + first_weight

    def operation(old: Operation) -> Operation:
        ints = list(old.ints)
        if old.code in CACHED and ints[1] >= 0:
            ints[1] += caches
        inputs, numbers = tuple(map(place, old.inputs)), tuple(map(weight, old.weights))
        return Operation(old.code, place(old.out), inputs, numbers, tuple(ints), old.reals)

    ensemble.matrices += model.matrices
    ensemble.shapes += model.shapes
    ensemble.encoder += map(operation, model.encoder)
    ensemble.decoder += map(operation, model.decoder)
    ensemble.caches += model.caches
    ensemble.outputs += [
        Output(place(layer.result), weight(layer.weight), weight(layer.bias))
        for layer in model.outputs
    ]


LISTS = ("encoder", "decoder")
LIMITS = ("longest_source", "longest_target", "caches")


def encode_program(program: Program) -> dict[str, Any]:
    """Encode the program of one model, without its weights, as dictionaries, lists and numbers."""
    (layer,) = program.outputs
    return {
        "symbols": program.symbols,
        **{name: getattr(program, name) for name in LIMITS},
        "shapes": [(shape.width, shape.phase.name, shape.rows) for shape in program.shapes],
        **{
            name: [(operation.code.name, *operation[1:]) for operation in getattr(program, name)]
            for name in LISTS
        },
        "result": layer.result,
        "output": (layer.weight, layer.bias),
    }


def decode_program(encoded: dict[str, Any]) -> Program:
    """Decode the result of :func:`encode_program` to a program without weights.

    This function checks only types; :mod:`fairseq_ext.engine.verify` must check the rest. Wrong
    types raise DataError, LookupError, TypeError, ValueError or OverflowError.
    """
    weight, bias = map(int32, encoded["output"])
    fields: dict[str, Any] = {name: int32(encoded[name]) for name in LIMITS}
    fields |= {name: [_operation(*operation) for operation in encoded[name]] for name in LISTS}
    return Program(
        symbols=Symbols(*map(int32, encoded["symbols"])),
        **fields,
        shapes=[Shape(int32(w), Phase[phase], int32(rows)) for w, phase, rows in encoded["shapes"]],
        outputs=[Output(_columns(encoded["result"]), weight, bias)],
    )


def int32(value: Any) -> int:
    """Return ``value``; raise DataError if it is not a whole number that fits into int32."""
    if type(value) is not int or not -(1 << 31) <= value < 1 << 31:
        raise DataError("a number is not whole, or too large")
    return value


def _operation(code: str, out: Any, inputs: Any, weights: Any, ints: Any, reals: Any) -> Operation:
    weights, ints = (tuple(map(int32, values)) for values in (weights, ints))
    places = _columns(out), tuple(map(_columns, inputs))
    return Operation(Code[code], *places, weights, ints, tuple(map(float, reals)))


def _columns(values: Any) -> Columns:
    return Columns(*map(int32, values))
