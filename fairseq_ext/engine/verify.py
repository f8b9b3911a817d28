"""Whether a program and its weights can be run: the machine itself checks nothing (numpy only).

``native/machine.c`` reads and writes memory as the program says. So everything it relies on is
proven first: that an operation has its operands, that they lie within registers that hold
something by then, that the rows of registers are of the same things, and that each weight has the
size and the kind with which the operation reads it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from fairseq_ext.engine.program import (
    ACTIVATIONS,
    NOTHING,
    OPERANDS,
    WEIGHTS,
    Code,
    Columns,
    Operation,
    Phase,
    Program,
    Shape,
)
from fairseq_ext.engine.weight_checks import EMBEDDINGS, MOST, MOST_COLUMNS, is_whole
from fairseq_ext.engine.weights import PLAIN, Packed
from fairseq_ext.utils.errors import ConfigError

OF_ENCODER = {Code.TRANSPOSE, Code.ATTEND, Code.MIX, Code.RECUR, Code.PICK}
OF_DECODER = {Code.ATTEND_PAST, Code.ATTEND_SOURCE, Code.RECALL, Code.GRU, Code.ADDITIVE}


def verify(program: Program, weights: Sequence[Packed]) -> None:
    """Refuse a program that would read or write what is not there.

    Args:
        program: its ``matrices`` are not looked at.
        weights: in their place, as they are laid out.

    Raises:
        ConfigError: the first fault.
    """
    for number, weight in enumerate(weights):
        _require(is_whole(weight), f"weight {number} has another size or kind than it says")
    _Verifier(program, weights).run()


def _require(condition: object, fault: str) -> None:
    if not condition:
        raise ConfigError(f"{fault}.")


class _Verifier:
    """A walk through the operations in the order in which they run."""

    def __init__(self, program: Program, weights: Sequence[Packed]) -> None:
        self.program, self.weights = program, weights
        self.written: list[np.ndarray] = []  # of each register: which columns hold something
        self.heads: dict[int, int] = {}  # of registers that hold transposed keys
        self.caches: Counter[int] = Counter()
        self.decoding = False

    def run(self) -> None:
        """Encoder, decoder, and what is around them."""
        self._check_numbers()
        program = self.program
        for self.decoding, operations in ((False, program.encoder), (True, program.decoder)):
            side = "decoder" if self.decoding else "encoder"
            for place, one in enumerate(operations):
                try:
                    self._check(one)
                except ConfigError as error:
                    raise ConfigError(
                        f"operation {place} of the {side} ({Code(one.code).name}): {error}"
                    ) from None
            for one in operations:
                if one.code is Code.RECALL:  # by now it is written
                    self.read(one.inputs[0], Phase.HYPOTHESES)
        vocabulary = self._vocabulary()
        for layer in program.outputs:
            self.read(layer.result, Phase.HYPOTHESES)
            self.product(layer.weight, layer.result.width, vocabulary)
            self.vector(layer.bias, vocabulary, optional=True)
        _require(all(0 <= one < vocabulary for one in program.symbols), "a symbol is no token")
        every = sorted(self.caches.elements())
        _require(every == list(range(program.caches)), "its caches are not one for each operation")
        embeds = any(one.code is Code.EMBED for one in program.encoder)
        _require(embeds, "its encoder reads no tokens")

    def _vocabulary(self) -> int:
        layers = self.program.outputs
        there = layers and 0 <= layers[0].weight < len(self.weights)
        _require(there, "it has no output layer")
        return self.weights[layers[0].weight].outputs

    def _check_numbers(self) -> None:
        """Check what does not belong to a single operation."""
        program = self.program
        for name in ("longest_source", "longest_target"):
            _require(1 <= getattr(program, name) < 1 << 31, f"its `{name}` is out of range")
        most = sum(one.outputs + one.inputs for one in self.weights)
        for width, phase, rows in program.shapes:
            _require(1 <= width <= most, "a register is too wide")
            _require(phase in iter(Phase), "a register has an unknown phase")
            _require(rows == 0 or phase == Phase.SLOTS, "a register has a number of rows")
            _require(0 <= rows <= MOST, "a register has too many rows")
            _require(rows or phase != Phase.SLOTS, "a register has no rows")
        columns = sum(shape.width for shape in program.shapes)
        _require(columns <= MOST_COLUMNS * most, "its registers are too many")
        self.written = [np.zeros(shape.width, bool) for shape in program.shapes]

    def _check(self, one: Operation) -> None:
        _require(one.code in OPERANDS, "it is unknown")
        counts = tuple(map(len, (one.inputs, one.weights, one.ints, one.reals)))
        _require(counts == OPERANDS[one.code], "it has other operands")
        _require(one.code not in (OF_ENCODER if self.decoding else OF_DECODER), "not here")
        _require(all(-1 <= number <= MOST for number in one.ints), "a number is out of range")
        with np.errstate(over="ignore"):
            _require(np.isfinite(np.float32(one.reals)).all(), "a factor is not finite")
        out = self.within(one.out)
        _require((out.phase == Phase.HYPOTHESES) == self.decoding, "it writes into the other part")
        _require(one.out.register not in self.heads, "it writes into transposed keys")
        RULES[one.code](self, one)
        self.written[one.out.register][one.out.offset :][: one.out.width] = True

    # ---- operands --------------------------------------------------------------------------------

    def within(self, place: Columns) -> Shape:
        """The shape of an operand's register; the operand lies in it."""
        _require(0 <= place.register < len(self.program.shapes), "a register is missing")
        shape = self.program.shapes[place.register]
        inside = place.offset >= 0 and 1 <= place.width <= shape.width - place.offset
        _require(inside, "columns are outside of their register")
        return shape

    def read(self, place: Columns, *phases: Phase, width: int | None = None) -> Shape:
        """The same of an input, which must hold something, in rows of one of these phases."""
        shape = self.within(place)
        held = self.written[place.register][place.offset :][: place.width]
        _require(held.all() and place.register not in self.heads, "it reads what is not written")
        _require(shape.phase in phases, "its rows are of other things")
        _require(width is None or place.width == width, "an operand has another width")
        return shape

    def beside(self, place: Columns, out: Columns, width: int | None = None) -> None:
        """An input with a row for each row of the output."""
        shape, wanted = self.read(place, *Phase, width=width), self.within(out)
        _require(shape[1:] == wanted[1:], "its rows are of other things")

    def weight(self, number: int) -> Packed:
        """A weight that is there."""
        _require(0 <= number < len(self.weights), "a weight is missing")
        return self.weights[number]

    def product(self, number: int, inputs: int, outputs: int) -> None:
        """A weight in panels."""
        one = self.weight(number)
        fits = one.kind != PLAIN and (one.inputs, one.outputs) == (inputs, outputs)
        _require(fits, "its weight has another size or kind")

    def plain(self, number: int, rows: int, columns: int = 1) -> np.ndarray:
        """A table of at least this many rows that is read in fp32: ``[rows, columns]``."""
        one = self.weight(number)
        fits = one.kind == PLAIN and one.inputs == columns and one.outputs >= rows
        _require(fits, "its vector or table has another size or kind")
        return one.values.reshape(-1, columns)

    def vector(self, number: int, size: int, *, optional: bool = False) -> None:
        """A gain or a bias."""
        if number != -1 or not optional:
            self.plain(number, size)

    def activation(self, number: int) -> None:
        """The number of a function."""
        _require(number in ACTIVATIONS.values(), "its activation is unknown")

    def cache(self, number: int) -> None:
        """A memory of past steps, in the decoder."""
        if self.decoding:
            self.caches[number] += 1

    def divides(self, parts: int, *widths: int) -> None:
        """Widths that can be cut into heads or groups."""
        equal = parts >= 1 and not any(width % parts for width in widths)
        _require(equal, "a width cannot be cut into equal parts")

    def memory(self, one: Operation) -> None:
        """Query, transposed keys and values of an attention over a sentence."""
        (query, keys, values), heads = one.inputs, one.ints[0]
        self.beside(query, one.out, width=keys.width)
        shape = self.within(keys)
        _require(self.heads.get(keys.register) == heads, "its keys are not transposed for it")
        _require((keys.offset, keys.width) == (0, shape.width), "it does not read whole keys")
        found = self.read(values, Phase.TOKENS, Phase.SLOTS, width=one.out.width)
        _require(found[1:] == shape[1:], "its keys and values are of other things")
        self.divides(heads, query.width, values.width)
        self.binary(one.ints[2])

    def binary(self, how: int) -> None:
        """How the weights of an attention's sum are read."""
        _require(how in WEIGHTS.values(), "its sum is of an unknown kind")


