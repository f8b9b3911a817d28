"""Compile fairseq's LightConv and DynamicConv models (Wu et al., 2019)."""

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
from fairseq_ext.engine.compilers import (
    MODELS,
    embed,
    feed_forward,
    finish,
    linear,
    norm,
    residual,
)
from fairseq_ext.engine.program import Columns, Phase
from fairseq_ext.engine.unmodified import require
from fairseq_ext.engine.writer import Writer


def compile_lightconv(model: LightConvModel, program: Writer) -> None:
    """Compile a Transformer with convolutions in place of self-attention."""
    unmodified.require_methods(model.encoder, LightConvEncoder, unmodified.ENCODER)
    unmodified.require_methods(model.decoder, LightConvDecoder, unmodified.DECODER)
    x = embed(model.encoder, Phase.TOKENS, program)
    for layer in model.encoder.layers:
        unmodified.require_methods(layer, LightConvEncoderLayer, unmodified.LAYER)
        x = convolution(layer, layer.layer_norm1, x, program)
        x = feed_forward(layer, layer.layer_norm2, "relu", x, program)
    source = norm(model.encoder.layer_norm, x, program)
    y = embed(model.decoder, Phase.HYPOTHESES, program)
    for layer in model.decoder.layers:
        unmodified.require_methods(layer, LightConvDecoderLayer, unmodified.LAYER)
        require(layer.encoder_attn is not None, "decoder without a source")
        y = convolution(layer, layer.conv_layer_norm, y, program)
        last = layer is model.decoder.layers[-1]
        crossing = layer.encoder_attn, layer.encoder_attn_layer_norm
        y = residual(layer, *crossing, y, source, last, program)
        y = feed_forward(layer, layer.final_layer_norm, "relu", y, program)
    finish(model.decoder, norm(model.decoder.layer_norm, y, program), program)


def convolution(layer: Any, after: nn.LayerNorm, x: Columns, program: Writer) -> Columns:
    """Compile ``x + W_2 Conv(GLU(W_1 x + b_1)) + b_2`` and its norm, which may come first."""
    before = layer.normalize_before
    read = norm(after, x, program) if before else x
    values = linear(layer.linear1, read, program)
    if layer.act is not None:
        values = program.gate(*values.split(2))
    causal, taps = program.phase(x) is Phase.HYPOTHESES, layer.conv.kernel_size
    require(causal or taps % 2 == 1, "convolution of an even number of taps in the encoder")
    require(layer.conv.padding_l == (taps - 1 if causal else taps // 2), "such padding")
    convolve = lightweight if isinstance(layer.conv, LightweightConv1dTBC) else dynamic
    x = linear(layer.linear2, convolve(layer.conv, values, program), program, added=x)
    return x if before else norm(after, x, program)


def lightweight(layer: LightweightConv1dTBC, values: Columns, program: Writer) -> Columns:
    """Compile a convolution with a kernel for each head, equation (3) of the paper."""
    unmodified.require_methods(layer, LightweightConv1dTBC, unmodified.LAYER)
    require(layer.bias is None, "bias of a convolution")
    kernels = program.array(layer.weight)
    if layer.weight_softmax:
        kernels = program.derive("softmax", kernels)
    return program.filter(values, program.derive("flat", kernels), layer.num_heads)


def dynamic(layer: DynamicConv_scripatable, values: Columns, program: Writer) -> Columns:
    """Compile a convolution whose kernels are computed from each row, equation (4)."""
    unmodified.require_methods(layer, DynamicConv_scripatable, unmodified.LAYER)
    require(layer.weight_softmax, "dynamic convolution without `--weight-softmax`")
    require(not layer.has_conv_bias, "bias of a convolution")
    require(not layer.in_proj and not layer.renorm_padding, "projection in a convolution")
    logits = linear(layer.weight_linear, values, program)
    kernels = np.array([[layer.kernel_size, 1.0]], np.float32)
    return program.convolve(logits, values, kernels, layer.num_heads)


MODELS[LightConvModel] = compile_lightconv
