"""Build programs for the engine, with one method for each operation.

A method adds its operation to the decoder if the result has a row for each hypothesis, otherwise to
the encoder. The operation writes its result to the columns ``out``, or to a new register if ``out``
is None. The method returns the columns of the result.
"""

from collections.abc import Mapping
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor, nn

from fairseq_ext.engine import program as programs
from fairseq_ext.engine.program import Code, Columns, Matrix, Operation, Phase, Program, Signs
from fairseq_ext.engine.recipes import OPERATIONS, Recipe
from fairseq_ext.utils.errors import ConfigError


class Writer(Program):
    """A program under construction; ``state`` is the state dict of the model to compile."""

    def __init__(self, *arguments: Any, state: Mapping[str, Tensor] | None = None) -> None:
        super().__init__(*arguments)
        self._names: dict[tuple[int, torch.Size], str] = {}
        for name, tensor in (state or {}).items():
            self._names.setdefault((tensor.data_ptr(), tensor.shape), name)
        self._arrays: dict[int, tuple[Tensor, np.ndarray]] = {}
        self._derived: dict[tuple[Any, ...], np.ndarray] = {}
        self._recipes: dict[int, tuple[np.ndarray, Recipe | np.ndarray]] = {}

    def name(self, parameter: Tensor) -> str | None:
        """Return a parameter's (first) name in the state dict; None if it has none."""
        return self._names.get((parameter.data_ptr(), parameter.shape))

    @overload
    def array(self, parameter: Tensor) -> np.ndarray: ...

    @overload
    def array(self, parameter: Tensor | None) -> np.ndarray | None: ...

    def array(self, parameter: Tensor | None) -> np.ndarray | None:
        """Return a parameter as an fp32 array; None for None.

        All calls for a parameter return the same array object.
        """
        if parameter is None:
            return None
        key = parameter.data_ptr()
        if key not in self._arrays:  # keep the tensor, so that no other gets its address
            array = parameter.detach().float().cpu().numpy()
            self._arrays[key] = parameter, array
            name = self.name(parameter)
            if name is not None:
                self._recipes[id(array)] = array, name
        return self._arrays[key][1]

    def parameters(self, layer: nn.Module, ending: str = "") -> tuple[Any, Any]:
        """Return a layer's weight and bias as arrays; None for a parameter that it lacks.

        ``ending`` ends the names of both arrays: ``_ih`` gives ``weight_ih`` and ``bias_ih``.
        """
        weight, bias = (getattr(layer, kind + ending, None) for kind in ("weight", "bias"))
        return self.array(weight), self.array(bias)

    def derive(self, operation: str, *operands: np.ndarray | int) -> np.ndarray:
        """Return the result of an operation of ``recipes.py``, and remember the result's recipe."""
        key = (operation, *(x if isinstance(x, int) else id(x) for x in operands))
        if key not in self._derived:
            array = OPERATIONS[operation](*operands)
            recipe = [x if isinstance(x, int) else self.recipe(x) for x in operands]
            self._derived[key], self._recipes[id(array)] = array, (array, [operation, *recipe])
        return self._derived[key]

    def recipe(self, array: np.ndarray) -> Recipe | np.ndarray:
        """Return the recipe of an array made from weights; for any other array, the array itself.

        The array is kept alive, because its recipe is looked up by its ``id``.
        """
        return self._recipes.setdefault(id(array), (array, array))[1]

    def matrix(self, values: np.ndarray | None, plain: bool = False) -> int:
        """Return the index of an array in the program, adding it if needed; return -1 for None.

        ``plain`` is False for weights of matrix products and for embeddings, else True.
        """
        if values is None:
            return -1
        for number, matrix in enumerate(self.matrices):
            if matrix.plain == plain and matrix.values is values:
                return number
        self.matrices.append(Matrix(values, plain, self.recipe(values)))
        return len(self.matrices) - 1

    def register(self, width: int, phase: Phase, rows: int = 0) -> Columns:
        """Add a register and return its columns.

        ``rows`` is the number of slots of each sentence if ``phase`` is SLOTS, else 0.
        """
        self.shapes.append(programs.Shape(width, phase, rows))
        return Columns(len(self.shapes) - 1, 0, width)

    def phase(self, place: Columns) -> Phase:
        """Return what each row of ``place`` stands for, such as a source token."""
        return self.shapes[place.register].phase

    def write(self, operation: Operation) -> Columns:
        """Add an operation to the encoder or the decoder; return the columns that it writes."""
        in_decoder = self.phase(operation.out) is Phase.HYPOTHESES
        operations = self.decoder if in_decoder else self.encoder
        operations.append(operation)
        return operation.out

    def like(self, place: Columns, width: int | None = None) -> Columns:
        """Add a register like ``place``, but with ``width`` columns (None: equally many)."""
        shape = self.shapes[place.register]
        return self.register(place.width if width is None else width, shape.phase, shape.rows)

    def embed(
        self,
        phase: Phase,
        table: np.ndarray,
        scale: float,
        positions: np.ndarray | None = None,
        first_position: int = 0,
        out: Columns | None = None,
    ) -> Columns:
        """Compute embeddings of tokens, ``scale · W[token] + P[position + first_position]``.

        W is ``table``, P is ``positions`` (None for 0). If ``phase`` is TOKENS, embed the tokens of
        the source. If it is HYPOTHESES, embed the newest token of each hypothesis.
        """
        weights = (self.matrix(table), self.matrix(positions, plain=True))
        out = self.register(table.shape[1], phase) if out is None else out
        return self.write(Operation(Code.EMBED, out, (), weights, (first_position,), (scale,)))

    def linear(
        self,
        x: Columns,
        weight: np.ndarray | Signs,
        bias: np.ndarray | None = None,
        activation: str = "linear",
        added: Columns = programs.NOTHING,
        out: Columns | None = None,
    ) -> Columns:
        """Compute ``f(x W^T + b) + added``, where f is the function called ``activation``.

        If ``added`` is not NOTHING, the activation must be ``linear`` or ``relu``.
        """
        if isinstance(weight, Signs):
            outputs, number = len(weight.values), len(self.matrices)
            self.matrices.append(weight)
        else:
            outputs, number = len(weight), self.matrix(weight)
        out = self.like(x, outputs) if out is None else out
        weights, ints = (number, self.matrix(bias, plain=True)), (self.activation(activation),)
        return self.write(Operation(Code.LINEAR, out, (x, added), weights, ints))

    def norm(
        self, x: Columns, gain: np.ndarray, shift: np.ndarray | None, eps: float, groups: int = 1
    ) -> Columns:
        """Apply a layer norm to each of ``groups`` equal parts of a row, all with the same gain."""
        weights = (self.matrix(gain, plain=True), self.matrix(shift, plain=True))
        return self.write(Operation(Code.NORM, self.like(x), (x,), weights, (groups,), (eps,)))

    def binarize(self, x: Columns, groups: int) -> Columns:
        """Cut a row into ``groups`` equal parts; binarize each part p to ``sign(p) max|p| / 2``."""
        return self.write(Operation(Code.BINARIZE, self.like(x), (x,), ints=(groups,)))

    def add(self, x: Columns, z: Columns, a: float = 1.0, b: float = 1.0) -> Columns:
        """Add the operation ``a x + b z``; return the columns of its result."""
        return self.write(Operation(Code.ADD, self.like(x), (x, z), reals=(a, b)))

    def activate(self, x: Columns, activation: str, out: Columns) -> Columns:
        """Add ``f(x)``, where f is the function called ``activation``; return ``out``."""
        ints = (self.activation(activation),)
        return self.write(Operation(Code.ACTIVATE, out, (x,), ints=ints))

    @staticmethod
    def activation(name: str) -> int:
        """Return the engine's number of an activation function.

        Raise ConfigError if the engine has no such function.
        """
        if name not in programs.ACTIVATIONS:
            raise ConfigError(f"the engine has no activation `{name}`.")
        return programs.ACTIVATIONS[name]

    def gate(self, x: Columns, gates: Columns) -> Columns:
        """Add the operation ``x ⊙ σ(gates)``; return the columns of its result."""
        return self.write(Operation(Code.GATE, self.like(x), (x, gates)))

    def attend(
        self,
        q: Columns,
        keys: Columns,
        values: Columns,
        heads: int,
        *,
        scale: float | None = None,
        binary: str | None = None,
        out: Columns | None = None,
    ) -> Columns:
        """Compute attention, ``softmax(scale Q K^T) V``.

        - In the encoder, the tokens of a sentence attend to its own tokens or slots.
        - In the decoder, if the keys come from the encoder, hypotheses attend to the source. See
          :meth:`finish` for the alignment.
        - Otherwise, hypotheses attend to their past. Then ``keys`` and ``values`` belong to this
          step; the machine keeps the keys and values of past steps.

        Args:
            scale: factor of ``Q K^T``; None for ``1 / √D``, where D is the width of a head.
            binary: how to binarize the attention weights, a key of
                :data:`fairseq_ext.engine.program.WEIGHTS`; None for floats. If it is not None,
                ``values`` must be a result of :meth:`binarize` for ``heads`` groups.
        """
        scale = (q.width // heads) ** -0.5 if scale is None else scale
        out = self.like(q, values.width) if out is None else out
        if self.phase(keys) is Phase.HYPOTHESES:
            code, option = Code.ATTEND_PAST, self.cache(keys)
        else:
            to_source = self.phase(q) is Phase.HYPOTHESES
            code, option = Code.ATTEND_SOURCE if to_source else Code.ATTEND, 0
            keys = self.write(Operation(Code.TRANSPOSE, self.like(keys), (keys,), ints=(heads,)))
        ints = (heads, option, programs.WEIGHTS[binary])
        return self.write(Operation(code, out, (q, keys, values), ints=ints, reals=(scale,)))

    def additive(
        self, query: Columns, keys: Columns, values: Columns, v: np.ndarray, out: Columns
    ) -> Columns:
        """Compute ``Σ_j softmax_j(v^T tanh(query + keys_j)) values_j`` over source tokens j."""
        weights = (self.matrix(v, plain=True),)
        ints = (1, 1)  # one head, whose weights are the alignment
        return self.write(Operation(Code.ADDITIVE, out, (query, keys, values), weights, ints))

    def cache(self, x: Columns) -> int:
        """Add a cache that keeps the rows of ``x`` from step to step; return the cache's index.

        If ``x`` is computed by the encoder, which has no steps, add nothing and return -1.
        """
        if self.phase(x) is not Phase.HYPOTHESES:
            return -1
        self.caches += 1
        return self.caches - 1

    def mix(self, x: Columns, matrix: np.ndarray) -> Columns:
        """Compress each sentence of up to N tokens to K slots, ``E x``; E is ``matrix [K, N]``."""
        out = self.register(x.width, Phase.SLOTS, len(matrix))
        return self.write(Operation(Code.MIX, out, (x,), (self.matrix(matrix, plain=True),)))

    def convolve(
        self,
        logits: Columns,
        values: Columns,
        kernels: np.ndarray,
        heads: int,
        *,
        out: Columns | None = None,
    ) -> Columns:
        """Convolve ``values`` with dynamic kernels, which differ between positions and heads.

        There are n kernel sizes. At each position, each head has a kernel of each size: the softmax
        over its taps of numbers in ``logits``. A row of ``logits`` has these numbers ordered by
        head, then by kernel size, then by tap. The n results are multiplied by factors and added.
        ``kernels`` ``[n, 2]`` has the number of taps and the factor of each size.
        """
        out = self.like(values) if out is None else out
        weights = (self.matrix(kernels, plain=True),)
        ints = (heads, self.cache(values))
        return self.write(Operation(Code.CONVOLVE, out, (logits, values), weights, ints))

    def taps(self, x: Columns, count: int) -> Columns:
        """Join, side by side, the ``count`` rows that a convolution reads for each position."""
        out = self.like(x, count * x.width)
        return self.write(Operation(Code.TAPS, out, (x,), ints=(1, self.cache(x), count)))

    def filter(self, x: Columns, kernels: np.ndarray, heads: int) -> Columns:
        """Convolve ``x`` with a fixed kernel for each head.

        ``kernels`` ``[heads * taps]`` has the taps of the first head, then those of the second, and
        so on.
        """
        ints = (heads, self.cache(x), len(kernels) // heads)
        weights = (self.matrix(kernels, plain=True),)
        return self.write(Operation(Code.FILTER, self.like(x), (x,), weights, ints))

    def recur(
        self,
        gates: Columns,
        weight: np.ndarray,
        bias: np.ndarray | None,
        out: Columns,
        backwards: bool,
        *,
        cells: bool = False,
    ) -> Columns:
        """Compute a GRU over the words of each sentence; write its state at each word to ``out``.

        The gates are computed from ``W x + b`` and ``U s + b'``, where x is the input and s is the
        previous state, H columns. ``gates`` is ``W x + b``, 3H columns. U is ``weight [3H, H]`` and
        b' is ``bias``. If ``backwards``, the last word is read first.

        If ``cells``, compute an LSTM instead. Then ``gates`` has 4H columns, ``weight`` is
        ``[4H, H]``, and the rows of ``out`` are ``[state; cell]``, 2H columns.
        """
        weights = (self.matrix(weight), self.matrix(bias, plain=True))
        flags = programs.BACKWARDS * backwards | programs.CELLS * cells
        return self.write(Operation(Code.RECUR, out, (gates,), weights, (flags,)))

    def pick(self, x: Columns, out: Columns, first: bool) -> Columns:
        """Copy one row of ``x`` per sentence to ``out``: the first if ``first``, else the last."""
        return self.write(Operation(Code.PICK, out, (x,), ints=(int(first),)))

    def recall(
        self, x: Columns, initial: Columns = programs.NOTHING, out: Columns | None = None
    ) -> Columns:
        """Copy the numbers that the columns ``x`` had in the decoder's previous step.

        The first step copies ``initial`` instead, or 0 if ``initial`` is NOTHING. The operation
        that writes ``x`` is usually added later.
        """
        out = self.like(x) if out is None else out
        return self.write(Operation(Code.RECALL, out, (x, initial)))

    def gru(self, inputs: Columns, hiddens: Columns, state: Columns, out: Columns) -> Columns:
        """Compute a GRU's next state, H columns, from its previous ``state``.

        ``inputs`` is ``W x + b``, ``hiddens`` is ``U s + b'``: 3H columns each, for r, z and n.
        """
        return self.write(Operation(Code.GRU, out, (inputs, hiddens, state)))

    def lstm(self, inputs: Columns, hiddens: Columns, cell: Columns, out: Columns) -> Columns:
        """Compute an LSTM's next ``[state; cell]``, 2H columns, from its previous ``cell``.

        ``inputs`` is ``W x + b``, ``hiddens`` is ``U h + b'``: 4H columns each, for i, f, g and o.
        """
        return self.write(Operation(Code.LSTM, out, (inputs, hiddens, cell)))

    def finish(self, x: Columns, weight: np.ndarray, bias: np.ndarray | None = None) -> None:
        """Add the output layer, which computes the logits ``x W^T + b``.

        The weights of the last attention to the source become the alignment of translations. If the
        keys of this attention are slots, there is no alignment.
        """
        self.outputs = [programs.Output(x, self.matrix(weight), self.matrix(bias, plain=True))]
        places = [n for n, op in enumerate(self.decoder) if op.code is Code.ATTEND_SOURCE]
        last = self.decoder[places[-1]] if places else None
        if last is not None and self.phase(last.inputs[2]) is Phase.TOKENS:
            heads, _, binary = last.ints
            self.decoder[places[-1]] = last._replace(ints=(heads, 1, binary))
