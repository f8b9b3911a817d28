"""The Linformer as a model of fairseq: configuration, model, named architectures.

A Linformer is fairseq's Transformer, but Linformer attention replaces the encoder's self-attention
and the decoder's cross-attention (Pampaloni, section 3.2). It has all options of fairseq's
Transformer.
Letters: ``T`` queries of ``R`` rows, ``S`` tokens of ``B`` sources, ``C`` channels, ``H`` heads of
``D`` channels, ``K`` slots.
"""

from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass

from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.models import transformer
from fairseq.modules import FairseqDropout
from torch import Tensor

from fairseq_ext.base import configuration, models, padding
from fairseq_ext.base.configuration import option
from fairseq_ext.linformer import attention
from fairseq_ext.utils.errors import ConfigError, wrong_value

IncrementalState = dict["SourceAttention", tuple[Tensor, Tensor, int]]


@dataclass
class LinformerOptions(FairseqDataclass):
    """The options of a Linformer that a Transformer does not have."""

    linformer_k: str = option(
        "32",
        "number k of slots into which attention mixes the source tokens; or a comma-separated list "
        "with one number for each encoder layer, which the decoder's layers then use too, or with "
        "one number for each encoder layer and then for each decoder layer",
    )
    linformer_max_len: int = option(256, "length of the longest source, in tokens with </s>")
    linformer_sharing: ChoiceEnum(["headwise", "key-value", "layerwise"]) = option(
        "headwise",
        "which of the matrices E (for keys) and F (for values) are the same: each layer has its "
        "own E and F (headwise), in each layer E = F (key-value), or E = F is the same in all "
        "layers (layerwise); the heads of a layer always share E and F",
    )
    linformer_projection: ChoiceEnum(["learned", "mean-pool", "convolution"]) = option(
        "learned",
        "kind of E and F: learned matrices (learned), the mean over max-len / k neighbours "
        "(mean-pool), or a learned convolution with kernel and stride max-len / k (convolution)",
    )
    linformer_init: ChoiceEnum(["identity", "normal"]) = option(
        "identity",
        "initial values of learned E and F: token j goes to slot j mod k with weight 1/(1 + j // "
        "k) (identity), or all entries are drawn from N(0, 1/max-len) (normal)",
    )
    linformer_scale: ChoiceEnum(["head-dim", "model-dim"]) = option(
        "head-dim",
        "attention scores are divided by the square root of the size of a head (head-dim) or of "
        "the model (model-dim, as the paper prints)",
    )


@dataclass
class LinformerConfig(LinformerOptions, configuration.TransformerModelConfig):
    """Options of the model ``linformer``; the defaults are the paper's sizes."""


def without_effect(cfg: Namespace) -> Iterator[tuple[str, str]]:
    """Yield each Linformer option that has no effect, and what would give it an effect."""
    if cfg.linformer_projection != "learned":
        yield "linformer_init", "`--linformer-projection learned`"


def slots_of_layers(cfg: LinformerOptions) -> list[int]:
    """Parse ``--linformer-k``: the slots of each encoder layer, then those of each decoder layer.

    Raises:
        ConfigError: the option is not a list of numbers, the list has a wrong length, or layers
            that share E and F (``--linformer-sharing layerwise``) differ in their number of slots.
    """
    encoder_layers, decoder_layers = cfg.encoder_layers, getattr(cfg, "decoder_layers", 0)
    try:
        slots = [int(value) for value in str(cfg.linformer_k).split(",")]
    except ValueError:
        raise wrong_value(
            "--linformer-k", "a number, or a list of numbers with commas", cfg.linformer_k
        ) from None
    if len(slots) == 1:
        slots *= encoder_layers + decoder_layers
    elif len(slots) == encoder_layers == decoder_layers:
        slots *= 2
    if len(slots) != encoder_layers + decoder_layers:
        raise ConfigError(
            "`--linformer-k` must be one number, or one for each layer (encoder "
            f"{encoder_layers}, decoder {decoder_layers}), but has {len(slots)} numbers instead."
        )
    if cfg.linformer_sharing == "layerwise" and len(set(slots)) > 1:
        raise wrong_value(
            "--linformer-k", "one number with `--linformer-sharing layerwise`", cfg.linformer_k
        )
    return slots


def replace_attentions(
    cfg: LinformerOptions,
    encoder: transformer.TransformerEncoderBase,
    decoder: transformer.TransformerDecoderBase | None = None,
) -> None:
    """Replace the encoder's self-attention and the decoder's cross-attention by Linformer's.

    With ``--linformer-sharing layerwise`` all attentions share one matrix, which is both E and F.
    Raise ConfigError if embedding dimensions differ, or ``--linformer-k`` is wrong.
    """
    layers = [(layer, "self_attn") for layer in encoder.layers]
    if decoder is not None:
        if cfg.encoder_embed_dim != cfg.decoder_embed_dim:
            raise ConfigError(
                "`--decoder-embed-dim` must equal `--encoder-embed-dim` "
                f"({cfg.encoder_embed_dim}), but is {cfg.decoder_embed_dim} instead."
            )
        layers += [(layer, "encoder_attn") for layer in decoder.layers]
    slots, projection = slots_of_layers(cfg), None
    for count, (layer, name) in zip(slots, layers, strict=True):
        if projection is None or cfg.linformer_sharing != "layerwise":
            projection = attention.LengthProjection(
                count,
                cfg.linformer_max_len,
                shared=cfg.linformer_sharing != "headwise",
                kind=str(cfg.linformer_projection),
                init=str(cfg.linformer_init),
            )
        stock, scale = getattr(layer, name), str(cfg.linformer_scale)
        source_attention = SourceAttention(
            stock.embed_dim, stock.num_heads, projection, scale=scale
        )
        # `--retain-dropout-modules` finds dropout modules by this name.
        source_attention.dropout = FairseqDropout(cfg.attention_dropout, SourceAttention.__name__)
        setattr(layer, name, source_attention)


