"""Compile trained models to programs for the engine: fairseq's models and those of this package.

Three dictionaries map a class to the function that compiles it: ``MODELS`` (models), ``PRODUCTS``
(linear layers) and ``ATTENTIONS`` (attention layers). The file ``engine.py`` in a paper's folder,
such as ``gru/``, adds the classes of the paper.
"""

import importlib
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from fairseq.data import Dictionary
from fairseq.models import BaseFairseqModel, lightconv, transformer
from fairseq.models.lstm import AttentionLayer, LSTMDecoder, LSTMEncoder, LSTMModel
from fairseq.modules import (
    MultiheadAttention,
    SinusoidalPositionalEmbedding,
    dynamic_convolution,
)
from fairseq.modules.lightweight_convolution import LightweightConv1dTBC
from fairseq.modules.transformer_layer import (
    TransformerDecoderLayerBase,
    TransformerEncoderLayerBase,
)
from torch import nn
from torch.nn.utils import parametrize

from fairseq_ext.base import wings
from fairseq_ext.engine.program import NOTHING, Columns, Matrix, Phase, Program, Signs, Symbols
from fairseq_ext.engine.writer import Writer
from fairseq_ext.utils.errors import CheckpointError, ConfigError

# Functions that compile layers return the columns of the result. Examples are `plain_linear` in
# PRODUCTS, `attention` in ATTENTIONS, and `transformer_layer` for a Layer.
MODELS: dict[type, Callable[[Any, Writer], None]] = {}
PRODUCTS: dict[type, Callable[..., Columns]] = {}
ATTENTIONS: dict[type, Callable[[Any, Columns, Columns, Columns, Writer], Columns]] = {}
TABLES: dict[type, Callable[[Any, Writer], np.ndarray]] = {}
"""For each class of embedding and output layer, a function that returns the layer's weight."""
Layer = Callable[[Any, Columns, Columns, Writer], Columns]
Encoded = tuple[Columns, list[Columns], list[Columns]]  # what lstm_encoder returns

OF_MODEL = ("get_normalized_probs", "get_normalized_probs_scriptable")
METHODS = (
    *("forward", "forward_scriptable", "forward_torchscript", "forward_embedding"),
    *("extract_features", "extract_features_scriptable", "output_layer", "residual_connection"),
    *OF_MODEL,
)
"""Methods that compute something in an encoder, a decoder or a layer."""

OURS = "fairseq_ext"
LIBRARIES = ("torch", "fairseq", "apex", OURS)
"""Packages whose methods the compilers reproduce; a module with any other method is refused."""

DYNAMIC_CONVOLUTION: type = getattr(
    dynamic_convolution, "DynamicConv_scripatable", dynamic_convolution.DynamicConv1dTBC
)
"""The class of fairseq's dynamic convolution: ``DynamicConv1dTBC`` in fairseq 0.12.2."""

QUANT_NOISE = "fairseq.modules.quant_noise"  # its hook does nothing outside training


def compile_model(model: BaseFairseqModel, target: Dictionary, end: int | None = None) -> Program:
    """Compile a trained model to a program; leave the model unchanged.

    ``end`` is the id of the target token that begins and ends translations; None for ``</s>``.

    Raises:
        CheckpointError: some weights are not finite.
        ConfigError: the engine does not support the model, or one of its options.
    """
    for wing in wings.names("engine"):
        importlib.import_module(f"fairseq_ext.{wing}.engine")
    compiler = compiler_of(MODELS, model, OF_MODEL)
    end = target.eos() if end is None else end
    require_no_additions(model)
    symbols = Symbols(end, end, target.pad(), target.unk())
    longest = (int(model.max_positions()[0]), int(model.max_decoder_positions()))
    program = Writer(symbols, *longest, state=model.state_dict())
    modes = [(module, module.training) for module in model.modules()]
    model.eval()  # in training mode, a loop over layers with LayerDrop skips some of them
    try:
        compiler(model, program)
    finally:
        for module, mode in modes:
            module.training = mode
    require_finite(program.matrices, model)
    return program


def compiler_of(
    table: dict[type, Callable], module: nn.Module, methods: Sequence[str] = METHODS
) -> Callable:
    """Return the compiler in ``table`` for the class of a module, or for its nearest base class.

    Raise ConfigError if ``table`` has neither. Also raise ConfigError if code outside this package
    overrides one of the ``methods`` of the class that ``table`` has, because the compiler
    compiles only the original method.
    """
    for kind in type(module).__mro__:
        if kind in table:
            require_unchanged(module, kind, methods)
            return table[kind]
    raise ConfigError(f"the engine has no {type(module).__name__}.")


