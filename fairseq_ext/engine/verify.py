"""Check that a program and its weights can be run (numpy only).

``native/machine.c`` reads and writes memory as the program says, and checks nothing. So everything
it relies on is proven first: operations have their operands, operands lie within registers that
were written before, rows of registers stand for the same things, and each weight has the size and
kind that its operation needs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from fairseq_ext.engine import NUMBERS
from fairseq_ext.engine.program import (
    ACTIVATIONS,
    BACKWARDS,
    CELLS,
    NOTHING,
    OPERANDS,
    READINGS,
    WEIGHTS,
    Code,
    Columns,
    Operation,
    Phase,
    Program,
    Shape,
)
from fairseq_ext.engine.weights import BITS8, PANEL, PLAIN, SIGNS, TERNARY, Packed
from fairseq_ext.utils.errors import ConfigError

_UNITS = {"scales": ("float32", lambda _: PANEL), "sums": ("int32", lambda _: PANEL)}
PANELS: dict[int, dict[str, tuple[str, Callable[[int], int]]]] = {
    NUMBERS.index("fp32"): {"values": ("float32", lambda inputs: PANEL * inputs)},
    NUMBERS.index("bf16"): {"values": ("uint16", lambda inputs: PANEL * inputs)},
    NUMBERS.index("int8"): {
        "values": ("int8", lambda inputs: PANEL * 4 * -(-inputs // 4)),
        **_UNITS,
    },
    SIGNS: {
        "values": ("int32", lambda inputs: PANEL * 2 * -(-inputs // 64)),
        "scales": _UNITS["scales"],
    },
    BITS8: {"values": ("uint8", lambda inputs: PANEL // 2 * -(-inputs // 4)), **_UNITS},
    TERNARY: {
        "values": ("int32", lambda inputs: PANEL * 4 * -(-inputs // 64)),
        "scales": _UNITS["scales"],
    },
}
"""The arrays of a weight by kind, with their types and the numbers in a panel."""

EMBEDDINGS = {PLAIN, *map(NUMBERS.index, ("fp32", "bf16", "int8"))}
"""Kinds of weights of which a single row can be read."""

LONGEST_SUM = 1 << 16
"""Number of products of two bytes whose sum fits into int32."""

MOST = 1 << 24
"""Most rows and columns, and the largest integer in an operation; no model comes near it."""

MOST_COLUMNS = 16
"""Most columns of all registers per row and column of all weights; models have about half."""

MOST_NUMBERS = 1 << 22
"""Most numbers in all registers for a token; 48 layers, 8,192 wide inside, have a fifth."""

MOST_SLOTS = 1 << 25
"""Most numbers in all registers for the slots of a sentence: 128 MiB."""

MOST_OPERATIONS = 1 << 13
"""Most operations of the encoder or the decoder; 48 layers have some 500."""


def is_whole(weight: Packed) -> bool:
    """Return whether a weight has the numbers that its kind and size need."""
    kind, outputs, inputs = weight[:3]
    if not (0 < outputs < MOST and 0 < inputs < MOST and (kind == PLAIN or kind in PANELS)):
        return False
    parts = {"values": ("float32", outputs * inputs)}
    if kind != PLAIN:
        panels = -(-outputs // PANEL)
        parts = {n: (t, panels * count(inputs)) for n, (t, count) in PANELS[kind].items()}
    arrays = {n: x for n, x in weight._asdict().items() if isinstance(x, np.ndarray)}
    sized = arrays.keys() == parts.keys() and all(
        (array.dtype.name, array.size) == parts[name] and array.flags.c_contiguous
        for name, array in arrays.items()
    )
    return sized and _sums_fit(weight) and _can_be_read(weight)


def _sums_fit(weight: Packed) -> bool:
    """Return whether all sums of products of bytes fit into int32."""
    if weight.sums is None:
        return True
    bound = weight.inputs * 128 * 128
    return (
        weight.inputs <= LONGEST_SUM and -bound <= weight.sums.min() <= weight.sums.max() <= bound
    )


def _can_be_read(weight: Packed) -> bool:
    """Return whether the way of reading inputs is known and its numbers are finite."""
    how, bound, divisor = weight.reading
    with np.errstate(over="ignore"):
        return how in READINGS and bool(np.isfinite(np.float32([bound, divisor])).all())


OF_ENCODER = {Code.TRANSPOSE, Code.ATTEND, Code.MIX, Code.RECUR, Code.PICK}
OF_DECODER = {
    *(Code.ATTEND_PAST, Code.ATTEND_SOURCE, Code.RECALL, Code.GRU, Code.LSTM, Code.ADDITIVE),
}


def verify(program: Program, weights: Sequence[Packed]) -> None:
    """Refuse a program that would read or write outside its memory.

    Args:
        program: the program; its ``matrices`` are ignored.
        weights: the matrices, laid out.

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
        self.written: list[np.ndarray] = []  # for each register, which columns were written
        self.heads: dict[int, int] = {}  # number of heads by register of transposed keys
        self.caches: Counter[int] = Counter()
        self.decoding = False

    def run(self) -> None:
        """Check encoder, decoder, output layers and symbols."""
        self._check_numbers()
        program = self.program
        for self.decoding, operations in ((False, program.encoder), (True, program.decoder)):
            side = "decoder" if self.decoding else "encoder"
            for place, operation in enumerate(operations):
                try:
                    self._check(operation)
                except ConfigError as error:
                    raise ConfigError(
                        f"operation {place} of the {side} ({Code(operation.code).name}): {error}"
                    ) from None
            for operation in operations:
                if operation.code is Code.RECALL:  # its input may be written after it
                    self.read(operation.inputs[0], Phase.HYPOTHESES)
        vocabulary = self._vocabulary()
        for layer in program.outputs:
            self.read(layer.result, Phase.HYPOTHESES)
            self.product(layer.weight, layer.result.width, vocabulary)
            self.vector(layer.bias, vocabulary, optional=True)
        _require(
            all(0 <= symbol < vocabulary for symbol in program.symbols), "a symbol is no token"
        )
        caches = sorted(self.caches.elements())
        counted = len(caches) == program.caches and caches == list(range(len(caches)))
        _require(counted, "its caches are not one for each operation")
        embeds = any(operation.code is Code.EMBED for operation in program.encoder)
        _require(embeds, "its encoder reads no tokens")

    def _vocabulary(self) -> int:
        layers = self.program.outputs
        has_layer = layers and 0 <= layers[0].weight < len(self.weights)
        _require(has_layer, "it has no output layer")
        return self.weights[layers[0].weight].outputs

    def _check_numbers(self) -> None:
        """Check limits of lengths and registers that concern no single operation."""
        program = self.program
        for name in ("longest_source", "longest_target"):
            _require(1 <= getattr(program, name) < 1 << 31, f"its `{name}` is out of range")
        widest = sum(weight.outputs + weight.inputs for weight in self.weights)
        for width, phase, rows in program.shapes:
            _require(1 <= width <= widest, "a register is too wide")
            _require(phase in iter(Phase), "a register has an unknown phase")
            _require(rows == 0 or phase == Phase.SLOTS, "a register has a number of rows")
            _require(0 <= rows <= MOST, "a register has too many rows")
            _require(rows or phase != Phase.SLOTS, "a register has no rows")
        models = max(1, len(program.outputs))  # in an ensemble
        for operations in (program.encoder, program.decoder):
            _require(len(operations) <= MOST_OPERATIONS * models, "its operations are too many")
        columns = sum(shape.width for shape in program.shapes)
        bound = min(MOST_COLUMNS * widest, MOST_NUMBERS * models)
        _require(columns <= bound, "its registers are too many")
        slots = sum(shape.width * shape.rows for shape in program.shapes)
        _require(slots <= MOST_SLOTS * models, "its slots are too many")
        self.written = [np.zeros(shape.width, bool) for shape in program.shapes]

    def _check(self, op: Operation) -> None:
        _require(op.code in OPERANDS, "it is unknown")
        counts = tuple(map(len, (op.inputs, op.weights, op.ints, op.reals)))
        _require(counts == OPERANDS[op.code], "it has other operands")
        _require(op.code not in (OF_ENCODER if self.decoding else OF_DECODER), "not here")
        _require(all(-1 <= number <= MOST for number in op.ints), "a number is out of range")
        with np.errstate(over="ignore"):
            _require(np.isfinite(np.float32(op.reals)).all(), "a factor is not finite")
        out = self.within(op.out)
        _require((out.phase == Phase.HYPOTHESES) == self.decoding, "it writes into the other part")
        _require(op.out.register not in self.heads, "it writes into transposed keys")
        RULES[op.code](self, op)
        self.written[op.out.register][op.out.offset :][: op.out.width] = True

    # ---- operands --------------------------------------------------------------------------------

    def within(self, place: Columns) -> Shape:
        """Check that an operand lies in its register; return the register's shape."""
        _require(0 <= place.register < len(self.program.shapes), "a register is missing")
        shape = self.program.shapes[place.register]
        inside = place.offset >= 0 and 1 <= place.width <= shape.width - place.offset
        _require(inside, "columns are outside of their register")
        return shape

    def read(self, place: Columns, *phases: Phase, width: int | None = None) -> Shape:
        """Check an input register: in bounds, already written, in an allowed phase."""
        shape = self.within(place)
        held = self.written[place.register][place.offset :][: place.width]
        _require(held.all() and place.register not in self.heads, "it reads what is not written")
        _require(shape.phase in phases, "its rows are of other things")
        _require(width is None or place.width == width, "an operand has another width")
        return shape

    def beside(self, place: Columns, out: Columns, width: int | None = None) -> None:
        """Check an input that has a row for each row of the output."""
        shape, rows = self.read(place, *Phase, width=width), self.within(out)
        _require(shape[1:] == rows[1:], "its rows are of other things")

    def weight(self, number: int) -> Packed:
        """Check that a weight exists, and return it."""
        _require(0 <= number < len(self.weights), "a weight is missing")
        return self.weights[number]

    def product(self, number: int, inputs: int, outputs: int) -> None:
        """Check the weight of a product, in panels."""
        weight = self.weight(number)
        fits = weight.kind != PLAIN and (weight.inputs, weight.outputs) == (inputs, outputs)
        _require(fits, "its weight has another size or kind")

    def plain(self, number: int, rows: int, columns: int = 1) -> np.ndarray:
        """Check a table in fp32, ``[at least rows, columns]``, and return it."""
        weight = self.weight(number)
        fits = weight.kind == PLAIN and weight.inputs == columns and weight.outputs >= rows
        _require(fits, "its vector or table has another size or kind")
        return weight.values.reshape(-1, columns)

    def vector(self, number: int, size: int, *, optional: bool = False) -> None:
        """Check a gain or a bias."""
        if number != -1 or not optional:
            self.plain(number, size)

    def activation(self, number: int) -> None:
        """Check the number of an activation function."""
        _require(number in ACTIVATIONS.values(), "its activation is unknown")

    def cache(self, number: int) -> None:
        """Check the number of a memory of past steps, and count it."""
        if self.decoding:
            self.caches[number] += 1

    def divides(self, parts: int, *widths: int) -> None:
        """Check that widths can be cut into ``parts`` heads or groups."""
        equal = parts >= 1 and not any(width % parts for width in widths)
        _require(equal, "a width cannot be cut into equal parts")

    def memory(self, op: Operation) -> None:
        """Check query, transposed keys and values of an attention over a sentence."""
        (query, keys, values), heads = op.inputs, op.ints[0]
        self.beside(query, op.out, width=keys.width)
        shape = self.within(keys)
        _require(self.heads.get(keys.register) == heads, "its keys are not transposed for it")
        _require((keys.offset, keys.width) == (0, shape.width), "it does not read whole keys")
        value_shape = self.read(values, Phase.TOKENS, Phase.SLOTS, width=op.out.width)
        _require(value_shape[1:] == shape[1:], "its keys and values are of other things")
        self.divides(heads, query.width, values.width)
        self.binary(op.ints[2])

    def binary(self, how: int) -> None:
        """Check the number that says how an attention's weights are binarized."""
        _require(how in WEIGHTS.values(), "its sum is of an unknown kind")


