"""Load fairseq's own Transformer for export, and refuse what other tools cannot express."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fairseq.data import Dictionary
from fairseq.models import BaseFairseqModel
from fairseq.models.transformer import TransformerDecoderBase, TransformerEncoderBase
from fairseq.modules import LearnedPositionalEmbedding, SinusoidalPositionalEmbedding

from fairseq_ext.checkpoints import bundle
from fairseq_ext.engine import unmodified
from fairseq_ext.model import trained
from fairseq_ext.text import pipeline
from fairseq_ext.utils.errors import ConfigError

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
        model: in evaluation mode.
        source, target: dictionaries.
        src, tgt: languages.
        folders: where its ``text.json`` may be.
        architecture: its name in fairseq.
        activation: of the feed-forward layers, one of :data:`ACTIVATIONS`.
        heads: of encoder and decoder.
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
    folders: Sequence[Path]
    architecture: str
    activation: str
    heads: tuple[int, int]
    pre_norm: bool
    learned_positions: bool
    normalizes_embeddings: bool
    longest: tuple[int, int]

    @property
    def has_joined_dictionary(self) -> bool:
        """Whether both languages have the same symbols with the same numbers."""
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

    def copy_text(self, folder: Path) -> None:
        """Copy the text pipeline if the model has one."""
        for home in self.folders:
            if (Path(home) / "text.json").is_file():
                pipeline.copy(home, folder)
                return


Require = Callable[[object, str], None]


def load(path: Path, data: Path, tool: str) -> StockTransformer:
    """Load a checkpoint or bundle, and refuse models that no other tool computes.

    Args:
        path: of the checkpoint or bundle.
        data: folder with its dictionaries.
        tool: the tool to export to, for messages.

    Raises:
        CheckpointError, DataError: it cannot be read, or has no dictionaries.
        ConfigError: it is not a Transformer of fairseq, or has options that ``tool`` lacks.
    """
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
        folders=(bundle.home(path), data),
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
    unmodified.require_no_additions(model)
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
