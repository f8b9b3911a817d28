"""Compile binary layers to operations of the engine, and pack their weights as bits.

The functions add operations to ``program``. Operations read and write ``Columns`` of *registers*,
which are matrices of floats.
"""

from typing import Any

import torch
from torch import Tensor, nn

from fairseq_ext.binary.attention import BinaryAttention
from fairseq_ext.binary.binarize import TERNARY, Binarizer
from fairseq_ext.binary.linear import BinaryLinear, FeedForwardOutput
from fairseq_ext.engine.compilers import ATTENTIONS, PRODUCTS, joined, linear, norm, require
from fairseq_ext.engine.program import FLOATS, NOTHING, Columns, Reading, Signs, pack_bits
from fairseq_ext.engine.tensors import BITS, LEVELS, TRITS, pack_trits
from fairseq_ext.engine.writer import Writer
from fairseq_ext.utils.errors import CheckpointError


def binary_linear(layer: BinaryLinear, x: Columns, program: Writer, **options: Any) -> Columns:
    """Compile a :class:`BinaryLinear`; return the columns of the result.

    The result is ``A_b W_b / s + b`` (sections 3.1 and 3.3). If inputs are float, it is
    ``A W_b + b``; if weights are float, too, ``A W + b``. ``x`` are the columns of ``A``.
    ``options`` are further arguments of ``program.linear``.
    """
    bias = program.array(layer.bias)
    if not layer.binary_weights:
        cure = "name their products in `--binary-weights`, too, and train again"
        require(not layer.binary_inputs, f"binary inputs of float weights; {cure}")
        return program.linear(x, program.array(layer.weight), bias, **options)
    reading = _reading(layer.input_binarizer, layer.scale) if layer.binary_inputs else FLOATS
    values, levels = (tensor.cpu().numpy() for tensor in layer.signs())
    ternary = layer.weight_binarizer.kind == TERNARY
    name = program.name(layer.weight)
    signs = Signs.packed(values, levels, ternary, reading=reading, name=name)
    return program.linear(x, signs, bias, **options)


def _reading(binarizer: Binarizer, scale: float) -> Reading:
    require(binarizer.kind != TERNARY, "ternary inputs")
    if binarizer.kind == "xnor":
        return Reading("mean", divisor=scale)
    if binarizer.bound is None:
        return Reading("largest", divisor=scale)
    return Reading("bound", binarizer.bound, scale)


def feed_forward_output(
    layer: FeedForwardOutput, x: Columns, program: Writer, added: Columns
) -> Columns:
    """Compile ``LN(LN(h)_b W_2b + b_2) + added`` (section 3.4) for the hidden layer h in ``x``."""
    hidden = norm(layer.input_norm, x, program)
    y = norm(layer.output_norm, linear(layer.linear, hidden, program), program)
    return program.add(y, added)


def attention(
    layer: BinaryAttention, x: Columns, source: Columns, added: Columns, program: Writer
) -> Columns:
    """Compile ``added + LN(A W_b) + A`` (section 3.5); return the columns of the result.

    ``A`` are the joined outputs of all heads. A layer without norm or shortcut leaves out LN or
    ``+ A``. Queries are computed from ``x``, keys and values from ``source``, or from ``x`` if
    ``source`` is ``NOTHING``.
    """
    read, heads = x if source is NOTHING else source, layer.num_heads
    q = linear(layer.q_proj, x, program)
    k, v = joined([layer.k_proj, layer.v_proj], read, program)
    if layer.head_norms:
        pairs = zip("qkv", (q, k, v), strict=True)
        q, k, v = (norm(layer.head_norms[name], x, program, heads) for name, x in pairs)
    if layer.binary_qk:
        q, k = program.binarize(q, heads), program.binarize(k, heads)
    if layer.binary_score_v:
        v = program.binarize(v, heads)
    context = program.attend(q, k, v, heads, binary=layer.binary_score_v)
    y = norm(layer.output_norm, linear(layer.out_proj, context, program), program)
    if layer.shortcut:
        y = program.add(y, context)
    return program.add(y, added)


@torch.no_grad()
def binary_weights(model: nn.Module) -> tuple[dict[str, Any], dict[str, dict[str, Tensor]]]:
    """Return the weights that are binary or ternary in a model's current stage, packed as bits.

    Returns:
        A description that unpacking needs, and the packed weights. The description has the keys
        ``binarizer`` and ``granularity``, options of the layers, and ``inputs``, the number of
        columns of each weight: ``{name: columns}``. The packed weights are ``{name: {ending:
        tensor}}``: two tensors for each weight, its packed signs and its levels. ``name + ending``
        is a tensor's name in a file.

    Raises:
        CheckpointError: no weights are binary or ternary. The caller must put the checkpoint's name
            in front of the message.
    """
    layers = {
        f"{name}.weight": layer
        for name, layer in model.named_modules()
        if isinstance(layer, BinaryLinear) and layer.binary_weights
    }
    if not layers:
        raise CheckpointError(
            "has no binary weights, and only they can be stored in bits. If a later stage "
            "(`--stage-updates`) makes weights binary, continue the training."
        )
    ways = {(layer.weight_binarizer.kind, layer.granularity) for layer in layers.values()}
    ((kind, granularity),) = ways  # the same in all layers
    ending, pack = (TRITS, pack_trits) if kind == TERNARY else (BITS, pack_bits)
    weights = {}
    for name, layer in layers.items():
        signs, levels = layer.signs()
        packed = torch.from_numpy(pack(signs.cpu().numpy()))
        weights[name] = {ending: packed, LEVELS: levels.contiguous()}
    inputs = {name: layer.in_features for name, layer in layers.items()}
    return {"binarizer": kind, "granularity": granularity, "inputs": inputs}, weights


PRODUCTS[BinaryLinear] = binary_linear
PRODUCTS[FeedForwardOutput] = feed_forward_output
ATTENTIONS[BinaryAttention] = attention
