"""A model's computation as a list of operations on registers (numpy only).

A register is a matrix of floats; its phase says what a row stands for: a source token, a sentence,
a hypothesis, or one of a fixed number of slots of a sentence. The encoder's operations run once for
a batch of sentences, the decoder's once for every step. ``native/machine.c`` runs them; operations
have the same names there.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np


class Phase(enum.IntEnum):
    """The meaning of a row of a register."""

    TOKENS = 0
    SENTENCES = 1
    HYPOTHESES = 2
    SLOTS = 3


class Code(enum.IntEnum):
    """Operations; machine.h says what each computes."""

    EMBED = 0
    LINEAR = 1
    NORM = 2
    ADD = 3
    ACTIVATE = 4
    TRANSPOSE = 5
    ATTEND = 6
    ATTEND_PAST = 7
    ATTEND_SOURCE = 8
    MIX = 9
    CONVOLVE = 10
    TAPS = 11
    RECUR = 12
    PICK = 13
    RECALL = 14
    GRU = 15
    ADDITIVE = 16
    BINARIZE = 17


WEIGHTS = {None: 0, "signed": 1, "unsigned": 2}
"""How attention binarizes the weights of its sum, as machine.h numbers it."""

ACTIVATIONS = {"linear": 0, "relu": 1, "gelu": 2, "tanh": 3, "gelu_accurate": 4}
"""Functions that fairseq's layers call, by name, as engine.h numbers them."""


class Shape(NamedTuple):
    """Shape of a register: columns, phase, and in :attr:`Phase.SLOTS` rows of a sentence."""

    width: int
    phase: Phase
    rows: int = 0


class Columns(NamedTuple):
    """Some columns of a register."""

    register: int
    offset: int
    width: int

    def split(self, parts: int) -> list[Columns]:
        """Equal parts, from left to right."""
        return self.cut([self.width // parts] * parts)

    def cut(self, widths: Sequence[int]) -> list[Columns]:
        """Parts of these widths, from left to right."""
        begins = accumulate(widths, initial=self.offset)
        return [
            Columns(self.register, begin, width)
            for begin, width in zip(begins, widths, strict=False)
        ]


NOTHING = Columns(-1, 0, 0)


class Operation(NamedTuple):
    """One operation; what the operands mean depends on its code."""

    code: Code
    out: Columns
    inputs: tuple[Columns, ...] = ()
    weights: tuple[int, ...] = ()
    ints: tuple[int, ...] = ()
    reals: tuple[float, ...] = ()


OPERANDS = {
    Code.EMBED: (0, 2, 1, 1),
    Code.LINEAR: (2, 2, 1, 0),
    Code.NORM: (1, 2, 1, 1),
    Code.ADD: (2, 0, 0, 2),
    Code.ACTIVATE: (1, 0, 1, 0),
    Code.TRANSPOSE: (1, 0, 1, 0),
    Code.ATTEND: (3, 0, 3, 1),
    Code.ATTEND_PAST: (3, 0, 3, 1),
    Code.ATTEND_SOURCE: (3, 0, 3, 1),
    Code.MIX: (1, 1, 0, 0),
    Code.CONVOLVE: (2, 1, 2, 0),
    Code.TAPS: (1, 0, 3, 0),
    Code.RECUR: (1, 2, 1, 0),
    Code.PICK: (1, 0, 1, 0),
    Code.RECALL: (2, 0, 0, 0),
    Code.GRU: (3, 0, 0, 0),
    Code.ADDITIVE: (3, 1, 2, 0),
    Code.BINARIZE: (1, 0, 1, 0),
}
"""How many inputs, weights, ints and reals an operation has."""


class Symbols(NamedTuple):
    """Numbers of the special symbols; ``begin`` is what a translation begins with."""

    begin: int
    end: int
    pad: int
    unknown: int


@dataclass(frozen=True)
class Matrix:
    """``W [N, K]`` of a product or of an embedding, or a table or vector that stays as it is.

    Attributes:
        values: fp32.
        plain: read in fp32, row by row: gains, biases, positions.
        recipe: how it is made of the model's weights (:mod:`fairseq_ext.engine.recipes`); a
            constant, which is no weight, stands in it as an array.
    """

    values: np.ndarray
    plain: bool = False
    recipe: Any = None


READINGS = ("floats", "largest", "mean", "bound")


class Reading(NamedTuple):
    """How a product with signs reads its inputs.

    Attributes:
        how: as ``floats``, or as signs, whose level is half of the row's ``largest`` number, the
            ``mean`` number (signs left out), or half of a given ``bound``.
        bound: the given bound.
        divisor: of the level.
    """

    how: str = "floats"
    bound: float = 0.0
    divisor: float = 1.0


FLOATS = Reading()


@dataclass(frozen=True)
class Signs:
    """``W [N, K]`` of a product, which is ``±1`` times a level for each output.

    Attributes:
        values: bits ``[N, at least K / 8]``, uint8, from the lowest of a byte; 1 is plus.
        levels: ``[N]``, fp32.
        inputs: K.
        reading: of the inputs.
        name: of the weight whose signs these are.
    """

    values: np.ndarray
    levels: np.ndarray
    inputs: int
    reading: Reading = FLOATS
    name: str | None = None
    plain = False


def pack_bits(weight: np.ndarray) -> np.ndarray:
    """The signs of ``W [N, K]`` as :attr:`Signs.values` has them; that of zero is plus."""
    return np.packbits(weight >= 0, axis=1, bitorder="little")


class Output(NamedTuple):
    """An output layer: what it reads, and the numbers of its matrix and bias (-1: none)."""

    result: Columns
    weight: int
    bias: int = -1


@dataclass
class Program:
    """The computation of a model; :class:`fairseq_ext.engine.writer.Writer` builds one.

    Attributes:
        matrices: weights, by number.
        shapes: of the registers, by number.
        encoder, decoder: operations.
        caches: how many of the decoder's attentions keep the past.
        outputs: the output layer; in an ensemble (:mod:`fairseq_ext.engine.ensemble`) one of each
            model, and probabilities are the mean over models.
        symbols: of the target.
        longest_source, longest_target: tokens, ``</s>`` included.
    """

    symbols: Symbols
    longest_source: int
    longest_target: int
    matrices: list[Matrix | Signs] = field(default_factory=list)
    shapes: list[Shape] = field(default_factory=list)
    encoder: list[Operation] = field(default_factory=list)
    decoder: list[Operation] = field(default_factory=list)
    caches: int = 0
    outputs: list[Output] = field(default_factory=list)

    @property
    def source_tables(self) -> set[int]:
        """Numbers of the matrices that have a row for each source token."""
        return {operation.weights[0] for operation in self.encoder if operation.code is Code.EMBED}

    @property
    def has_alignment(self) -> bool:
        """Whether the decoder shows weights of an attention over the source."""
        over_source = (Code.ATTEND_SOURCE, Code.ADDITIVE)
        return any(
            operation.code in over_source and operation.ints[1] for operation in self.decoder
        )
