"""The Linformer as a model of fairseq: configuration, model, named architectures.

A Linformer is fairseq's Transformer in which the attentions over the source are replaced
(Pampaloni, section 3.2). Everything else is fairseq's own, including the flags.
"""

from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.incremental_decoding_utils import with_incremental_state
from fairseq.models import transformer
from fairseq.modules import FairseqDropout
from torch import Tensor

from fairseq_ext.base import configuration, models, padding
from fairseq_ext.base.configuration import option
from fairseq_ext.linformer import attention
from fairseq_ext.utils.errors import ConfigError, wrong_value

EncoderOut = dict[str, list[Tensor]]
IncrementalState = dict[str, dict[str, Tensor | None]]


@dataclass
class LinformerOptions(FairseqDataclass):
    """The options of a Linformer that a Transformer does not have."""

    linformer_k: str = option(
        "32",
        "number k of slots into which attention mixes the source tokens; or a comma-separated list "
        "with a number for each encoder layer, which the decoder layers use too, or for each "
        "encoder layer and then each decoder layer",
    )
    linformer_max_len: int = option(256, "length of the longest source, in tokens with </s>")
    linformer_sharing: ChoiceEnum(["headwise", "key-value", "layerwise"]) = option(
        "headwise",
        "sharing of the projections E (keys) and F (values): two for each layer "
        "(headwise), one for each layer with E = F (key-value), or one for all layers "
        "(layerwise); heads always share them",
    )
    linformer_projection: ChoiceEnum(attention.KINDS) = option(
        "learned",
        "kind of E and F: learned matrices (learned), the mean over max-len / k neighbours "
        "(mean-pool), or a learned convolution with kernel and stride max-len / k (convolution)",
    )
    linformer_init: ChoiceEnum(attention.INITS) = option(
        "identity",
        "initial values of learned E and F: token j goes to slot j mod k with weight 1/(1 + j // "
        "k) (identity), or all entries are drawn from N(0, 1/max-len) (normal)",
    )
    linformer_scale: ChoiceEnum(attention.SCALES) = option(
        "head-dim",
        "size of a head or of the model; attention scores are divided by its square root (the "
        "paper prints model-dim)",
    )


@dataclass
class LinformerConfig(LinformerOptions, configuration.TransformerModelConfig):
    """Options of ``linformer``; the defaults are the paper's sizes."""


def without_effect(cfg: Namespace) -> Iterator[tuple[str, str]]:
    """Yield each Linformer option that others turn off, with what it needs to have an effect."""
    if cfg.linformer_projection != "learned":
        yield "linformer_init", "`--linformer-projection learned`"


def slots_of_layers(cfg: LinformerOptions, decoder: bool = True) -> list[int]:
    """Parse ``--linformer-k``: the number of slots in each encoder layer, then each decoder layer.

    ``decoder`` says whether the model has a decoder.

    Raises:
        ConfigError: the option is no list of numbers, the list does not fit the layers, or layers
            that share E and F have different numbers.
    """
    encoder_layers, decoder_layers = cfg.encoder_layers, cfg.decoder_layers if decoder else 0
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
            f"{encoder_layers}, decoder {decoder_layers}), but has {len(slots)} instead."
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
    """Replace each attention over the source by Linformer's, which projects keys and values.

    With ``--linformer-sharing layerwise`` all attentions share one matrix for E and F.
    """
    layers = [("encoder", "self_attn", layer) for layer in encoder.layers]
    if decoder is not None:
        if cfg.encoder_embed_dim != cfg.decoder_embed_dim:
            raise ConfigError(
                "`--decoder-embed-dim` must equal `--encoder-embed-dim` "
                f"({cfg.encoder_embed_dim}), but is {cfg.decoder_embed_dim} instead."
            )
        layers += [("decoder", "encoder_attn", layer) for layer in decoder.layers]
    slots, projection = slots_of_layers(cfg, decoder is not None), None
    for count, (side, name, layer) in zip(slots, layers, strict=True):
        if projection is None or cfg.linformer_sharing != "layerwise":
            projection = attention.LengthProjection(
                count,
                cfg.linformer_max_len,
                shared=cfg.linformer_sharing != "headwise",
                kind=str(cfg.linformer_projection),
                init=str(cfg.linformer_init),
            )
        source_attention = SourceAttention(
            getattr(cfg, f"{side}_embed_dim"),
            getattr(cfg, f"{side}_attention_heads"),
            projection,
            dropout=cfg.attention_dropout,
            scale=str(cfg.linformer_scale),
        )
        setattr(layer, name, source_attention)