# ---- operations; machine.h says what each computes -----------------------------------------------


def _embed(check: _Verifier, one: Operation) -> None:
    (table, positions), (first,) = one.weights, one.ints
    tokens = Phase.HYPOTHESES if check.decoding else Phase.TOKENS
    _require(check.within(one.out).phase == tokens, "its rows are no tokens")
    known = check._vocabulary() if check.decoding else 1
    found = check.weight(table)
    fits = found.inputs == one.out.width and found.outputs >= known
    _require(fits and found.kind in EMBEDDINGS, "its table has another size or kind")
    _require(first >= 0, "its first position is negative")
    if positions != -1:
        program = check.program
        longest = program.longest_target if check.decoding else program.longest_source
        check.plain(positions, longest + first, one.out.width)


def _linear(check: _Verifier, one: Operation) -> None:
    (x, added), (weight, bias), (activation,) = one.inputs, one.weights, one.ints
    check.beside(x, one.out)
    check.product(weight, x.width, one.out.width)
    check.vector(bias, one.out.width, optional=True)
    check.activation(activation)
    if added != NOTHING:
        check.beside(added, one.out, one.out.width)
        simple = activation in (ACTIVATIONS["linear"], ACTIVATIONS["relu"])
        _require(simple, "something is added to its activation")


