"""Compile fairseq's LSTM with attention (Luong et al., 2015)."""

from __future__ import annotations

from fairseq.models.lstm import AttentionLayer, LSTMDecoder, LSTMEncoder, LSTMModel
from torch import nn

from fairseq_ext.engine import unmodified
from fairseq_ext.engine.compilers import MODELS, linear
from fairseq_ext.engine.program import Columns, Phase
from fairseq_ext.engine.unmodified import require
from fairseq_ext.engine.writer import Writer


def compile_lstm(model: LSTMModel, program: Writer) -> None:
    """Compile an encoder of one or two directions, and a decoder with input feeding."""
    unmodified.require_methods(model.encoder, LSTMEncoder, unmodified.ENCODER)
    unmodified.require_methods(model.decoder, LSTMDecoder, unmodified.DECODER)
    source, hiddens, cells = encode(model.encoder, program)
    decode(model.decoder, source, hiddens, cells, program)


def encode(encoder: LSTMEncoder, program: Writer) -> tuple[Columns, list[Columns], list[Columns]]:
    """Compile the encoder; return the last layer's states, and all layers' final states, cells."""
    require(type(encoder.lstm) is nn.LSTM, f"{type(encoder.lstm).__name__} in an encoder")
    x = program.embed(Phase.TOKENS, program.array(encoder.embed_tokens.weight), 1.0)
    width, sides = encoder.hidden_size, ("", "_reverse")[: 1 + encoder.bidirectional]
    final_hiddens, final_cells = [], []
    for number in range(encoder.num_layers):
        states = program.register(len(sides) * width, Phase.TOKENS)
        hidden, cell = (program.register(states.width, Phase.SENTENCES) for _ in range(2))
        places = (place.split(len(sides)) for place in (states, hidden, cell))
        for side, state, last_hidden, last_cell in zip(sides, *places, strict=True):
            backwards = bool(side)
            (weight, bias), recurrent = (
                [program.array(getattr(encoder.lstm, f"{kind}_{half}_l{number}{side}"))
                 for kind in ("weight", "bias")]
                for half in ("ih", "hh")
            )  # fmt: skip
            rows = program.register(2 * width, Phase.TOKENS)  # [state; cell]
            gates = program.linear(x, weight, bias)
            program.recur(gates, *recurrent, rows, backwards, cells=True)
            for part, last in zip(rows.split(2), (last_hidden, last_cell), strict=True):
                program.pick(part, last, backwards)
            program.activate(rows.split(2)[0], "linear", out=state)
        final_hiddens.append(hidden)
        final_cells.append(cell)
        x = states
    return x, final_hiddens, final_cells


def decode(
    decoder: LSTMDecoder,
    source: Columns,
    hiddens: list[Columns],
    cells: list[Columns],
    program: Writer,
) -> None:
    """Compile a step: the layers, attention with the last layer's state, the output layer."""
    require(not decoder.residuals, "residual connection of an LSTM")
    require(decoder.adaptive_softmax is None, "adaptive softmax")
    if decoder.encoder_hidden_proj is not None:
        hiddens = [linear(decoder.encoder_hidden_proj, hidden, program) for hidden in hiddens]
        cells = [linear(decoder.encoder_cell_proj, cell, program) for cell in cells]
    table, width = program.array(decoder.embed_tokens.weight), decoder.hidden_size
    inputs = program.register(table.shape[1] + width, Phase.HYPOTHESES)
    word, fed = inputs.cut([table.shape[1], width])
    rows = program.register(source.width + 2 * width, Phase.HYPOTHESES)
    context, *last_states = rows.cut([source.width, 2 * width])  # [context; state; cell]
    attended = Columns(rows.register, 0, source.width + width)
    features = attended.cut([source.width, width])[1]
    if decoder.attention is not None:
        features = program.register(width, Phase.HYPOTHESES)
    program.recall(features, out=fed)
    program.embed(Phase.HYPOTHESES, table, 1.0, out=word)
    x = inputs
    earlier = [program.register(2 * width, Phase.HYPOTHESES) for _ in decoder.layers[1:]]
    for cell, states, *initial in zip(
        decoder.layers, earlier + last_states, hiddens, cells, strict=True
    ):
        x = advance(cell, x, states, initial, program)
    if decoder.attention is not None:
        unmodified.require_methods(decoder.attention, AttentionLayer, unmodified.LAYER)
        query = linear(decoder.attention.input_proj, x, program)
        keys = program.transpose(source, 1)
        program.attend_source(query, keys, source, 1, scale=1.0, shown=True, out=context)
        projection = decoder.attention.output_proj
        linear(projection, attended, program, activation="tanh", out=features)
    if hasattr(decoder, "additional_fc"):
        features = linear(decoder.additional_fc, features, program)
    if decoder.share_input_output_embed:
        program.finish(features, table, None)
        return
    layer = decoder.fc_out
    program.finish(features, program.array(layer.weight), program.array(layer.bias))


def advance(
    cell: nn.LSTMCell, x: Columns, states: Columns, initial: list[Columns], program: Writer
) -> Columns:
    """Compile ``[h_t; c_t] = LSTM(x, h_{t-1}, c_{t-1})``; return ``h_t``."""
    require(type(cell) is nn.LSTMCell, f"{type(cell).__name__} in a decoder")
    before = [
        program.recall(part, first) for part, first in zip(states.split(2), initial, strict=True)
    ]
    inputs = program.linear(x, program.array(cell.weight_ih), program.array(cell.bias_ih))
    recurrent_weights = program.array(cell.weight_hh), program.array(cell.bias_hh)
    program.lstm(inputs, program.linear(before[0], *recurrent_weights), before[1], states)
    return states.split(2)[0]


MODELS[LSTMModel] = compile_lstm
