"""What binary layers with float inputs compute, for the engine.

Their weights ``±B / 2`` are ordinary numbers here. Models that binarize inputs are left to torch.
"""

from __future__ import annotations

from typing import Any

from fairseq_ext.binary.attention import BinaryAttention
from fairseq_ext.binary.feedforward import FeedForwardOutput
from fairseq_ext.binary.linear import BinaryLinear
from fairseq_ext.engine.compilers import (
    ATTENTIONS,
    PRODUCTS,
    Writer,
    attend,
    joined,
    linear,
    norm,
    require,
)
from fairseq_ext.engine.program import NOTHING, Columns


def binary_linear(layer: BinaryLinear, x: Columns, program: Writer, **how: Any) -> Columns:
    """``A W_b + b``; section 3.1."""
    require(not layer.binary_inputs, "binary inputs")
    weight = layer.binarized_weight().detach().float().contiguous()
    return program.linear(x, program.array(weight), program.array(layer.bias), **how)


def feed_forward_output(
    layer: FeedForwardOutput, x: Columns, program: Writer, added: Columns = NOTHING
) -> Columns:
    """``LN(LN(h) W_2b + b_2)``; section 3.4."""
    hidden = norm(layer.input_norm, x, program)
    y = norm(layer.output_norm, linear(layer.linear, hidden, program), program)
    return y if added is NOTHING else program.add(y, added)


def attention(
    layer: BinaryAttention,
    x: Columns,
    source: Columns,
    added: Columns,
    shown: bool,
    program: Writer,
) -> Columns:
    """``added + LN(A W_b) + A`` with ``A`` of normalized heads; section 3.5."""
    require(not (layer.binary_qk or layer.binary_score_v), "binary products in attention")
    read, heads = x if source is NOTHING else source, layer.num_heads
    q = linear(layer.q_proj, x, program)
    k, v = joined([layer.k_proj, layer.v_proj], read, program)
    if layer.head_norms:
        pairs = zip("qkv", (q, k, v), strict=True)
        q, k, v = (norm(layer.head_norms[name], x, program, heads) for name, x in pairs)
    context = attend(q, k, v, heads, source, shown, program)
    y = norm(layer.output_norm, linear(layer.out_proj, context, program), program)
    if layer.shortcut:
        y = program.add(y, context)
    return program.add(y, added)


PRODUCTS[BinaryLinear] = binary_linear
PRODUCTS[FeedForwardOutput] = feed_forward_output
ATTENTIONS[BinaryAttention] = attention
