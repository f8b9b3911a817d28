"""Write fairseq's own Transformer for other tools, and refuse what they cannot express."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fairseq.data import Dictionary
from fairseq.models import BaseFairseqModel
from fairseq.models.transformer import TransformerDecoderBase, TransformerEncoderBase
from fairseq.modules import LearnedPositionalEmbedding, SinusoidalPositionalEmbedding

from fairseq_ext.checkpoints import bundle
from fairseq_ext.engine import compilers
from fairseq_ext.model import huggingface_model, trained
from fairseq_ext.text import pipeline
from fairseq_ext.utils import extras, files
from fairseq_ext.utils.errors import ConfigError

CTRANSLATE2 = "CTranslate2"
ACTIVATIONS = ("relu", "gelu")
POSITIONS = (LearnedPositionalEmbedding, SinusoidalPositionalEmbedding)
_AFFINE = r"\.(weight|bias)"
_LAYER = (
    r"layers\.\d+\.((self|encoder)_attn\.([qkv]|out)_proj|fc[12]|"
    rf"(self_attn_|encoder_attn_|final_)layer_norm){_AFFINE}"
)
STATE = re.compile(
    rf"(encoder|decoder)\.(version|embed_tokens\.weight|output_projection\.weight|{_LAYER}|"
    rf"embed_positions\.(weight|_float_tensor)|(layer_norm|layernorm_embedding){_AFFINE})"
)
"""Names of a Transformer's weights; a model with other weights computes something else."""


@dataclass(frozen=True)
class StockTransformer:
    """A trained Transformer of fairseq, with the options that decide its computation.

    Attributes:
        pre_norm: whether layers normalize their input instead of the residual sum.
        learned_positions: whether positions are learned, not sinusoidal.
        normalizes_embeddings: whether there is a layer norm after the embedding.
        longest: tokens of the longest source and target, ``</s>`` included.
    """

    model: BaseFairseqModel
    source: Dictionary
    target: Dictionary
    src: str
    tgt: str
    architecture: str
    activation: str
    heads: tuple[int, int]
    pre_norm: bool
    learned_positions: bool
    normalizes_embeddings: bool
    longest: tuple[int, int]

    @property
    def has_joined_dictionary(self) -> bool:
        """Whether both languages have the same symbols with the same indices."""
        return bool(self.source == self.target)

    @property
    def shares_all_embeddings(self) -> bool:
        """Whether source, target and output use one table."""
        table = self.model.decoder.embed_tokens.weight
        return table is self.model.encoder.embed_tokens.weight and self.ties_output

    @property
    def ties_output(self) -> bool:
        """Whether the output layer is the target's table."""
        decoder = self.model.decoder
        return decoder.embed_tokens.weight is decoder.output_projection.weight


Require = Callable[[object, str], None]


def export_to(tool: str, path: Path, data: Path, output: Path) -> str:
    """Write a model in the format of another tool, whole or not at all.

    Args:
        tool: ``ctranslate2`` or ``huggingface``.
        path: of a checkpoint or bundle.
        data: folder with its dictionaries.
        output: a folder, which must be empty or not exist.

    Returns:
        The name of the model's architecture in fairseq.
    """
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ConfigError(f"{output} is there already; choose another folder.")
    to_huggingface = tool == "huggingface"
    stock = load(path, data, huggingface_model.TOOL if to_huggingface else CTRANSLATE2)
    with files.whole_folder(output) as folder:
        (huggingface_model.write if to_huggingface else write_ctranslate2)(stock, folder)
        if text := pipeline.find((bundle.home(path), data)):
            text.save(folder)
    return stock.architecture


def write_ctranslate2(stock: StockTransformer, folder: Path) -> None:
    """Write ``model.bin`` and the files beside it, with CTranslate2's own writer."""
    extras.need("ctranslate2")
    from ctranslate2.converters.fairseq import set_transformer_decoder, set_transformer_encoder
    from ctranslate2.specs import common_spec, transformer_spec

    heads = stock.heads
    if heads[0] != heads[1]:
        raise ConfigError(
            f"{CTRANSLATE2} has as many heads in the encoder as in the decoder, but these have "
            f"{heads[0]} and {heads[1]}."
        )
    activations = {"relu": common_spec.Activation.RELU, "gelu": common_spec.Activation.GELU}
    encoder, decoder = stock.model.encoder, stock.model.decoder
    spec = transformer_spec.TransformerSpec.from_config(
        (len(encoder.layers), len(decoder.layers)),
        heads[0],
        pre_norm=stock.pre_norm,
        activation=activations[stock.activation],
        layernorm_embedding=stock.normalizes_embeddings,
    )
    set_transformer_encoder(spec.encoder, encoder)
    set_transformer_decoder(spec.decoder, decoder)
    for side, register in (
        (stock.source, spec.register_source_vocabulary),
        (stock.target, spec.register_target_vocabulary),
    ):  # the library has its own name for the padding
        register(["<blank>" if symbol == "<pad>" else symbol for symbol in side.symbols])
    spec.config.decoder_start_token = spec.config.eos_token
    spec.config.add_source_eos = True
    spec.validate()
    spec.optimize()
    spec.save(str(folder))


