"""Compile the GRU with attention to operations of the engine.

The functions add operations to ``program``. Operations read and write ``Columns`` of *registers*,
which are matrices of floats.
"""

import numpy as np
from torch import nn

from fairseq_ext.engine.compilers import MODELS, linear
from fairseq_ext.engine.program import Columns, Phase
from fairseq_ext.engine.writer import Writer
from fairseq_ext.gru.attention import GeneralAttention, MLPAttention
from fairseq_ext.gru.model import GRUAttentionDecoder, GRUAttentionModel, GRUEncoder


def compile_gru(model: GRUAttentionModel, program: Writer) -> None:
    """Compile the encoder and a decoding step (equations: :mod:`fairseq_ext.gru.decoder`)."""
    annotations, initial = encode(model.encoder, program)
    decode(model.decoder, annotations, initial, program)


def encode(encoder: GRUEncoder, program: Writer) -> tuple[Columns, Columns]:
    """Compile the encoder; return the columns of annotations and of the decoder's first state.

    The annotations are ``[h→_j; h←_j]``, the state is ``s_0 = tanh(W_b [h→_S; h←_1] + b_b)``.
    """
    embedded = program.embed(Phase.TOKENS, program.array(encoder.embed_tokens.weight), 1.0)
    gru = encoder.gru.gru
    annotations = program.register(2 * gru.hidden_size, Phase.TOKENS)
    final = program.register(2 * gru.hidden_size, Phase.SENTENCES)
    sides = zip(annotations.split(2), final.split(2), ("", "_reverse"), strict=True)
    for states, last, side in sides:
        gates = program.linear(embedded, *program.parameters(gru, f"_ih_l0{side}"))
        program.recur(gates, *program.parameters(gru, f"_hh_l0{side}"), states, bool(side))
        program.pick(states, last, bool(side))
    return annotations, linear(encoder.bridge, final, program, activation="tanh")


def decode(
    decoder: GRUAttentionDecoder, annotations: Columns, initial: Columns, program: Writer
) -> None:
    """Compile a decoding step up to the logits, from the results of :func:`encode`."""
    recurrence, gru = decoder.recurrence, decoder.recurrence.gru
    input_weight = program.array(gru.weight_ih_l0)
    width, channels = gru.hidden_size, annotations.width
    table = program.array(decoder.embed_tokens.weight)
    features = program.register(width + channels + recurrence.embed_dim, Phase.HYPOTHESES)
    state, context, word = features.cut([width, channels, recurrence.embed_dim])  # [s; c; y]
    before = program.recall(state, initial)
    if recurrence.luong:
        combined = program.register(width, Phase.HYPOTHESES)
        inputs = program.register(recurrence.embed_dim + width, Phase.HYPOTHESES)
        word, fed = inputs.cut([recurrence.embed_dim, width])
        if recurrence.input_feeding:
            program.recall(combined, out=fed)
    program.embed(Phase.HYPOTHESES, table, 1.0, out=word)
    if recurrence.combine is not None:  # Luong's order
        read = inputs if recurrence.input_feeding else word
        advance(gru, input_weight, read, before, state, program)
        attend(recurrence.attention, state, annotations, context, program)
        weight, bias = program.parameters(recurrence.combine)
        turned = rotated(weight, channels, program)  # reads [s; c] instead of [c; s]
        state_and_context = Columns(features.register, 0, width + channels)
        features = program.linear(state_and_context, turned, bias, activation="tanh", out=combined)
    else:
        attend(recurrence.attention, before, annotations, context, program)
        read = word
        if recurrence.input_feeding:
            read = Columns(features.register, width, channels + word.width)  # [c; y]
            input_weight = rotated(input_weight, word.width, program)  # for [c; y], not [y; c]
        advance(gru, input_weight, read, before, state, program)
    if decoder.to_embedding is not None:
        features = linear(decoder.to_embedding, features, program)
    program.finish(features, *program.parameters(decoder.output_projection))


def rotated(weight: np.ndarray, first: int, program: Writer) -> np.ndarray:
    """Move the leftmost ``first`` columns of a matrix behind the others; return the result.

    ``program`` remembers how the result is made from ``weight`` (:meth:`Writer.derive`).
    """
    return program.derive("beside", *reversed(split_columns(weight, first, program)))


def split_columns(weight: np.ndarray, first: int, program: Writer) -> list[np.ndarray]:
    """Split a matrix into its leftmost ``first`` columns and the others.

    ``program`` remembers how both are made from ``weight``.
    """
    ends = (0, first), (first, weight.shape[1])
    return [program.derive("columns", weight, *end) for end in ends]


def advance(
    gru: nn.GRU,
    input_weight: np.ndarray,
    read: Columns,
    before: Columns,
    state: Columns,
    program: Writer,
) -> None:
    """Compile a GRU step ``s_t = GRU(read, s_{t-1})``; write ``s_t`` to the columns ``state``.

    ``input_weight`` is the GRU's matrix for its input; its columns are in the order of ``read``.
    ``before`` is ``s_{t-1}``.
    """
    _, bias = program.parameters(gru, "_ih_l0")
    inputs = program.linear(read, input_weight, bias)
    hiddens = program.linear(before, *program.parameters(gru, "_hh_l0"))
    program.gru(inputs, hiddens, before, state)


def attend(
    attention: MLPAttention | GeneralAttention,
    query: Columns,
    annotations: Columns,
    out: Columns,
    program: Writer,
) -> None:
    """Compile ``Σ_j softmax_j(score(query, h_j)) h_j`` over annotations h_j into ``out``."""
    if isinstance(attention, MLPAttention):
        weight, bias = program.parameters(attention.hidden)
        of_query, of_keys = split_columns(weight, attention.query_dim, program)
        keys = program.linear(annotations, of_keys, bias)
        queries = program.linear(query, of_query)
        v = program.derive("flat", program.array(attention.score.weight))
        program.additive(queries, keys, annotations, v, out)
        return
    keys = annotations
    if hasattr(attention, "hidden"):  # general attention; for dot, keys are the annotations
        keys = linear(attention.hidden, annotations, program)
    program.attend(query, keys, annotations, 1, scale=1.0, out=out)


MODELS[GRUAttentionModel] = compile_gru
