"""Check that the C code can run a program with its weights safely (numpy only).

``native/machine.c`` reads and writes memory as the program says, and checks nothing. So this module
first checks everything on which it relies:

- operands lie within registers that earlier operations have written;
- the operands of an operation have rows that fit the operation;
- each weight has the size and the kind that its operation needs.

The arrays of a weight always fit its size and kind, because :func:`fairseq_ext.engine.weights.pack`
makes them.
"""

from collections.abc import Sequence

import numpy as np

from fairseq_ext.engine import NUMBERS
from fairseq_ext.engine import program as programs
from fairseq_ext.engine.program import Code, Columns, Operation, Phase, Program, Shape
from fairseq_ext.engine.weights import PLAIN, Packed
from fairseq_ext.utils.errors import ConfigError

EMBEDDINGS = {PLAIN, *range(len(NUMBERS))}  # kinds from which a single row can be read

LARGEST_FLOAT = float(np.finfo(np.float32).max)
LONGEST_SUM = 1 << 16  # most products of two bytes whose sum fits into int32
MOST = 1 << 24  # limit of rows, of columns and of integers in operations; models are far below
MOST_COLUMNS = 16  # register columns for each row and column of a weight; models have about 8
MOST_NUMBERS = 1 << 22  # register columns in all; 48 layers with inner width 8,192 have a fifth
MOST_SLOTS = 1 << 25  # numbers in the slots of a sentence (128 MiB)
MOST_OPERATIONS = 1 << 13  # operations of the encoder or the decoder; 48 layers have some 500

# The widths of inputs with a row for each output row, as multiples of the output's width; None for
# any width.
BESIDE_OUT: dict[Code, tuple[float | None, ...]] = {
    **{Code.ADD: (1, 1), Code.GATE: (1, 1), Code.ACTIVATE: (1,), Code.BINARIZE: (1,)},
    **{Code.NORM: (1,), Code.ATTEND_PAST: (1, 1, 1), Code.FILTER: (1,), Code.CONVOLVE: (None, 1)},
    **{Code.GRU: (3, 3, 1), Code.LSTM: (2, 2, 0.5), Code.RECUR: (None,), Code.TRANSPOSE: (1,)},
    **{Code.LINEAR: (None,), Code.TAPS: (None,), Code.ADDITIVE: (None,)},
}
IN_PARTS = {Code.NORM, Code.BINARIZE, Code.ATTEND_PAST, Code.CONVOLVE, Code.FILTER}
"""Operations that cut the output's width into ``ints[0]`` equal heads or groups."""
SIMPLE = {Code.ADD, Code.GATE, Code.GRU, Code.LSTM, Code.BINARIZE}
"""Operations that need no checks beyond the tables above."""
OF_ENCODER = {Code.TRANSPOSE, Code.ATTEND, Code.MIX, Code.RECUR, Code.PICK}
OF_DECODER = {
    *(Code.ATTEND_PAST, Code.ATTEND_SOURCE, Code.RECALL, Code.GRU, Code.LSTM, Code.ADDITIVE),
}


def verify(program: Program, weights: Sequence[Packed]) -> None:
    """Raise ConfigError if a program with these weights could read or write outside its memory."""
    for number, weight in enumerate(weights):
        sizes = 0 < weight.outputs < MOST and 0 < weight.inputs < MOST
        sizes = sizes and (weight.sums is None or weight.inputs <= LONGEST_SUM)
        _require(sizes, f"weight {number} is empty or too large")
        method, *levels = weight.reading
        fits = method in programs.READINGS and _are_finite(levels)
        _require(fits, f"the inputs of weight {number} are binarized in an unknown way")
    _Verifier(program, weights).run()


def _are_finite(numbers: Sequence[float]) -> bool:
    return all(abs(number) <= LARGEST_FLOAT for number in numbers)


def _require(condition: object, fault: str) -> None:
    if not condition:
        raise ConfigError(f"{fault}.")


