"""Compile a MUSE block to operations of the engine.

The functions add operations to ``program``. Operations read and write ``Columns`` of *registers*,
which are matrices of floats.
"""

from functools import partial

import numpy as np
from torch import nn

from fairseq_ext.engine.compilers import MODELS, encoder_decoder, joined, linear, norm
from fairseq_ext.engine.program import NOTHING, Columns
from fairseq_ext.engine.writer import Writer
from fairseq_ext.muse.block import ParallelBlock
from fairseq_ext.muse.convolution import DynamicConvolution, OrdinaryConvolution
from fairseq_ext.muse.model import MuseModel


def block(layer: ParallelBlock, x: Columns, source: Columns, program: Writer) -> Columns:
    """Compile ``LN(x + SAConv(x) + Cross(x, source) + FFN(x))``; return the columns of the result.

    SAConv is self-attention and convolution. In an encoder ``source`` is ``NOTHING``.
    """
    before, heads = x, layer.attention.heads
    if layer.normalize_before:
        x = norm(layer.layer_norm, x, program)
    projections = layer.projections
    parts = joined([getattr(projections, name) for name in projections.inward], x, program)
    columns = [*projections.outward.values()]
    attended, *context, hidden = program.like(x, sum(columns)).cut(columns)
    q, k, v, *convolution_values = parts[0].split(layer.attention.parts_in)
    of_attention, *of_convolution = attended.split(layer.attention.parts_out)
    program.attend(q, k, v, heads, out=of_attention)
    if layer.attention.convolution is not None:
        convolution(
            layer.attention.convolution, (convolution_values or [v])[0], of_convolution[0], program
        )
    if source is not NOTHING:
        keys, values = linear(layer.cross_key_value, source, program).split(2)
        program.attend(parts[1], keys, values, heads, out=context[0])
    program.activate(parts[-1], layer.activation.__name__, out=hidden)
    y = contribute(layer, [attended, *context, hidden], before, program)
    if layer.ordinary_convolution is not None:
        y = ordinary(layer.ordinary_convolution, x, y, program)
    return y if layer.normalize_before else norm(layer.layer_norm, y, program)


def contribute(layer: ParallelBlock, parts: list[Columns], x: Columns, program: Writer) -> Columns:
    """Compile ``x + W_Dec parts``; return the columns of the sum.

    ``W_Dec`` joins the last matrices of all branches (section 3.5). ``parts`` are the
    matrices' inputs, in adjacent columns of a register.
    """
    layers = [getattr(layer.projections, name) for name in layer.projections.outward]
    if any(type(last) is not nn.Linear for last in layers):  # some are binary
        for last, part in zip(layers, parts, strict=True):
            x = linear(last, part, program, added=x)
        return x
    weight = program.derive("beside", *(program.array(last.weight) for last in layers))
    bias = program.derive("total", *(program.array(last.bias) for last in layers))
    joined_parts = Columns(parts[0].register, 0, sum(part.width for part in parts))
    return program.linear(joined_parts, weight, bias, added=x)


def convolution(layer: DynamicConvolution, values: Columns, out: Columns, program: Writer) -> None:
    """Compile the gated sum of dynamic convolutions of ``values`` (equations 6, 7) to ``out``."""
    logits = program.linear(values, program.array(layer.predictor.weight))
    shares = layer.gate_values().detach().float().cpu().numpy()
    kernels = np.stack([np.array(layer.kernel_sizes, np.float32), shares], axis=1)
    program.convolve(logits, values, kernels, layer.heads, out=out)


def ordinary(layer: OrdinaryConvolution, x: Columns, y: Columns, program: Writer) -> Columns:
    """Compile ``y`` plus an ordinary convolution of ``x``; return the columns of the sum."""
    taps = program.taps(x, layer.kernel_size)
    weight = program.derive("taps", program.array(layer.convolution.weight))  # [C, k C]
    return program.linear(taps, weight, program.array(layer.convolution.bias), added=y)


MODELS[MuseModel] = partial(encoder_decoder, compile_layer=block)