class SourceAttention(attention.LinformerAttention):
    """Linformer attention over the source, with the interface of fairseq's attention.

    In incremental decoding the compressed keys and values ``[B, H, K, D]`` are computed once. All
    hypotheses of a sentence share them. The incremental state keeps them and the number of rows.
    """

    def forward(  # type: ignore[override]
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        incremental_state: IncrementalState | None = None,
        attn_mask: Tensor | None = None,
        **unused: bool,
    ) -> tuple[Tensor, None]:
        """Attend from ``query`` ``[T, R, C]`` to the source ``key`` ``[S, B, C]``.

        Return outputs ``[T, R, C]``, and None in the place of attention weights. ``value`` is not
        read, because keys and values are both computed from ``key``.

        Raises:
            ConfigError: ``attn_mask`` is not None; it cannot be applied, because slots mix tokens.
            DataError: a source is longer than ``--linformer-max-len``.
        """
        if attn_mask is not None:
            raise ConfigError(
                "Linformer attention cannot mask pairs of tokens, so `attn_mask` must be None."
            )
        if incremental_state is None:
            return self.attend(query, *self.compress(key, key_padding_mask)), None
        if self not in incremental_state:
            incremental_state[self] = *self.compress(key, key_padding_mask), query.size(1)
        keys, values, _ = incremental_state[self]
        return self.attend(query, keys, values), None

    def reorder_incremental_state(
        self, incremental_state: IncrementalState, new_order: Tensor
    ) -> None:
        """Reorder the cache in beam search: keep the sentences of the rows ``new_order`` ``[R']``.

        Keys and values have one item per sentence, not per row.
        """
        if self not in incremental_state:
            return
        keys, values, rows = incremental_state[self]
        sentences = padding.select_sentences(new_order, rows // keys.size(0))
        keys, values = (padding.keep_sentences(x, 0, sentences) for x in (keys, values))
        incremental_state[self] = keys, values, len(new_order)


class LinformerEncoder(padding.BeamSearchEncoder, transformer.TransformerEncoderBase):
    """fairseq's encoder for sources padded on either side; its output is padded on the right.

    Each source is moved to the left edge of the batch, because each column of E and F belongs to a
    position. fairseq pads on the left by default, and always in fairseq-interactive and hub use.
    """

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor | None = None,
        return_all_hiddens: bool = False,
        token_embeddings: Tensor | None = None,
    ) -> padding.EncoderOut:
        """Encode ``src_tokens`` ``[B, S]``; arguments and result are as in fairseq's encoder."""
        pads = src_tokens.eq(self.padding_idx)
        columns, width = padding.real_first(pads), pads.size(1)
        if width > self.linformer_max_len:  # drop columns that hold only pads
            width = max(1, int((~pads).sum(1).max()))
        src_tokens = padding.gather_columns(src_tokens, columns)[:, :width]
        if token_embeddings is not None:
            token_embeddings = padding.gather_columns(token_embeddings, columns)[:, :width]
        return super().forward(src_tokens, src_lengths, return_all_hiddens, token_embeddings)

    @property
    def linformer_max_len(self) -> int:
        """The number ``N`` of columns of E and F."""
        return self.layers[0].self_attn.projection.max_len

    def max_positions(self) -> int:
        return min(super().max_positions(), self.linformer_max_len)


@models.register_model("linformer", dataclass=LinformerConfig)
class LinformerModel(models.TranslationTransformer):
    """A Transformer with Linformer attention in the encoder and over the encoder's output."""

    encoder_class = LinformerEncoder
    # Why options that need alignments of tokens are refused: a part of the message.
    no_alignment = "a Linformer attends to mixtures of source tokens, so no token has a weight"

    @classmethod
    def complete(cls, model: "LinformerModel", cfg: LinformerConfig) -> None:
        """Replace the encoder's self-attention and the decoder's cross-attention by Linformer's."""
        replace_attentions(cfg, model.encoder, model.decoder)

    @classmethod
    def without_effect(cls, cfg: Namespace) -> Iterator[tuple[str, str]]:
        """Yield each option in ``cfg`` that has no effect, and what would give it an effect."""
        yield from super().without_effect(cfg)
        yield from without_effect(cfg)


# The sizes of fairseq's transformer_wmt_en_de and transformer_iwslt_de_en. The paper's model shares
# one embedding table for its 50,272 byte-level pieces.
models.register_architecture("linformer", "linformer_wmt_en_de", share_all_embeddings=True)
models.register_architecture(
    "linformer",
    "linformer_iwslt_de_en",
    encoder_ffn_embed_dim=1024,
    encoder_attention_heads=4,
    decoder_ffn_embed_dim=1024,
    decoder_attention_heads=4,
)
TINY = models.both_sides(128, 256, 4, layers=4)
models.register_architecture("linformer", "linformer_tiny", **TINY)