# ---- operations; machine.h says what each computes -----------------------------------------------


def _embed(check: _Verifier, op: Operation) -> None:
    (table, positions), (first,) = op.weights, op.ints
    tokens = Phase.HYPOTHESES if check.decoding else Phase.TOKENS
    _require(check.within(op.out).phase == tokens, "its rows are no tokens")
    fewest = check._vocabulary() if check.decoding else 1
    embedding = check.weight(table)
    fits = embedding.inputs == op.out.width and embedding.outputs >= fewest
    _require(fits and embedding.kind in EMBEDDINGS, "its table has another size or kind")
    _require(first >= 0, "its first position is negative")
    if positions != -1:
        program = check.program
        longest = program.longest_target if check.decoding else program.longest_source
        check.plain(positions, longest + first, op.out.width)


def _linear(check: _Verifier, op: Operation) -> None:
    (x, added), (weight, bias), (activation,) = op.inputs, op.weights, op.ints
    check.beside(x, op.out)
    check.product(weight, x.width, op.out.width)
    check.vector(bias, op.out.width, optional=True)
    check.activation(activation)
    if added != NOTHING:
        check.beside(added, op.out, op.out.width)
        simple = activation in (ACTIVATIONS["linear"], ACTIVATIONS["relu"])
        _require(simple, "something is added to its activation")