# ---- refused models: with other code, hooks, or weights that are not finite ----------------------
#
# A program is made only from weights and options. Anything else that changes results, such as an
# adapter in a subclass of nn.Linear, would be left out silently.


def require(condition: bool, feature: str) -> None:
    """Raise the ConfigError “the engine has no ``feature``” if ``condition`` is false."""
    if not condition:
        raise ConfigError(f"the engine has no {feature}.")


def require_unchanged(module: nn.Module, base: type, names: Sequence[str] = METHODS) -> None:
    """Raise ConfigError if code outside this package overrides methods ``names`` of ``base``."""
    for name in names:
        method = _method(module, name)
        unchanged = method is getattr(base, name, None) or _package(method) == OURS
        require(unchanged, type(module).__name__)


def require_no_additions(model: nn.Module) -> None:
    """Raise ConfigError if a model has code that its program would leave out.

    Such code is a hook, a parametrization, or a method from outside torch, fairseq, apex and this
    package. Only the methods in ``METHODS``, such as ``forward``, are checked. The hooks of
    quant_noise are allowed, because they do nothing outside training.
    """
    for module in model.modules():
        name = type(module).__name__
        require(not parametrize.is_parametrized(module), f"parametrization such as that of {name}")
        hooks = [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]
        for hook in hooks:
            require(getattr(hook, "__module__", "") == QUANT_NOISE, f"hook such as that on {name}")
        for method in OF_MODEL if module is model else METHODS:
            require(_package(_method(module, method)) in (None, *LIBRARIES), name)


def _method(module: nn.Module, name: str) -> Any:
    # Activation checkpointing wraps `forward`, and keeps the function inside the wrapper.
    if name == "forward" and hasattr(module, "precheckpoint_forward"):
        name = "precheckpoint_forward"
    method = getattr(module, name, None)
    return getattr(method, "__func__", method)


def _package(method: Any) -> str | None:
    return None if method is None else str(method.__module__).partition(".")[0]


def require_finite(matrices: Iterable[Matrix | Signs], model: nn.Module) -> None:
    """Raise CheckpointError, which names a weight of ``model``, if ``matrices`` are not finite."""
    arrays = (matrix.levels if isinstance(matrix, Signs) else matrix.values for matrix in matrices)
    if all(np.isfinite(array).all() for array in arrays):
        return
    broken = [name for name, weight in model.named_parameters() if not weight.isfinite().all()]
    where = f" ({broken[0]})" if broken else ""
    raise CheckpointError(
        f"weights of the model{where} are not finite; the training has diverged. Take an earlier "
        "checkpoint."
    )


# ---- what all models share -----------------------------------------------------------------------


def linear(layer: nn.Module, x: Columns, program: Writer, **options: Any) -> Columns:
    """Compile a float or binary linear layer, with ``options`` of :meth:`Writer.linear`."""
    return compiler_of(PRODUCTS, layer)(layer, x, program, **options)


def plain_linear(layer: nn.Linear, x: Columns, program: Writer, **options: Any) -> Columns:
    """Compile torch's linear layer, with ``options`` of :meth:`Writer.linear`."""
    return program.linear(x, *program.parameters(layer), **options)


def joined(layers: list[Any], x: Columns, program: Writer) -> list[Columns]:
    """Compile linear layers that all read ``x``, by one product if possible; return all results."""
    if any(compiler_of(PRODUCTS, layer) is not plain_linear for layer in layers):
        return [linear(layer, x, program) for layer in layers]
    weights = program.derive("rows", *(program.array(layer.weight) for layer in layers))
    biases = [program.array(layer.bias) for layer in layers]
    bias = None if biases[0] is None else program.derive("rows", *biases)
    return program.linear(x, weights, bias).cut([layer.out_features for layer in layers])


def norm(layer: Any, x: Columns, program: Writer, groups: int = 1) -> Columns:
    """Compile a layer norm of each of ``groups`` equal parts of a row.

    If ``layer`` is None or ``nn.Identity``, return ``x``.
    """
    if layer is None or isinstance(layer, nn.Identity):
        return x
    gain, bias = program.parameters(layer)
    require(bias is not None, f"{type(layer).__name__} without a bias")  # such as RMSNorm
    return program.norm(x, gain, bias, layer.eps, groups)


