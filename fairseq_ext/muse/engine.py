"""Compile a MUSE block to operations of the engine.

The operations are added to ``program``. ``Columns`` say in which columns of a register an operation
finds its input or leaves its result.
"""

from functools import partial
from typing import Any

import numpy as np
from torch import nn

from fairseq_ext.engine.compilers import MODELS, encoder_decoder, linear, norm
from fairseq_ext.engine.program import NOTHING, Columns
from fairseq_ext.engine.writer import Writer
from fairseq_ext.muse.block import ParallelBlock
from fairseq_ext.muse.convolution import DynamicConvolution, OrdinaryConvolution
from fairseq_ext.muse.model import MuseModel
from fairseq_ext.muse.projections import FusedProjections


def block(
    layer: ParallelBlock, x: Columns, source: Columns, shown: bool, program: Writer
) -> Columns:
    """Compile ``LN(x + SAConv(x) + Cross(x, source) + FFN(x))``; return the columns of the result.

    SAConv is self-attention and convolution. In an encoder ``source`` is ``NOTHING``. ``shown``
    says whether this block's attention weights over the source are the translation's alignment.
    """
    before, heads = x, layer.attention.heads
    if layer.normalize_before:
        x = norm(layer.layer_norm, x, program)
    parts, columns = read(layer, x, program), [*layer.sizes.columns_out().values()]
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
        program.attend(parts[1], keys, values, heads, shown=shown, out=context[0])
    program.activate(parts[-1], layer.activation.__name__, out=hidden)
    y = contribute(layer, [attended, *context, hidden], before, program)
    if layer.ordinary_convolution is not None:
        y = ordinary(layer.ordinary_convolution, x, y, program)
    return y if layer.normalize_before else norm(layer.layer_norm, y, program)


def read(layer: ParallelBlock, x: Columns, program: Writer) -> list[Columns]:
    """Compile the products of ``x`` and the branches' first matrices, ``W_Enc`` (section 3.5).

    Return the columns of each branch's product.
    """
    if not can_fuse(layer):
        projections: Any = layer.projections
        return [linear(getattr(projections, name), x, program) for name in projections.inward]
    weight, bias, _, _ = fused(layer, program)
    return program.linear(x, weight, bias).cut([*layer.sizes.rows_in().values()])


def contribute(layer: ParallelBlock, parts: list[Columns], x: Columns, program: Writer) -> Columns:
    """Compile ``x + W_Dec parts``, with the branches' last matrices; return the sum's columns.

    ``parts`` are what the branches' last matrices read, in adjacent columns of a register.
    """
    if not can_fuse(layer):
        projections: Any = layer.projections
        for name, part in zip(projections.outward, parts, strict=True):
            x = linear(getattr(projections, name), part, program, added=x)
        return x
    _, _, weight, bias = fused(layer, program)
    joined = Columns(parts[0].register, 0, sum(part.width for part in parts))
    return program.linear(joined, weight, bias, added=x)


def can_fuse(layer: ParallelBlock) -> bool:
    """Return whether the matrices of a block's branches are fused, or can be: none is binary."""
    projections = layer.projections
    return isinstance(projections, FusedProjections) or all(
        type(module) is nn.Linear for module in projections.children()
    )


def fused(layer: ParallelBlock, program: Writer) -> tuple[np.ndarray, ...]:
    """Return ``W_Enc``, its bias, ``W_Dec``, its bias; join the matrices if they are separate."""
    projections = layer.projections
    if isinstance(projections, FusedProjections):
        names = ("weight_in", "bias_in", "weight_out", "biases_out")
        *matrices, biases = (program.array(getattr(projections, name)) for name in names)
        return *matrices, program.derive("total", biases)
    (first, first_bias), (last, last_bias) = (
        [[program.array(getattr(getattr(projections, name), kind)) for name in names]
         for kind in ("weight", "bias")]
        for names in (projections.inward, projections.outward)
    )  # fmt: skip
    return (
        program.derive("rows", *first),
        program.derive("rows", *first_bias),
        program.derive("beside", *last),
        program.derive("total", *last_bias),
    )


def convolution(layer: DynamicConvolution, values: Columns, out: Columns, program: Writer) -> None:
    """Compile the gated dynamic convolutions (6), (7) of ``values``; ``out`` gets the result."""
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
