"""The operations of a program in torch; machine.h describes them and their operands.

Operations read and write registers. Here a register is a padded batch ``[…, width]``, whose first
axes depend on what a row stands for: a source token ``[B, S]``, a sentence ``[B]``, one of the K
slots to which a Linformer compresses a sentence ``[B, K]``, or a hypothesis ``[B, W]``. No function
of this module synchronizes with the device, because CUDA graphs do not allow it.

Shapes: ``B`` sentences, ``S`` source tokens, ``T`` steps, ``W`` hypotheses of each sentence (the
beam), ``V`` target tokens, ``H`` channels of a recurrent state. In attention: ``Q`` queries and
``N`` keys of each sentence.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_ext.engine import program as programs
from fairseq_ext.engine.program import Code, Columns, Matrix, Operation, Program, Reading, Signs


class BinaryWeight(NamedTuple):
    """A binary or ternary weight ``levels[:, None] * signs``, ``[N outputs, K inputs]``."""

    signs: Tensor
    levels: Tensor
    reading: Reading


class Model:
    """A program with its weights on a device. Weights and registers have the type ``dtype``."""

    def __init__(self, program: Program, device: torch.device, dtype: torch.dtype) -> None:
        self.program, self.device, self.dtype = program, device, dtype
        self.weights = [self._moved(matrix) for matrix in program.matrices]

    def _moved(self, matrix: Matrix | Signs) -> Tensor | BinaryWeight:
        placement: dict[str, Any] = {"device": self.device, "dtype": self.dtype}
        if isinstance(matrix, Matrix):
            return torch.as_tensor(matrix.values).to(**placement)
        signs = torch.from_numpy(matrix.array()).to(**placement)
        return BinaryWeight(signs, torch.as_tensor(matrix.levels).to(**placement), matrix.reading)


FUNCTIONS: dict[int, Callable[[Tensor], Tensor]] = {
    programs.ACTIVATIONS["linear"]: lambda x: x,
    programs.ACTIVATIONS["relu"]: F.relu,
    programs.ACTIVATIONS["gelu"]: F.gelu,
    programs.ACTIVATIONS["tanh"]: torch.tanh,
    programs.ACTIVATIONS["gelu_accurate"]: lambda x: F.gelu(x, approximate="tanh"),
}


def product(x: Tensor, weight: Tensor | BinaryWeight, bias: Tensor | None) -> Tensor:
    """Compute ``x W^T + b``.

    If W is binary, its :class:`~fairseq_ext.engine.program.Reading` says how to binarize ``x``.
    """
    if isinstance(weight, Tensor):
        return F.linear(x, weight, bias)
    method, bound, divisor = weight.reading
    scale = weight.levels / divisor
    if method != "floats":
        size = x.abs()
        levels: dict[str, Callable[[], Tensor | float]] = {
            "largest": lambda: 0.5 * size.amax(-1, keepdim=True),
            "mean": lambda: size.mean(-1, keepdim=True),
            "bound": lambda: 0.5 * bound,
        }
        scale, x = scale * levels[method](), signs_of(x)
    y = F.linear(x, weight.signs) * scale
    return y if bias is None else y + bias


def signs_of(x: Tensor) -> Tensor:
    """Return the signs of ``x``: -1 for negative numbers, 1 for zero and positive numbers."""
    return torch.where(x < 0, -1.0, 1.0).to(x.dtype)


def gru_state(inputs: Tensor, hiddens: Tensor, state: Tensor) -> Tensor:
    """Compute a GRU's next state ``(1 - z) n + z s``, ``[…, H]``, from its ``state`` s.

    ``inputs`` is ``W x + b``, ``hiddens`` is ``U s + b'``: ``[…, 3 H]`` each, for r, z and n.
    """
    of_inputs, of_hiddens = inputs.chunk(3, -1), hiddens.chunk(3, -1)
    r, z = (torch.sigmoid(of_inputs[i] + of_hiddens[i]) for i in (0, 1))
    return torch.lerp(torch.tanh(of_inputs[2] + r * of_hiddens[2]), state, z)


def lstm_state(inputs: Tensor, hiddens: Tensor, cell: Tensor) -> Tensor:
    """Compute an LSTM's next ``[h; c]``, ``[…, 2 H]``, from its previous ``cell`` c ``[…, H]``.

    ``inputs`` is ``W x + b``, ``hiddens`` is ``U h + b'``: ``[…, 4 H]`` each, for i, f, g, o.
    """
    i, f, g, o = (inputs + hiddens).chunk(4, -1)
    cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
    return torch.cat((torch.sigmoid(o) * torch.tanh(cell), cell), -1)


def softmax(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Compute in fp32 the softmax over the last axis; elements with a false ``mask`` get 0."""
    scores = scores.float()
    if mask is not None:
        scores = scores.masked_fill(mask.logical_not(), -torch.inf)
    return scores.softmax(-1)