@with_incremental_state
class SourceAttention(attention.LinformerAttention):
    """Linformer attention with the interface of fairseq's attention and a cache.

    In incremental decoding the compressed keys and values ``[B, H, K, D]`` of a sentence are
    computed once, and all its hypotheses share them.
    """

    def __init__(self, *sizes: Any, dropout: float = 0.0, **options: Any) -> None:
        super().__init__(*sizes, **options)
        self.dropout = FairseqDropout(dropout, module_name=type(self).__name__)

    def forward(
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

        Return outputs ``[T, R, C]``, and None in the place of attention weights.

        Raises:
            ConfigError: ``attn_mask`` is not None; slots mix tokens, so no pair can be masked.
            DataError: a source is longer than ``--linformer-max-len``.
        """
        if attn_mask is not None:
            raise ConfigError(
                "Linformer attention cannot mask pairs of tokens, so `attn_mask` must be None."
            )
        if incremental_state is None:
            return self.attend(query, *self.compress(key, key_padding_mask)), None
        saved = self.get_incremental_state(incremental_state, "projected")
        if saved is None:
            keys, values = self.compress(key, key_padding_mask)
            # Only the number of its rows is needed later, so `rows` has no elements.
            saved = {"keys": keys, "values": values, "rows": query.new_empty(query.size(1), 0)}
            self.set_incremental_state(incremental_state, "projected", saved)
        return self.attend(query, saved["keys"], saved["values"]), None

    def reorder_incremental_state(
        self, incremental_state: IncrementalState, new_order: Tensor
    ) -> None:
        """Reorder the cached keys and values for beam search: take rows ``new_order`` ``[R']``."""
        saved = self.get_incremental_state(incremental_state, "projected")
        if saved is None:
            return
        keys = saved["keys"]
        sentences = padding.select_sentences(new_order, saved["rows"].size(0) // keys.size(0))
        reordered = {
            "keys": padding.keep_sentences(keys, 0, sentences),
            "values": padding.keep_sentences(saved["values"], 0, sentences),
            "rows": saved["rows"].index_select(0, new_order),
        }
        self.set_incremental_state(incremental_state, "projected", reordered)


class LinformerEncoder(transformer.TransformerEncoderBase):
    """fairseq's encoder, but with the words of each source moved to the left edge of the batch.

    Each column of E and F belongs to a position, but fairseq pads sources on the left by default,
    and always in fairseq-interactive and in hub use. The output is padded on the right.
    """

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor | None = None,
        return_all_hiddens: bool = False,
        token_embeddings: Tensor | None = None,
    ) -> EncoderOut:
        """Encode ``src_tokens`` ``[B, S]``, padded on either side, like fairseq's encoder."""
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
        """The number ``N`` of columns of the projections."""
        return self.layers[0].self_attn.projection.max_len

    def max_positions(self) -> int:
        """Return the length of the longest source, in tokens."""
        return min(super().max_positions(), self.linformer_max_len)

    def reorder_encoder_out(self, encoder_out: EncoderOut, new_order: Tensor) -> EncoderOut:
        """Return the encoder's output for the hypotheses ``new_order`` ``[R']`` of beam search.

        Encoder states are stored once per sentence, not once per hypothesis.
        """
        return padding.reorder_rows(encoder_out, new_order, "src_lengths")


@models.register_model("linformer", dataclass=LinformerConfig)
class LinformerModel(models.TranslationTransformer):
    """A Transformer with Linformer attention in the encoder and over the encoder's output."""

    encoder_class = LinformerEncoder
    # The reason in the message that refuses options which need alignments of tokens.
    no_alignment = "a Linformer attends to mixtures of source tokens, so no token has a weight"

    @classmethod
    def complete(cls, model: "LinformerModel", cfg: LinformerConfig) -> None:
        """Replace the attentions over the source by Linformer attention."""
        replace_attentions(cfg, model.encoder, model.decoder)

    @classmethod
    def without_effect(cls, cfg: Namespace) -> Iterator[tuple[str, str]]:
        """Yield each option that other options turn off, with what it needs to have an effect."""
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