class _Verifier:
    """A checker of a program's operations, in order; its methods raise ConfigError."""

    def __init__(self, program: Program, weights: Sequence[Packed]) -> None:
        self.program, self.weights = program, weights
        self.written: list[np.ndarray] = []  # for each register, which columns were written
        self.heads: dict[int, int] = {}  # for each register of transposed keys, number of heads
        self.caches: list[int] = []  # the cache of each operation that has one
        self.decoding = False

    def run(self) -> None:
        self._check_sizes()
        program = self.program
        for self.decoding, operations in ((False, program.encoder), (True, program.decoder)):
            side = "decoder" if self.decoding else "encoder"
            for place, operation in enumerate(operations):
                try:
                    self._check(operation)
                except ConfigError as error:
                    raise ConfigError(
                        f"operation {place} of the {side} ({operation.code.name}): {error}"
                    ) from None
            for operation in operations:
                if operation.code is Code.RECALL:  # a later operation may write its input
                    self.read(operation.inputs[0], Phase.HYPOTHESES)
        vocabulary = self._vocabulary()
        for layer in program.outputs:
            self.read(layer.result, Phase.HYPOTHESES)
            self.product(layer.weight, layer.result.width, vocabulary)
            self.bias(layer.bias, vocabulary)
        are_tokens = all(0 <= symbol < vocabulary for symbol in program.symbols)
        _require(are_tokens, "a special symbol is outside of the target vocabulary")
        counted = sorted(self.caches) == list(range(len(self.caches)))
        counted = counted and len(self.caches) == program.caches
        _require(counted, "it does not have one cache for each operation that needs one")
        _require(program.source_tables, "its encoder reads no tokens")

    def _vocabulary(self) -> int:
        layers = self.program.outputs
        has_layer = layers and 0 <= layers[0].weight < len(self.weights)
        _require(has_layer, "it has no output layer")
        return self.weights[layers[0].weight].outputs

    def _check_sizes(self) -> None:
        program = self.program
        for name in ("longest_source", "longest_target"):
            _require(1 <= getattr(program, name) < 1 << 31, f"its `{name}` is out of range")
        widest = sum(weight.outputs + weight.inputs for weight in self.weights)
        for width, phase, rows in program.shapes:
            _require(1 <= width <= widest, "a register is too wide")
            _require(phase in iter(Phase), "a register has an unknown phase")
            fits = 1 <= rows <= MOST if phase == Phase.SLOTS else rows == 0
            _require(fits, "a register has a number of rows that its phase does not allow")
        models = max(1, len(program.outputs))  # in an ensemble
        for operations in (program.encoder, program.decoder):
            _require(len(operations) <= MOST_OPERATIONS * models, "it has too many operations")
        columns = sum(shape.width for shape in program.shapes)
        bound = min(MOST_COLUMNS * widest, MOST_NUMBERS * models)
        _require(columns <= bound, "its registers have too many columns")
        slots = sum(shape.width * shape.rows for shape in program.shapes)
        _require(slots <= MOST_SLOTS * models, "its slots hold too many numbers")
        self.written = [np.zeros(shape.width, bool) for shape in program.shapes]

    def _check(self, op: Operation) -> None:
        _require(op.code in iter(Code), "the operation is unknown")
        counts = tuple(map(len, (op.inputs, op.weights, op.ints, op.reals)))
        _require(counts == op.code.operands, "it has the wrong number of operands")
        elsewhere, others = ("encoder", OF_ENCODER) if self.decoding else ("decoder", OF_DECODER)
        _require(op.code not in others, f"it belongs in the {elsewhere}")
        _require(all(-1 <= number <= MOST for number in op.ints), "a number is out of range")
        _require(_are_finite(op.reals), "a factor is not finite")
        out = self.within(op.out)
        fits = (out.phase == Phase.HYPOTHESES) == self.decoding
        _require(fits, f"it writes a register of the {elsewhere}")
        _require(op.out.register not in self.heads, "it writes into transposed keys")
        for x, multiple in zip(op.inputs, BESIDE_OUT.get(op.code, ()), strict=False):
            self.beside(x, op.out, None if multiple is None else multiple * op.out.width)
        if op.code in IN_PARTS:
            self.divides(op.ints[0], op.out.width)
        if op.code in programs.CACHED:
            are_tokens = out.phase in (Phase.TOKENS, Phase.HYPOTHESES)
            _require(are_tokens, "its rows are neither tokens nor hypotheses")
            if self.decoding:
                self.caches.append(op.ints[1])
        if op.code not in SIMPLE:
            getattr(self, f"check_{op.code.name.lower()}")(op)
        self.written[op.out.register][op.out.offset :][: op.out.width] = True

    # ---- operands --------------------------------------------------------------------------------

    def within(self, place: Columns) -> Shape:
        """Check that columns lie in an existing register; return the shape of the register."""
        _require(0 <= place.register < len(self.program.shapes), "a register is missing")
        shape = self.program.shapes[place.register]
        inside = place.offset >= 0 and 1 <= place.width <= shape.width - place.offset
        _require(inside, "columns are outside of their register")
        return shape

    def read(self, place: Columns, *phases: Phase, width: float | None = None) -> Shape:
        """Check the columns that an operation reads; return the shape of their register.

        Earlier operations must have written the columns. The phase of the register must be one of
        ``phases``. There must be ``width`` columns (None: any number).
        """
        shape = self.within(place)
        held = self.written[place.register][place.offset :][: place.width]
        _require(held.all() and place.register not in self.heads, "it reads unwritten columns")
        _require(shape.phase in phases, "the rows of an operand have the wrong phase")
        _require(width is None or place.width == width, "an operand has the wrong width")
        return shape

    def beside(self, place: Columns, out: Columns, width: float | None = None) -> None:
        """Check that an input has rows like those of ``out``, and ``width`` columns (None: any)."""
        shape, rows = self.read(place, *Phase, width=width), self.within(out)
        _require(shape[1:] == rows[1:], "an operand does not have the rows of the result")

    def weight(self, number: int) -> Packed:
        """Return the weight with the index ``number``; raise ConfigError if there is none."""
        _require(0 <= number < len(self.weights), "a weight is missing")
        return self.weights[number]

    def product(self, number: int, inputs: int, outputs: int) -> None:
        """Check that weight ``number`` is a matrix ``[outputs, inputs]``, and is not plain."""
        weight = self.weight(number)
        fits = weight.kind != PLAIN and (weight.inputs, weight.outputs) == (inputs, outputs)
        _require(fits, "its weight has the wrong size or kind")

    def plain(self, number: int, rows: int, columns: int = 1) -> np.ndarray:
        """Return the array of weight ``number``; check that it is plain and large enough.

        The array must have exactly ``columns`` columns, and at least ``rows`` rows.
        """
        weight = self.weight(number)
        fits = weight.kind == PLAIN and weight.inputs == columns and weight.outputs >= rows
        _require(fits, "its vector or table has the wrong size or kind")
        return weight.values.reshape(-1, columns)

    def bias(self, number: int, size: int) -> None:
        """Check that weight ``number`` is a bias of at least ``size`` numbers; -1 is no bias."""
        if number != -1:
            self.plain(number, size)

    def divides(self, parts: int, *widths: int) -> None:
        """Check that each of ``widths`` can be cut into ``parts`` equal heads or groups."""
        equal = parts >= 1 and not any(width % parts for width in widths)
        _require(equal, "a width cannot be cut into equal parts")

    def attention_operands(self, op: Operation) -> None:
        """Check the queries, keys and values of attention.

        The keys must be the result of an operation TRANSPOSE with as many heads.
        """
        (query, keys, values), heads = op.inputs, op.ints[0]
        self.beside(query, op.out, width=keys.width)
        shape = self.within(keys)
        transposed = self.heads.get(keys.register) == heads
        _require(transposed, "its keys are not transposed for its heads")
        _require((keys.offset, keys.width) == (0, shape.width), "it reads only a part of its keys")
        value_shape = self.read(values, Phase.TOKENS, Phase.SLOTS, width=op.out.width)
        _require(value_shape[1:] == shape[1:], "its keys and values have different rows")
        self.divides(heads, query.width, values.width)
        _require(op.ints[2] in programs.WEIGHTS.values(), "it binarizes in an unknown way")

    # ---- operations; machine.h says what each computes ----

    def check_embed(self, op: Operation) -> None:
        (table, positions), (first,) = op.weights, op.ints
        tokens = Phase.HYPOTHESES if self.decoding else Phase.TOKENS
        _require(self.within(op.out).phase == tokens, f"its rows are not {tokens.name.lower()}")
        fewest = self._vocabulary() if self.decoding else 1
        embedding = self.weight(table)
        fits = embedding.inputs == op.out.width and embedding.outputs >= fewest
        _require(fits and embedding.kind in EMBEDDINGS, "its table has the wrong size or kind")
        _require(first >= 0, "its first position is negative")
        if positions != -1:
            program = self.program
            longest = program.longest_target if self.decoding else program.longest_source
            self.plain(positions, longest + first, op.out.width)

    def check_linear(self, op: Operation) -> None:
        (x, added), (weight, bias), (activation,) = op.inputs, op.weights, op.ints
        self.product(weight, x.width, op.out.width)
        self.bias(bias, op.out.width)
        _require(activation in programs.ACTIVATIONS.values(), "its activation is unknown")
        if added != programs.NOTHING:
            self.beside(added, op.out, op.out.width)
            simple = activation in (programs.ACTIVATIONS["linear"], programs.ACTIVATIONS["relu"])
            _require(simple, "it adds a term after an activation other than relu")

    def check_norm(self, op: Operation) -> None:
        for number in op.weights:
            self.plain(number, op.out.width // op.ints[0])
        _require(op.reals[0] >= 0, "its epsilon is negative")

    def check_activate(self, op: Operation) -> None:
        _require(op.ints[0] in programs.ACTIVATIONS.values(), "its activation is unknown")

    def check_transpose(self, op: Operation) -> None:
        (keys,), (heads,) = op.inputs, op.ints
        self.read(keys, Phase.TOKENS, Phase.SLOTS)
        self.divides(heads, keys.width)
        fills_register = (op.out.offset, op.out.width) == (0, self.within(op.out).width)
        is_new = not self.written[op.out.register].any()
        _require(fills_register and is_new, "it needs a register of its own")
        self.heads[op.out.register] = heads

    def check_attend(self, op: Operation) -> None:
        self.attention_operands(op)
        _require(self.within(op.out).phase == Phase.TOKENS, "its rows are not tokens")

    def check_attend_past(self, op: Operation) -> None:
        _require(op.ints[2] in programs.WEIGHTS.values(), "it binarizes in an unknown way")

    def check_attend_source(self, op: Operation) -> None:
        self.attention_operands(op)
        alignment = op.ints[1] != 0  # the alignment has room for one weight per source token
        tokens = self.within(op.inputs[2]).phase == Phase.TOKENS
        _require(tokens or not alignment, "its alignment is not to source tokens")

    def check_mix(self, op: Operation) -> None:
        self.read(op.inputs[0], Phase.TOKENS, width=op.out.width)
        out, matrix = self.within(op.out), self.weight(op.weights[0])
        fits = matrix.kind == PLAIN and matrix.outputs == out.rows
        _require(fits and out.phase == Phase.SLOTS, "its matrix has the wrong size or kind")
        fits = matrix.inputs >= self.program.longest_source
        _require(fits, "its matrix has too few columns for the longest source")

    def check_convolve(self, op: Operation) -> None:
        logits = op.inputs[0]
        sizes = self.plain(op.weights[0], 1, 2)[:, 0]
        within = (sizes >= 1) & (sizes <= logits.width) & (sizes == np.floor(sizes))
        _require(within.all(), "a kernel has an impossible size")
        taps = int(sizes.astype(np.int64).sum())  # float32 is inexact above 2^24
        _require(logits.width == op.ints[0] * taps, "it does not have one logit for each tap")

    def check_taps(self, op: Operation) -> None:
        (x,), count = op.inputs, op.ints[2]
        fits = count >= 1 and op.out.width == count * x.width
        _require(fits, "it is not as wide as all its taps together")

    def check_filter(self, op: Operation) -> None:
        heads, _, count = op.ints
        _require(count >= 1, "its kernels have no taps")
        self.plain(op.weights[0], heads * count)

    def check_recur(self, op: Operation) -> None:
        (flags,) = op.ints
        _require(0 <= flags <= programs.BACKWARDS | programs.CELLS, "its flags are unknown")
        parts, gates = (2, 4) if flags & programs.CELLS else (1, 3)
        width = op.out.width // parts
        _require(width * parts == op.out.width, "its rows are not states with cells")
        self.read(op.inputs[0], Phase.TOKENS, width=gates * width)
        self.product(op.weights[0], width, gates * width)
        self.bias(op.weights[1], gates * width)

    def check_pick(self, op: Operation) -> None:
        self.read(op.inputs[0], Phase.TOKENS, width=op.out.width)
        _require(self.within(op.out).phase == Phase.SENTENCES, "its rows are not sentences")

    def check_recall(self, op: Operation) -> None:
        state, initial = op.inputs
        fits = self.within(state).phase == Phase.HYPOTHESES and state.width == op.out.width
        unwritten = state.register != op.out.register and not self.written[state.register].any()
        _require(fits and unwritten, "it cannot recall what this step has written")
        if initial != programs.NOTHING:
            self.read(initial, Phase.SENTENCES, width=op.out.width)

    def check_additive(self, op: Operation) -> None:
        query, keys, values = op.inputs
        self.read(keys, Phase.TOKENS, width=query.width)
        self.read(values, Phase.TOKENS, width=op.out.width)
        self.plain(op.weights[0], query.width)