def _norm(check: _Verifier, one: Operation) -> None:
    (groups,), (eps,) = one.ints, one.reals
    check.beside(one.inputs[0], one.out, one.out.width)
    check.divides(groups, one.out.width)
    for number in one.weights:
        check.vector(number, one.out.width // groups)
    _require(eps >= 0, "its epsilon is negative")


def _binarize(check: _Verifier, one: Operation) -> None:
    check.beside(one.inputs[0], one.out, one.out.width)
    check.divides(one.ints[0], one.out.width)


def _add(check: _Verifier, one: Operation) -> None:
    for x in one.inputs:
        check.beside(x, one.out, one.out.width)


def _activate(check: _Verifier, one: Operation) -> None:
    check.beside(one.inputs[0], one.out, one.out.width)
    check.activation(one.ints[0])


def _transpose(check: _Verifier, one: Operation) -> None:
    (keys,), (heads,) = one.inputs, one.ints
    check.read(keys, Phase.TOKENS, Phase.SLOTS)
    check.beside(keys, one.out, one.out.width)
    check.divides(heads, keys.width)
    whole = (one.out.offset, one.out.width) == (0, check.within(one.out).width)
    _require(whole and not check.written[one.out.register].any(), "it needs a register of its own")
    check.heads[one.out.register] = heads


def _attend(check: _Verifier, one: Operation) -> None:
    check.memory(one)
    _require(check.within(one.out).phase == Phase.TOKENS, "its rows are no tokens")


def _attend_past(check: _Verifier, one: Operation) -> None:
    heads, cache, how = one.ints
    check.binary(how)
    for x in one.inputs:
        check.beside(x, one.out, one.out.width)
    check.divides(heads, one.out.width)
    check.cache(cache)


def _attend_source(check: _Verifier, one: Operation) -> None:
    check.memory(one)
    shown = one.ints[1] != 0  # there is room for a weight of each token
    tokens = check.within(one.inputs[2]).phase == Phase.TOKENS
    _require(tokens or not shown, "its alignment is not with tokens")


def _mix(check: _Verifier, one: Operation) -> None:
    check.read(one.inputs[0], Phase.TOKENS, width=one.out.width)
    out, matrix = check.within(one.out), check.weight(one.weights[0])
    fits = matrix.kind == PLAIN and matrix.outputs == out.rows
    _require(fits and out.phase == Phase.SLOTS, "its matrix has another size or kind")
    _require(matrix.inputs >= check.program.longest_source, "its matrix is too short for sentences")


def _convolve(check: _Verifier, one: Operation) -> None:
    (logits, values), (heads, cache) = one.inputs, one.ints
    check.beside(logits, one.out)
    check.beside(values, one.out, one.out.width)
    check.divides(heads, one.out.width)
    sizes = check.plain(one.weights[0], 1, 2)[:, 0]
    _require(np.isin(sizes, np.arange(1, logits.width + 1)).all(), "a kernel has no such size")
    taps = int(sizes.astype(np.int64).sum())  # float32 loses ones beside 2^24
    _require(logits.width == heads * taps, "its logits are not one for each tap")
    _window(check, one, cache)


def _taps(check: _Verifier, one: Operation) -> None:
    (x,), (_, cache, count) = one.inputs, one.ints
    check.beside(x, one.out)
    _require(count >= 1 and one.out.width == count * x.width, "its width is not one for each tap")
    _window(check, one, cache)


def _window(check: _Verifier, one: Operation, cache: int) -> None:
    tokens = (Phase.HYPOTHESES, Phase.TOKENS)
    _require(check.within(one.out).phase in tokens, "its rows are no tokens")
    check.cache(cache)


def _recur(check: _Verifier, one: Operation) -> None:
    width = one.out.width
    check.read(one.inputs[0], Phase.TOKENS, width=3 * width)
    check.beside(one.inputs[0], one.out)
    check.product(one.weights[0], width, 3 * width)
    check.vector(one.weights[1], 3 * width, optional=True)


def _pick(check: _Verifier, one: Operation) -> None:
    check.read(one.inputs[0], Phase.TOKENS, width=one.out.width)
    _require(check.within(one.out).phase == Phase.SENTENCES, "its rows are no sentences")


def _recall(check: _Verifier, one: Operation) -> None:
    state, initial = one.inputs
    fits = check.within(state).phase == Phase.HYPOTHESES and state.width == one.out.width
    own = state.register != one.out.register and not check.written[state.register].any()
    _require(fits and own, "it cannot recall what this step has written")
    if initial != NOTHING:
        check.read(initial, Phase.SENTENCES, width=one.out.width)


def _gru(check: _Verifier, one: Operation) -> None:
    width = one.out.width
    for x, wanted in zip(one.inputs, (3 * width, 3 * width, width), strict=True):
        check.beside(x, one.out, wanted)


def _additive(check: _Verifier, one: Operation) -> None:
    query, keys, values = one.inputs
    check.beside(query, one.out)
    check.read(keys, Phase.TOKENS, width=query.width)
    check.read(values, Phase.TOKENS, width=one.out.width)
    check.vector(one.weights[0], query.width)


RULES: dict[Code, Callable[[_Verifier, Operation], None]] = {
    Code.EMBED: _embed,
    Code.LINEAR: _linear,
    Code.NORM: _norm,
    Code.ADD: _add,
    Code.ACTIVATE: _activate,
    Code.TRANSPOSE: _transpose,
    Code.ATTEND: _attend,
    Code.ATTEND_PAST: _attend_past,
    Code.ATTEND_SOURCE: _attend_source,
    Code.MIX: _mix,
    Code.CONVOLVE: _convolve,
    Code.TAPS: _taps,
    Code.RECUR: _recur,
    Code.PICK: _pick,
    Code.RECALL: _recall,
    Code.GRU: _gru,
    Code.ADDITIVE: _additive,
    Code.BINARIZE: _binarize,
}
