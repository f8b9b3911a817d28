"""Programs of fairseq's LightConv and DynamicConv models (Wu et al., 2019)."""

from __future__ import annotations

from typing import Any

import numpy as np
from fairseq.models.lightconv import (
    LightConvDecoder,
    LightConvDecoderLayer,
    LightConvEncoder,
    LightConvEncoderLayer,
    LightConvModel,
)
from fairseq.modules.dynamic_convolution import DynamicConv_scripatable
from fairseq.modules.lightweight_convolution import LightweightConv1dTBC
from torch import nn

from fairseq_ext.engine import unmodified
from fairseq_ext.engine.compilers import MODELS, embed, finish, linear, norm, residual
from fairseq_ext.engine.program import Columns, Phase
from fairseq_ext.engine.unmodified import require
from fairseq_ext.engine.writer import Writer


def compile_lightconv(model: LightConvModel, program: Writer) -> None:
    """Convolutions in place of self-attention; the rest is the Transformer's."""
    unmodified.require_methods(model.encoder, LightConvEncoder, unmodified.ENCODER)
    unmodified.require_methods(model.decoder, LightConvDecoder, unmodified.DECODER)
    x = embed(model.encoder, Phase.TOKENS, program)
    for layer in model.encoder.layers:
        unmodified.require_methods(layer, LightConvEncoderLayer, unmodified.LAYER)
        x = convolved(layer, layer.layer_norm1, x, layer.conv.kernel_size // 2, program)
        x = feed_forward(layer, layer.layer_norm2, x, program)
    source = norm(model.encoder.layer_norm, x, program)
    y = embed(model.decoder, Phase.HYPOTHESES, program)
    for layer in model.decoder.layers:
        unmodified.require_methods(layer, LightConvDecoderLayer, unmodified.LAYER)
        require(layer.encoder_attn is not None, "decoder without a source")
        y = convolved(layer, layer.conv_layer_norm, y, layer.conv.kernel_size - 1, program)
        last = layer is model.decoder.layers[-1]
        crossing = layer.encoder_attn, layer.encoder_attn_layer_norm
        y = residual(layer, *crossing, y, source, last, program)
        y = feed_forward(layer, layer.final_layer_norm, y, program)
    finish(model.decoder, norm(model.decoder.layer_norm, y, program), program)


def convolved(
    layer: Any, layer_norm: nn.LayerNorm, x: Columns, before: int, program: Writer
) -> Columns:
    """``x + W_2 Conv(GLU(W_1 x + b_1)) + b_2`` and its norm; ``before``: taps left of a row."""
    read = norm(layer_norm, x, program) if layer.normalize_before else x
    values = linear(layer.linear1, read, program)
    if layer.act is not None:
        values = gate(values, program)
    values = convolution(layer.conv, values, before, program)
    y = linear(layer.linear2, values, program, added=x)
    return y if layer.normalize_before else norm(layer_norm, y, program)


def gate(halves: Columns, program: Writer) -> Columns:
    """``v ⊙ σ(g)`` of the two halves: the step of a GRU whose candidate is 0 and whose state is v.

    Its gates are ``(0, g, 0)``, so that ``(1 - σ(g)) tanh(0) + σ(g) v`` is the product.
    """
    values, gates = halves.split(2)
    zeros = program.add(values, values, 0.0, 0.0)
    inputs, hiddens = (program.like(values, 3 * values.width) for _ in range(2))
    for place, content in zip(inputs.split(3), (zeros, gates, zeros), strict=True):
        program.activate(content, "linear", out=place)
    for place in hiddens.split(3):
        program.activate(zeros, "linear", out=place)
    return program.gru(inputs, hiddens, values, program.like(values))


def convolution(layer: Any, values: Columns, before: int, program: Writer) -> Columns:
    """A depthwise convolution whose kernel, by head, is a softmax of taps.

    The taps of a dynamic one are computed of each row; those of a lightweight one are the same for
    all, which a product with zeros and a bias writes.
    """
    taps = layer.kernel_size
    causal = before == taps - 1
    require(layer.weight_softmax, "convolution without `--weight-softmax`")
    require(layer.padding_l == before, "convolution with another padding")
    require(causal or taps % 2 == 1, "convolution of an even number of taps in the encoder")
    kernels = np.array([[taps, 1.0]], np.float32)
    if isinstance(layer, LightweightConv1dTBC):
        unmodified.require_methods(layer, LightweightConv1dTBC, unmodified.LAYER)
        require(layer.bias is None, "bias of a convolution")
        weight = program.derive("flat", program.array(layer.weight))
        logits = program.linear(values, np.zeros((weight.size, values.width), np.float32), weight)
    else:
        unmodified.require_methods(layer, DynamicConv_scripatable, unmodified.LAYER)
        require(not layer.has_conv_bias, "bias of a convolution")
        require(not layer.in_proj and not layer.renorm_padding, "projection in a convolution")
        logits = linear(layer.weight_linear, values, program)
    return program.convolve(logits, values, kernels, layer.num_heads)


def feed_forward(layer: Any, layer_norm: nn.LayerNorm, x: Columns, program: Writer) -> Columns:
    """``x + W_2 relu(W_1 x + b_1) + b_2`` and its norm."""
    read = norm(layer_norm, x, program) if layer.normalize_before else x
    hidden = linear(layer.fc1, read, program, activation="relu")
    y = linear(layer.fc2, hidden, program, added=x)
    return y if layer.normalize_before else norm(layer_norm, y, program)


MODELS[LightConvModel] = compile_lightconv