def load(path: Path, data: Path, tool: str) -> StockTransformer:
    """Load a checkpoint or bundle, and refuse what a tool cannot compute."""
    (model,), cfg, task = trained.load(data, [path])
    model.eval().requires_grad_(False)

    def require(condition: object, feature: str) -> None:
        if not condition:
            raise ConfigError(f"{path} cannot be expressed in {tool}, which has no {feature}.")

    architecture = str(getattr(cfg.model, "arch", None) or getattr(cfg.model, "_name", "model"))
    _require_stock(model, architecture, require)
    encoder, decoder = model.encoder, model.decoder
    _require_options(encoder, decoder, require)
    require(not getattr(task.cfg, "source_bos", False), "`<s>` before each source (--source-bos)")
    return StockTransformer(
        model=model,
        source=task.source_dictionary,
        target=task.target_dictionary,
        src=task.cfg.source_lang,
        tgt=task.cfg.target_lang,
        architecture=architecture,
        activation=decoder.cfg.activation_fn,
        heads=(encoder.layers[0].self_attn.num_heads, decoder.layers[0].self_attn.num_heads),
        pre_norm=bool(encoder.cfg.encoder.normalize_before),
        learned_positions=isinstance(encoder.embed_positions, LearnedPositionalEmbedding),
        normalizes_embeddings=encoder.layernorm_embedding is not None,
        longest=(int(encoder.max_source_positions), int(decoder.max_target_positions)),
    )


def _require_stock(model: BaseFairseqModel, architecture: str, require: Require) -> None:
    """Refuse a model that has layers or weights other than those of fairseq's Transformer."""
    sides = (getattr(model, "encoder", None), getattr(model, "decoder", None))
    is_transformer = isinstance(sides[0], TransformerEncoderBase) and isinstance(
        sides[1], TransformerDecoderBase
    )
    require(is_transformer, f"architecture like `{architecture}`")
    for module in (*model.encoder.modules(), *model.decoder.modules()):
        package = type(module).__module__.partition(".")[0]
        require(package in ("torch", "fairseq"), f"architecture like `{architecture}`")
    compilers.require_no_additions(model)
    for name in model.state_dict():
        require(STATE.fullmatch(name), f"weight like `{name}`")


def _require_options(
    encoder: TransformerEncoderBase, decoder: TransformerDecoderBase, require: Require
) -> None:
    """Refuse options that change the computation without a weight of their own."""
    cfg = decoder.cfg
    for side in (encoder, decoder):
        require(isinstance(side.embed_positions, POSITIONS), "model without positions")
        norm_is_usual = (side.layer_norm is not None) == cfg.encoder.normalize_before
        require(norm_is_usual, "norm before the sublayers of one side, or without the final one")
        width = side.embed_tokens.embedding_dim
        scales = [float(layer.self_attn.scaling) for layer in side.layers]
        head_width = width // side.layers[0].self_attn.num_heads
        require(all(scale == head_width**-0.5 for scale in scales), "other scale of attention")
    require(
        type(encoder.embed_positions) is type(decoder.embed_positions),
        "positions that are learned on one side alone",
    )
    agree = cfg.encoder.normalize_before == cfg.decoder.normalize_before
    require(agree, "norm before the sublayers of one side alone")
    norms = encoder.layernorm_embedding, decoder.layernorm_embedding
    require((norms[0] is None) == (norms[1] is None), "norm of one side's embeddings alone")
    for option in ("cross_self_attention", "no_cross_attention"):
        require(not getattr(cfg, option, False), f"`--{option.replace('_', '-')}`")
    for name in ("project_in_dim", "project_out_dim", "adaptive_softmax"):
        require(getattr(decoder, name, None) is None, f"`{name}`")
    require(cfg.activation_fn in ACTIVATIONS, f"activation `{cfg.activation_fn}`")