def embed(coder: Any, phase: Phase, program: Writer) -> Columns:
    """Compile the embeddings, positions and first layer norm of an encoder or decoder of fairseq.

    ``phase`` is TOKENS if ``coder`` is an encoder, HYPOTHESES if it is a decoder.
    """
    require(getattr(coder, "project_in_dim", None) is None, "projection of embeddings")
    noise = getattr(coder, "quant_noise", None)  # a separate layer, despite its name
    require(noise is None, "layer that `--quant-noise-pq` adds to the embeddings")
    positions, first = None, 0
    if coder.embed_positions is not None:
        layer = coder.embed_positions
        first = layer.padding_idx + 1
        if isinstance(layer, SinusoidalPositionalEmbedding):
            count = coder.max_positions() + first + 1
            width, step = layer.embedding_dim, math.log(10000) / (layer.embedding_dim // 2 - 1)
            order = torch.arange(width // 2, dtype=torch.float)
            frequencies = torch.exp(order * -step).numpy()
            positions = program.derive("sinusoids", frequencies, count, width, layer.padding_idx)
        else:
            positions = program.array(layer.weight)
    table = compiler_of(TABLES, coder.embed_tokens)(coder.embed_tokens, program)
    x = program.embed(phase, table, float(coder.embed_scale), positions, first)
    return norm(getattr(coder, "layernorm_embedding", None), x, program)


def encoder_decoder(model: BaseFairseqModel, program: Writer, compile_layer: Layer) -> None:
    """Compile a model built like fairseq's Transformer; ``compile_layer`` compiles its layers."""
    x = embed(model.encoder, Phase.TOKENS, program)
    for layer in model.encoder.layers:
        x = compile_layer(layer, x, NOTHING, program)
    source = norm(model.encoder.layer_norm, x, program)
    y = embed(model.decoder, Phase.HYPOTHESES, program)
    for layer in model.decoder.layers:
        y = compile_layer(layer, y, source, program)
    y = norm(model.decoder.layer_norm, y, program)
    require(model.decoder.project_out_dim is None, "projection before the output layer")
    require(model.decoder.adaptive_softmax is None, "adaptive softmax")
    layer = model.decoder.output_projection
    weight = compiler_of(TABLES, layer)(layer, program)
    program.finish(y, weight, program.array(getattr(layer, "bias", None)))


# ---- fairseq's Transformer -----------------------------------------------------------------------


def compile_transformer(model: transformer.TransformerModelBase, program: Writer) -> None:
    """Compile the Transformer of Vaswani et al. (2017), with the options of fairseq's layers."""
    require_unchanged(model.encoder, transformer.TransformerEncoderBase)
    require_unchanged(model.decoder, transformer.TransformerDecoderBase)
    encoder_decoder(model, program, transformer_layer)


def transformer_layer(layer: Any, x: Columns, source: Columns, program: Writer) -> Columns:
    """Compile a Transformer layer: self-attention, attention to the source, feed-forward network.

    ``source`` is the output of the encoder. In a layer of the encoder, it is NOTHING.
    """
    in_encoder = source is NOTHING
    base = TransformerEncoderLayerBase if in_encoder else TransformerDecoderLayerBase
    require_unchanged(layer, base)
    for name in ("attn_ln", "ffn_layernorm", "w_resid", "c_attn"):  # Shleifer et al. (2021)
        require(getattr(layer, name, None) is None, f"`{name}` in a layer")
    x = residual(layer, "self_attn", x, NOTHING, program)
    if not in_encoder:
        require(not layer.cross_self_attention, "cross-self-attention")
        x = residual(layer, "encoder_attn", x, source, program)
    return feed_forward(layer, layer.final_layer_norm, layer.activation_fn.__name__, x, program)


def residual(layer: Any, name: str, x: Columns, source: Columns, program: Writer) -> Columns:
    """Compile ``LN(x + Attention(x))``, or ``x + Attention(LN(x))`` for ``normalize_before``.

    ``name`` is ``self_attn`` or ``encoder_attn``; ``source`` is as in :func:`attention`.
    """
    attention, layer_norm = getattr(layer, name), getattr(layer, f"{name}_layer_norm")
    require(attention is not None, "decoder without a source")
    before = layer.normalize_before
    read = norm(layer_norm, x, program) if before else x
    x = compiler_of(ATTENTIONS, attention)(attention, read, source, x, program)
    return x if before else norm(layer_norm, x, program)


def feed_forward(
    layer: Any, layer_norm: nn.LayerNorm, activation: str, x: Columns, program: Writer
) -> Columns:
    """Compile ``LN(x + FFN(x))``, or ``x + FFN(LN(x))`` if ``layer`` has ``normalize_before``.

    FFN consists of ``layer.fc1``, the activation and ``layer.fc2``. LN is ``layer_norm``.
    """
    before = layer.normalize_before
    read = norm(layer_norm, x, program) if before else x
    hidden = linear(layer.fc1, read, program, activation=activation)
    x = linear(layer.fc2, hidden, program, added=x)
    return x if before else norm(layer_norm, x, program)


def attention(
    layer: MultiheadAttention, x: Columns, source: Columns, added: Columns, program: Writer
) -> Columns:
    """Compile fairseq's multi-head attention, ``added + softmax(Q K^T / √D) V W_O + b``.

    Q is computed from ``x``. K and V are computed from ``source``, or from ``x`` if ``source`` is
    NOTHING. D is the width of a head.
    """
    require(layer.bias_k is None and not layer.add_zero_attn, "extra key in attention")
    if source is NOTHING:
        q, k, v = joined([layer.q_proj, layer.k_proj, layer.v_proj], x, program)
    else:
        q = linear(layer.q_proj, x, program)
        k, v = joined([layer.k_proj, layer.v_proj], source, program)
    context = program.attend(q, k, v, layer.num_heads)
    return linear(layer.out_proj, context, program, added=added)


# ---- fairseq's LightConv and DynamicConv (Wu et al., 2019) ---------------------------------------


def compile_lightconv(model: lightconv.LightConvModel, program: Writer) -> None:
    """Compile LightConv or DynamicConv: a Transformer whose self-attentions are convolutions."""
    require_unchanged(model.encoder, lightconv.LightConvEncoder)
    require_unchanged(model.decoder, lightconv.LightConvDecoder)
    encoder_decoder(model, program, lightconv_layer)


def lightconv_layer(layer: Any, x: Columns, source: Columns, program: Writer) -> Columns:
    """Compile a LightConv layer; the arguments are as in :func:`transformer_layer`."""
    if source is NOTHING:
        require_unchanged(layer, lightconv.LightConvEncoderLayer)
        x = convolution(layer, layer.layer_norm1, x, program)
        return feed_forward(layer, layer.layer_norm2, "relu", x, program)
    require_unchanged(layer, lightconv.LightConvDecoderLayer)
    x = convolution(layer, layer.conv_layer_norm, x, program)
    x = residual(layer, "encoder_attn", x, source, program)
    return feed_forward(layer, layer.final_layer_norm, "relu", x, program)


def convolution(layer: Any, layer_norm: nn.LayerNorm, x: Columns, program: Writer) -> Columns:
    """Compile a convolution with its projections, ``LN(x + W_2 Conv(GLU(W_1 x + b_1)) + b_2)``.

    LN is ``layer_norm``. If ``layer`` has ``normalize_before``, LN is applied to the input of W_1
    instead. GLU is left out if the layer has no ``act``.
    """
    before = layer.normalize_before
    read = norm(layer_norm, x, program) if before else x
    values = linear(layer.linear1, read, program)
    if layer.act is not None:
        values = program.gate(*values.split(2))
    causal, taps = program.phase(x) is Phase.HYPOTHESES, layer.conv.kernel_size
    require(causal or taps % 2 == 1, "convolution of an even number of taps in the encoder")
    usual = layer.conv.padding_l == (taps - 1 if causal else taps // 2)
    require(usual, "padding of a convolution other than fairseq's default")
    convolve = lightweight if isinstance(layer.conv, LightweightConv1dTBC) else dynamic
    x = linear(layer.linear2, convolve(layer.conv, values, program), program, added=x)
    return x if before else norm(layer_norm, x, program)


def lightweight(layer: LightweightConv1dTBC, values: Columns, program: Writer) -> Columns:
    """Compile a lightweight convolution: each head has one kernel (Wu et al. 2019, eq. 3)."""
    require_unchanged(layer, LightweightConv1dTBC)
    require(layer.bias is None, "bias of a convolution")
    kernels = program.array(layer.weight)
    if layer.weight_softmax:
        kernels = program.derive("softmax", kernels)
    return program.filter(values, program.derive("flat", kernels), layer.num_heads)


def dynamic(layer: Any, values: Columns, program: Writer) -> Columns:
    """Compile a dynamic convolution: each token predicts its kernel (Wu et al. 2019, eq. 4)."""
    require_unchanged(layer, DYNAMIC_CONVOLUTION)
    require(layer.weight_softmax, "dynamic convolution without `--weight-softmax`")
    has_bias = getattr(layer, "has_conv_bias", layer.conv_bias is not None)
    require(not has_bias, "bias of a convolution")
    plain = not layer.in_proj and not layer.renorm_padding
    require(plain, "projection or renormalized padding in a convolution")
    logits = linear(layer.weight_linear, values, program)
    kernels = np.array([[layer.kernel_size, 1.0]], np.float32)
    return program.convolve(logits, values, kernels, layer.num_heads)


# ---- fairseq's LSTM with attention (Luong et al., 2015) ------------------------------------------


def compile_lstm(model: LSTMModel, program: Writer) -> None:
    """Compile fairseq's LSTM: an encoder of one or two directions, a decoder with input feeding."""
    require_unchanged(model.encoder, LSTMEncoder)
    require_unchanged(model.decoder, LSTMDecoder)
    lstm_decoder(model.decoder, lstm_encoder(model.encoder, program), program)


def lstm_encoder(encoder: LSTMEncoder, program: Writer) -> Encoded:
    """Compile the encoder of an LSTM; return its output, and each layer's last state and cell.

    The output has a row for each source token. States and cells have a row for each sentence.
    """
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
            ending = f"l{number}{side}"
            rows = program.register(2 * width, Phase.TOKENS)  # [state; cell]
            gates = program.linear(x, *program.parameters(encoder.lstm, f"_ih_{ending}"))
            recurrent = program.parameters(encoder.lstm, f"_hh_{ending}")
            program.recur(gates, *recurrent, rows, backwards, cells=True)
            for part, last in zip(rows.split(2), (last_hidden, last_cell), strict=True):
                program.pick(part, last, backwards)
            program.activate(rows.split(2)[0], "linear", out=state)
        final_hiddens.append(hidden)
        final_cells.append(cell)
        x = states
    return x, final_hiddens, final_cells


def lstm_decoder(decoder: LSTMDecoder, encoded: Encoded, program: Writer) -> None:
    """Compile a step of the LSTM's decoder; ``encoded`` is the result of :func:`lstm_encoder`."""
    source, hiddens, cells = encoded
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
        x = lstm_step(cell, x, states, initial, program)
    if decoder.attention is not None:
        require_unchanged(decoder.attention, AttentionLayer)
        query = linear(decoder.attention.input_proj, x, program)
        program.attend(query, source, source, 1, scale=1.0, out=context)
        projection = decoder.attention.output_proj
        linear(projection, attended, program, activation="tanh", out=features)
    if hasattr(decoder, "additional_fc"):
        features = linear(decoder.additional_fc, features, program)
    if decoder.share_input_output_embed:
        program.finish(features, table)
    else:
        program.finish(features, *program.parameters(decoder.fc_out))


def lstm_step(
    cell: nn.LSTMCell, x: Columns, states: Columns, initial: list[Columns], program: Writer
) -> Columns:
    """Compile one step of an LSTM layer, ``[h_t; c_t] = LSTM(x, h_{t-1}, c_{t-1})``; return h_t.

    ``[h_t; c_t]`` is written to ``states``. ``initial`` are the columns of ``h_0`` and of ``c_0``.
    """
    require(type(cell) is nn.LSTMCell, f"{type(cell).__name__} in a decoder")
    before = [
        program.recall(part, first) for part, first in zip(states.split(2), initial, strict=True)
    ]
    inputs = program.linear(x, *program.parameters(cell, "_ih"))
    hiddens = program.linear(before[0], *program.parameters(cell, "_hh"))
    program.lstm(inputs, hiddens, before[1], states)
    return states.split(2)[0]


MODELS[transformer.TransformerModelBase] = compile_transformer
MODELS[lightconv.LightConvModel] = compile_lightconv
MODELS[LSTMModel] = compile_lstm
PRODUCTS[nn.Linear] = plain_linear
TABLES[nn.Linear] = TABLES[nn.Embedding] = lambda layer, program: program.array(layer.weight)
ATTENTIONS[MultiheadAttention] = attention