def binary_sum(weights: Tensor, values: Tensor, mask: Tensor | None, method: int) -> Tensor:
    """Binarize attention weights; return ``Σ_j weights_j values_j``, like ``mix`` in machine.c.

    ``weights`` is ``[…, Q, N]``. ``values`` is binary, ``[…, N, width of a head]``. The sum is over
    the keys j for which ``mask`` is true, or over all keys if it is None. ``method`` is a
    number in :data:`fairseq_ext.engine.program.WEIGHTS`.
    """
    counted = weights * (2 * values.select(-1, 0).abs().float()).unsqueeze(-2)
    largest = counted.amax(-1, keepdim=True)
    unsigned = method == programs.WEIGHTS["unsigned"]
    share = counted >= 0.5 * largest if unsigned else torch.ones_like(counted, dtype=torch.bool)
    if mask is not None:
        share = share & mask
    sums = share.to(values.dtype) @ signs_of(values)
    return (sums * (0.5 * largest if unsigned else 0.25 * largest)).to(values.dtype)


@dataclass
class Frame:
    """The tensors of a run of the encoder, or of one step of the decoder.

    Each operation of a program has a method, such as :meth:`linear`, which returns its result.
    """

    model: Model
    tokens: Tensor  # source tokens [B, S], or the newest token of each hypothesis [B, W]
    positions: Tensor  # the positions of `tokens`, [S] or [1]
    real: Tensor  # true for source tokens that are not pads: [B, S]
    state: dict[str, Tensor] = field(default_factory=dict)  # the decoder's, made by `allocate`
    registers: dict[int, Tensor] = field(default_factory=dict)  # the registers by number
    alignments: list[Tensor] = field(default_factory=list)  # weights for the alignment: [B, W, S]

    def read(self, place: Columns) -> Tensor:
        """Return the numbers in the columns ``place`` of a register, ``[…, width]``."""
        return self.registers[place.register].narrow(-1, place.offset, place.width)

    def write(self, place: Columns, values: Tensor) -> None:
        """Write ``values […, width]`` into the columns ``place`` of a register."""
        width = self.model.program.shapes[place.register].width
        if values.size(-1) == width:
            self.registers[place.register] = values
            return
        if place.register not in self.registers:
            register = values.new_zeros(*values.shape[:-1], width)
            self.registers[place.register] = register
        self.read(place).copy_(values)

    def weight(self, number: int) -> Any:
        """Return the weight with the index ``number``, a Tensor or BinaryWeight; None for -1."""
        return None if number < 0 else self.model.weights[number]

    def run(self, operations: Sequence[Operation]) -> None:
        """Run operations in order: compute each by the method of its name, and write the result."""
        for operation in operations:
            compute = getattr(self, operation.code.name.lower())
            self.write(operation.out, compute(operation))

    # ---- the past, in the decoder ----

    def keep(self, name: str, values: Tensor) -> Tensor:
        """Store a step's ``values [B, W, …]`` in the cache ``state[name]``.

        Return the cache, ``[B, T, W, …]``, with the values of all steps.
        """
        past = self.state[name]
        return past.index_copy_(1, self.state["step"], values.unsqueeze(1).to(past))

    @cached_property
    def ancestor_mask(self) -> Tensor:
        """A mask ``[B, W, T W]``, true for the rows of past steps from which a hypothesis descends.

        With it, one matrix product computes the attention of all hypotheses of a sentence, and no
        cache has to be reordered.
        """
        ancestors = self.state["ancestors"]
        rows, times = (torch.arange(n, device=ancestors.device) for n in ancestors.shape[1:])
        past = times.le(self.state["step"]).unsqueeze(1)
        return (ancestors.unsqueeze(3).eq(rows) & past).flatten(2)

    # ---- row by row ----

    def embed(self, op: Operation) -> Tensor:
        table, positions = (self.weight(number) for number in op.weights)
        y = F.embedding(self.tokens, table) * op.reals[0]
        if positions is None:
            return y
        places = (self.positions + op.ints[0]).clamp(max=len(positions) - 1)
        return y + positions.index_select(0, places)

    def linear(self, op: Operation) -> Tensor:
        weight, bias = (self.weight(number) for number in op.weights)
        y = FUNCTIONS[op.ints[0]](product(self.read(op.inputs[0]), weight, bias))
        return y if op.inputs[1] == programs.NOTHING else y + self.read(op.inputs[1])

    def norm(self, op: Operation) -> Tensor:
        gain, shift = (self.weight(number) for number in op.weights)
        groups = self.read(op.inputs[0]).unflatten(-1, (op.ints[0], -1))
        return F.layer_norm(groups, gain.shape, gain, shift, op.reals[0]).flatten(-2)

    def binarize(self, op: Operation) -> Tensor:
        groups = self.read(op.inputs[0]).unflatten(-1, (op.ints[0], -1))
        return (signs_of(groups) * (0.5 * groups.abs().amax(-1, keepdim=True))).flatten(-2)

    def add(self, op: Operation) -> Tensor:
        x, z = (self.read(columns) for columns in op.inputs)
        return op.reals[0] * x + op.reals[1] * z

    def activate(self, op: Operation) -> Tensor:
        return FUNCTIONS[op.ints[0]](self.read(op.inputs[0]))

    def gru(self, op: Operation) -> Tensor:
        return gru_state(*(self.read(columns) for columns in op.inputs))

    def lstm(self, op: Operation) -> Tensor:
        return lstm_state(*(self.read(columns) for columns in op.inputs))

    def gate(self, op: Operation) -> Tensor:
        x, gates = (self.read(columns) for columns in op.inputs)
        return x * torch.sigmoid(gates)

    # ---- within a sentence ----

    def attention(
        self, op: Operation, keys: Tensor, values: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Compute ``softmax(scale Q K^T) V`` over the keys for which ``mask`` is true.

        ``op`` has the queries, the number of heads and the scale. ``mask`` is ``[B, 1 or Q, N]``;
        None for all keys. Return the result ``[B, Q, width]``, and the attention weights averaged
        over heads, ``[B, Q, N]``. The weights are None if nothing needs them.
        """
        heads, alignment, binary = op.ints
        q, k, v = (
            x.unflatten(-1, (heads, -1)).transpose(1, 2)
            for x in (self.read(op.inputs[0]), keys, values)
        )
        mask = None if mask is None else mask.unsqueeze(1)
        if not binary and not (alignment and op.code is Code.ATTEND_SOURCE):
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=op.reals[0])
            return y.transpose(1, 2).flatten(2), None
        weights = softmax(q * op.reals[0] @ k.transpose(-1, -2), mask)
        y = binary_sum(weights, v, mask, binary) if binary else weights.to(v.dtype) @ v
        return y.transpose(1, 2).flatten(2), weights.mean(1)

    def transpose(self, op: Operation) -> Tensor:
        return self.read(op.inputs[0])  # only the machine in C has another layout for keys

    def attend(self, op: Operation) -> Tensor:
        keys, values = (self.read(columns) for columns in op.inputs[1:])
        slots = self.model.program.shapes[op.inputs[2].register].rows
        y, weights = self.attention(op, keys, values, None if slots else self.real.unsqueeze(1))
        if weights is not None and op.code is Code.ATTEND_SOURCE and op.ints[1]:
            self.alignments.append(weights)
        return y

    attend_source = attend

    def attend_past(self, op: Operation) -> Tensor:
        keys, values = (
            self.keep(f"{part} {op.ints[1]}", self.read(columns)).flatten(1, 2)
            for part, columns in zip(("keys", "values"), op.inputs[1:], strict=True)
        )
        return self.attention(op, keys, values, self.ancestor_mask)[0]

    def additive(self, op: Operation) -> Tensor:
        query, keys, values = (self.read(columns) for columns in op.inputs)
        scores = torch.tanh(query.unsqueeze(2) + keys.unsqueeze(1)) @ self.weight(op.weights[0])
        weights = softmax(scores, self.real.unsqueeze(1))
        if op.ints[1]:
            self.alignments.append(weights)
        return weights.to(values.dtype) @ values

    def mix(self, op: Operation) -> Tensor:
        x = self.read(op.inputs[0])
        return self.weight(op.weights[0]).narrow(1, 0, x.size(1)) @ (x * self.real.unsqueeze(2))

    def window(self, place: Columns, cache: int, taps: int) -> Tensor:
        """Return the rows of ``place`` that a convolution reads for each row of its result.

        The result is ``[B, S, taps, width]`` in the encoder, ``[B, W, taps, width]`` in the
        decoder. Rows outside the sentence are 0. The decoder keeps past rows in the cache with the
        number ``cache``.
        """
        x = self.read(place)
        if not self.state:
            left = self.left_of(taps)
            around = (0, 0, left, taps - 1 - left)
            x = F.pad(x * self.real.unsqueeze(2), around)
            return x.unfold(1, taps, 1).transpose(2, 3)
        past = self.keep(f"rows {cache}", x)  # [B, T, W, width]
        steps = self.state["step"] + torch.arange(1 - taps, 1, device=x.device)
        times = steps.clamp(min=0)
        rows = self.state["ancestors"].index_select(2, times)  # [B, W, taps]
        sentences = torch.arange(len(rows), device=rows.device).view(-1, 1, 1)
        places = (sentences * past.size(1) + times) * past.size(2) + rows
        windows = past.flatten(0, 2).index_select(0, places.flatten()).unflatten(0, places.shape)
        return windows * steps.ge(0).unsqueeze(1)

    def left_of(self, taps: int) -> int:
        """Return how many earlier rows a convolution with ``taps`` taps reads at each position."""
        return taps - 1 if self.state else (taps + 2) // 2 - 1

    def convolve(self, op: Operation) -> Tensor:
        heads, cache = op.ints
        kernels = [
            (int(taps), float(share))
            for taps, share in self.model.program.matrices[op.weights[0]].values
        ]
        widest = max(taps for taps, _ in kernels)
        rows = self.window(op.inputs[1], cache, widest).unflatten(-1, (heads, -1))
        logits = self.read(op.inputs[0]).unflatten(-1, (heads, -1))
        parts = logits.float().split([taps for taps, _ in kernels], -1)
        kernel: Any = 0.0
        for (taps, share), part in zip(kernels, parts, strict=True):
            before = self.left_of(widest) - self.left_of(taps)
            kernel = kernel + F.pad(share * part.softmax(-1), (before, widest - taps - before))
        return torch.einsum("...hk,...khd->...hd", kernel.to(rows.dtype), rows).flatten(-2)

    def filter(self, op: Operation) -> Tensor:
        heads, cache, count = op.ints
        rows = self.window(op.inputs[0], cache, count).unflatten(-1, (heads, -1))
        kernel = self.weight(op.weights[0]).unflatten(0, (heads, count))
        return torch.einsum("hk,...khd->...hd", kernel, rows).flatten(-2)

    def taps(self, op: Operation) -> Tensor:
        _, cache, count = op.ints
        return self.window(op.inputs[0], cache, count).flatten(-2)

    def recur(self, op: Operation) -> Tensor:
        weight, bias = (self.weight(number) for number in op.weights)
        gates, real = self.read(op.inputs[0]).unbind(1), self.real.unsqueeze(2).unbind(1)
        cells, backwards = op.ints[0] & programs.CELLS, op.ints[0] & programs.BACKWARDS
        width = op.out.width // 2 if cells else op.out.width
        state, states = gates[0].new_zeros(len(gates[0]), op.out.width), {}
        for t in reversed(range(len(gates))) if backwards else range(len(gates)):
            hiddens = product(state.narrow(1, 0, width), weight, bias)
            if cells:
                after = lstm_state(gates[t], hiddens, state.narrow(1, width, width))
            else:
                after = gru_state(gates[t], hiddens, state)
            states[t] = state = after * real[t]  # 0 at pads, which come first if backwards
        return torch.stack([states[t] for t in range(len(gates))], 1)

    def pick(self, op: Operation) -> Tensor:
        x = self.read(op.inputs[0])
        if op.ints[0]:
            return x.select(1, 0)
        last = (self.real.sum(1) - 1).view(-1, 1, 1).expand(-1, 1, x.size(2))
        return x.gather(1, last).squeeze(1)

    def recall(self, op: Operation) -> Tensor:
        x, initial = op.inputs
        before = self.state[f"recalled {x.register}"].narrow(-1, x.offset, x.width)
        parents = self.state["ancestors"].index_select(2, (self.state["step"] - 1).clamp(min=0))
        y = before.gather(1, parents.expand(-1, -1, x.width))
        first = (
            torch.zeros_like(y) if initial == programs.NOTHING else self.read(initial).unsqueeze(1)
        )
        return torch.where(self.state["step"].eq(0), first, y)


def encode(model: Model, tokens: Tensor, real: Tensor) -> dict[int, Tensor]:
    """Run the encoder on ``tokens [B, S]``; return its registers by number.

    ``real [B, S]`` is False at pads.
    """
    positions = torch.arange(tokens.size(1), device=tokens.device)
    frame = Frame(model, tokens, positions, real)
    frame.run(model.program.encoder)
    return frame.registers


def decode(model: Model, state: dict[str, Tensor]) -> list[Tensor]:
    """Run one step of the decoder; return each model's logits ``[B, W, V]`` in fp32.

    The step reads its tokens from ``state``, and stores there the rows that later steps read.
    """
    program, step = model.program, state["step"]
    tokens = state["tokens"].index_select(1, step).squeeze(1)
    frame = Frame(model, tokens, step, state["real"], state)
    for name, tensor in state.items():
        kind, _, number = name.partition(" ")
        if kind == "source":
            frame.registers[int(number)] = tensor
    frame.run(program.decoder)
    for name, tensor in state.items():
        kind, _, number = name.partition(" ")
        if kind == "recalled":
            tensor.copy_(frame.registers[int(number)])
    if "attention" in state:
        frame.keep("attention", torch.stack(frame.alignments).sum(0) / len(program.outputs))
    return [
        product(frame.read(x), frame.weight(weight), frame.weight(bias)).float()
        for x, weight, bias in program.outputs
    ]