def _norm(check: _Verifier, op: Operation) -> None:
    (groups,), (eps,) = op.ints, op.reals
    check.beside(op.inputs[0], op.out, op.out.width)
    check.divides(groups, op.out.width)
    for number in op.weights:
        check.vector(number, op.out.width // groups)
    _require(eps >= 0, "its epsilon is negative")


def _binarize(check: _Verifier, op: Operation) -> None:
    check.beside(op.inputs[0], op.out, op.out.width)
    check.divides(op.ints[0], op.out.width)


def _add(check: _Verifier, op: Operation) -> None:
    for x in op.inputs:
        check.beside(x, op.out, op.out.width)


def _activate(check: _Verifier, op: Operation) -> None:
    check.beside(op.inputs[0], op.out, op.out.width)
    check.activation(op.ints[0])


def _transpose(check: _Verifier, op: Operation) -> None:
    (keys,), (heads,) = op.inputs, op.ints
    check.read(keys, Phase.TOKENS, Phase.SLOTS)
    check.beside(keys, op.out, op.out.width)
    check.divides(heads, keys.width)
    fills_register = (op.out.offset, op.out.width) == (0, check.within(op.out).width)
    _require(
        fills_register and not check.written[op.out.register].any(),
        "it needs a register of its own",
    )
    check.heads[op.out.register] = heads


def _attend(check: _Verifier, op: Operation) -> None:
    check.memory(op)
    _require(check.within(op.out).phase == Phase.TOKENS, "its rows are no tokens")


def _attend_past(check: _Verifier, op: Operation) -> None:
    heads, cache, how = op.ints
    check.binary(how)
    for x in op.inputs:
        check.beside(x, op.out, op.out.width)
    check.divides(heads, op.out.width)
    check.cache(cache)


def _attend_source(check: _Verifier, op: Operation) -> None:
    check.memory(op)
    shown = op.ints[1] != 0  # shown weights have room for one per token
    tokens = check.within(op.inputs[2]).phase == Phase.TOKENS
    _require(tokens or not shown, "its alignment is not with tokens")


def _mix(check: _Verifier, op: Operation) -> None:
    check.read(op.inputs[0], Phase.TOKENS, width=op.out.width)
    out, matrix = check.within(op.out), check.weight(op.weights[0])
    fits = matrix.kind == PLAIN and matrix.outputs == out.rows
    _require(fits and out.phase == Phase.SLOTS, "its matrix has another size or kind")
    _require(matrix.inputs >= check.program.longest_source, "its matrix is too short for sentences")


def _convolve(check: _Verifier, op: Operation) -> None:
    (logits, values), (heads, cache) = op.inputs, op.ints
    check.beside(logits, op.out)
    check.beside(values, op.out, op.out.width)
    check.divides(heads, op.out.width)
    sizes = check.plain(op.weights[0], 1, 2)[:, 0]
    within = (sizes >= 1) & (sizes <= logits.width) & (sizes == np.floor(sizes))
    _require(within.all(), "a kernel has no such size")
    taps = int(sizes.astype(np.int64).sum())  # float32 is inexact above 2^24
    _require(logits.width == heads * taps, "its logits are not one for each tap")
    _window(check, op, cache)


def _taps(check: _Verifier, op: Operation) -> None:
    (x,), (_, cache, count) = op.inputs, op.ints
    check.beside(x, op.out)
    _require(count >= 1 and op.out.width == count * x.width, "its width is not one for each tap")
    _window(check, op, cache)


def _filter(check: _Verifier, op: Operation) -> None:
    (x,), (heads, cache, count) = op.inputs, op.ints
    check.beside(x, op.out, op.out.width)
    check.divides(heads, op.out.width)
    _require(count >= 1, "its kernels have no taps")
    check.vector(op.weights[0], heads * count)
    _window(check, op, cache)


def _window(check: _Verifier, op: Operation, cache: int) -> None:
    tokens = (Phase.HYPOTHESES, Phase.TOKENS)
    _require(check.within(op.out).phase in tokens, "its rows are no tokens")
    check.cache(cache)


def _recur(check: _Verifier, op: Operation) -> None:
    (how,) = op.ints
    _require(0 <= how <= BACKWARDS | CELLS, "its kind is unknown")
    parts, gates = (2, 4) if how & CELLS else (1, 3)
    width = op.out.width // parts
    _require(width * parts == op.out.width, "its rows are not of states and cells")
    check.read(op.inputs[0], Phase.TOKENS, width=gates * width)
    check.beside(op.inputs[0], op.out)
    check.product(op.weights[0], width, gates * width)
    check.vector(op.weights[1], gates * width, optional=True)


def _pick(check: _Verifier, op: Operation) -> None:
    check.read(op.inputs[0], Phase.TOKENS, width=op.out.width)
    _require(check.within(op.out).phase == Phase.SENTENCES, "its rows are no sentences")


def _recall(check: _Verifier, op: Operation) -> None:
    state, initial = op.inputs
    fits = check.within(state).phase == Phase.HYPOTHESES and state.width == op.out.width
    unwritten = state.register != op.out.register and not check.written[state.register].any()
    _require(fits and unwritten, "it cannot recall what this step has written")
    if initial != NOTHING:
        check.read(initial, Phase.SENTENCES, width=op.out.width)


def _gru(check: _Verifier, op: Operation) -> None:
    width = op.out.width
    for x, input_width in zip(op.inputs, (3 * width, 3 * width, width), strict=True):
        check.beside(x, op.out, input_width)


def _lstm(check: _Verifier, op: Operation) -> None:
    width = op.inputs[2].width
    _require(op.out.width == 2 * width, "its rows are not of states and cells")
    for x, input_width in zip(op.inputs, (4 * width, 4 * width, width), strict=True):
        check.beside(x, op.out, input_width)


def _additive(check: _Verifier, op: Operation) -> None:
    query, keys, values = op.inputs
    check.beside(query, op.out)
    check.read(keys, Phase.TOKENS, width=query.width)
    check.read(values, Phase.TOKENS, width=op.out.width)
    check.vector(op.weights[0], query.width)


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
    Code.GATE: _add,
    Code.FILTER: _filter,
    Code.LSTM: _lstm,
}
