"""MUSE as a model of fairseq: configuration, encoder and decoder, named architectures.

The model is fairseq's Transformer, with the same flags, but its layers are MUSE blocks. Letters:
``T`` target and ``S`` source tokens, ``B`` sentences, ``C`` channels, ``H`` heads, ``V`` symbols.
"""

# Without `from __future__ import annotations`: fairseq reads the types of a configuration's fields.

from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from fairseq import utils
from fairseq.data import Dictionary
from fairseq.dataclass import ChoiceEnum
from fairseq.models.transformer import (
    TransformerConfig,
    TransformerDecoderBase,
    TransformerEncoderBase,
)
from fairseq.modules import FairseqDropout
from fairseq.modules.checkpoint_activations import checkpoint_wrapper
from torch import Tensor, nn

from fairseq_ext.base import configuration, models
from fairseq_ext.base.configuration import option
from fairseq_ext.base.padding import BeamSearchEncoder, keep_sentences, select_sentences
from fairseq_ext.muse.attention import Source
from fairseq_ext.muse.block import ParallelBlock
from fairseq_ext.muse.convolution import Past, kernels_of_layers
from fairseq_ext.muse.projections import FinalLinear
from fairseq_ext.training.loss import OutputLayer

IncrementalState = dict["DecoderBlock", tuple[Source, Past]]


@dataclass
class MuseConfig(configuration.TransformerModelConfig):
    """Options of the model ``muse``; the defaults are the paper's MUSE-base."""

    encoder_embed_dim: int = option(384, "encoder embedding dimension")
    encoder_ffn_embed_dim: int = option(768, "size of the encoder's feed-forward layers")
    encoder_layers: int = option(12, "number of encoder layers")
    encoder_attention_heads: int = option(
        4, "heads of each encoder layer, each with its own convolution kernels"
    )
    decoder_embed_dim: int = option(384, "decoder embedding dimension")
    decoder_ffn_embed_dim: int = option(768, "size of the decoder's feed-forward layers")
    decoder_layers: int = option(12, "number of decoder layers")
    decoder_attention_heads: int = option(
        4, "heads of each decoder layer, each with its own convolution kernels"
    )
    muse_kernels: str = option(
        "3,15",
        "kernel sizes of the convolutions: one size, or several with commas (3,15), whose outputs "
        "are summed with learned weights; slashes separate the sizes for groups of layers, from "
        "the lowest to the highest (3/7/15/31); `none` for MUSE-simple, without convolutions",
    )
    muse_convolution: ChoiceEnum(["dynamic", "ordinary"]) = option(
        "dynamic",
        "dynamic: convolve the attention's values with kernels that are predicted from these "
        "values; ordinary: convolve the layer's input with a fixed kernel over all channels",
    )
    muse_separate_projection: bool = option(
        False,
        "give the convolution a value projection of its own (default: it reads the attention's "
        "values)",
    )
    weight_dropout: float = option(0.1, "dropout probability for the convolution's kernels")
    input_dropout: float = option(
        0.0, "dropout probability for the input of self-attention and convolution"
    )
    muse_fused: bool = option(
        False,
        "for generation, fuse the matrices of a layer's branches into two (the paper's W_Enc and "
        "W_Dec), which is faster, with the same results. Any checkpoint of a MUSE can be fused: "
        "--model-overrides \"{'muse_fused': True}\"",
    )


def block_options(cfg: TransformerConfig, side: str) -> list[dict[str, Any]]:
    """Return the options of :class:`ParallelBlock` for each layer of ``encoder`` or ``decoder``."""
    sizes = getattr(cfg, side)
    ordinary = cfg.muse_convolution == "ordinary"
    kernels = kernels_of_layers(str(cfg.muse_kernels), sizes.layers, ordinary=ordinary)
    options = {
        "dim": sizes.embed_dim,
        "ffn_dim": sizes.ffn_embed_dim,
        "heads": sizes.attention_heads,
        "causal": side == "decoder",
        "source_dim": cfg.encoder.embed_dim if side == "decoder" else None,
        "ordinary": ordinary,
        "separate": cfg.muse_separate_projection,
        "normalize_before": sizes.normalize_before,
        "fused": cfg.muse_fused,
        "activation": utils.get_activation_fn(str(cfg.activation_fn)),
        "dropout": cfg.dropout,
        "input_dropout": cfg.input_dropout,
        "attention_dropout": cfg.attention_dropout,
        "activation_dropout": cfg.activation_dropout,
        "kernel_dropout": cfg.weight_dropout,
        # `--retain-dropout-modules` finds dropout modules by this name.
        "make_dropout": partial(FairseqDropout, module_name=ParallelBlock.__name__),
    }
    return [{**options, "kernel_sizes": kernel_sizes} for kernel_sizes in kernels]


class EncoderBlock(ParallelBlock):
    """:class:`ParallelBlock` with the interface of fairseq's encoder layers."""

    load_to_BT = False  # tells fairseq 0.12.2 that this is not a fused layer of torch

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str) -> None:
        """Leave the checkpoint as it is; fairseq's encoder calls this for each layer."""

    def forward(self, x: Tensor, encoder_padding_mask: Tensor | None) -> Tensor:  # type: ignore[override]
        """Compute the layer for ``x`` ``[S, B, C]``; the mask ``[B, S]`` is true on pads."""
        return super().forward(x, encoder_padding_mask)[0]


class DecoderBlock(ParallelBlock):
    """:class:`ParallelBlock` with the interface of fairseq's decoder layers.

    Between the steps of beam search, the incremental state keeps the keys and values of earlier
    positions and of the source. All rows of a sentence share the source's keys and values.
    """

    def forward(  # type: ignore[override]
        self,
        x: Tensor,
        encoder_out: Tensor,
        encoder_padding_mask: Tensor,
        incremental_state: IncrementalState | None,
        self_attn_mask: Tensor | None,
        self_attn_padding_mask: Tensor | None,
        **unused: bool,
    ) -> tuple[Tensor, Tensor, None]:
        """Compute the layer for ``x`` ``[T, R, C]`` and the encoder's output ``encoder_out``.

        Return states ``[T, R, C]``, attention weights over the source ``[H, R, T, S]``, and a None
        that fairseq expects. R is the number of hypotheses of all B sentences; in training R = B.
        ``encoder_out`` is ``[S, B, C']``, with the encoder's ``C'`` channels. With
        ``incremental_state``, ``x`` is only the newest position. ``self_attn_mask`` ``[T, T]`` is
        added to the scores. Padding masks (``[B, S]`` and ``[R, T]``) are true on pads.
        """
        if incremental_state is None:
            source = self.source(encoder_out, encoder_padding_mask)
            x, weights = super().forward(x, self_attn_padding_mask, self_attn_mask, source)
            return x, weights.transpose(0, 1), None
        if self not in incremental_state:
            mask = encoder_padding_mask if encoder_padding_mask.any() else None
            incremental_state[self] = self.source(encoder_out, mask), {}
        source, past = incremental_state[self]
        x, weights = super().forward(x, source=source, past=past)
        return x, weights.transpose(0, 1), None

    def reorder_incremental_state(
        self, incremental_state: IncrementalState, new_order: Tensor
    ) -> None:
        """Reorder the cache in beam search: keep the rows with indices ``new_order`` ``[R']``.

        For the source's keys and values, keep the sentences of these rows.
        """
        if self not in incremental_state:
            return
        source, past = incremental_state[self]
        rows, sentences = (len(tensor) // self.attention.heads for tensor in (past["0"], source[0]))
        for name, value in past.items():
            past[name] = value.unflatten(0, (rows, -1)).index_select(0, new_order).flatten(0, 1)
        if sentences > 1:
            order = select_sentences(new_order, rows // sentences)
            source = Source._make(
                value
                if value is None
                else keep_sentences(value.unflatten(0, (sentences, -1)), 0, order).flatten(0, 1)
                for value in source
            )
            incremental_state[self] = source, past


class MuseEncoder(BeamSearchEncoder, TransformerEncoderBase):
    """fairseq's encoder, whose layers are :class:`EncoderBlock`."""

    def __init__(
        self, cfg: TransformerConfig, dictionary: Dictionary, embed_tokens: nn.Embedding
    ) -> None:
        self._options = block_options(cfg, "encoder")
        super().__init__(cfg, dictionary, embed_tokens)

    def build_encoder_layer(self, cfg: TransformerConfig) -> nn.Module:
        """Build the next layer; fairseq calls this once for each layer."""
        layer = EncoderBlock(**self._options.pop(0))
        return checkpoint_wrapper(layer) if cfg.checkpoint_activations else layer


class MuseDecoder(TransformerDecoderBase):
    """fairseq's decoder, whose layers are :class:`DecoderBlock`."""

    def __init__(
        self, cfg: TransformerConfig, dictionary: Dictionary, embed_tokens: nn.Embedding
    ) -> None:
        self._options = block_options(cfg, "decoder")
        super().__init__(cfg, dictionary, embed_tokens)
        self.need_attn = True
        self._output: FinalLinear | None = None

    def build_decoder_layer(
        self, cfg: TransformerConfig, no_encoder_attn: bool = False
    ) -> nn.Module:
        """Build the next layer; fairseq calls this once for each layer."""
        layer = DecoderBlock(**self._options.pop(0))
        return checkpoint_wrapper(layer) if cfg.checkpoint_activations else layer

    def extract_features(self, *args: Any, **kwargs: Any) -> tuple[Tensor, dict[str, Any]]:
        """Compute the output layer's input ``[B, T, C]``; arguments are as in fairseq's decoder.

        Also return ``{"attn": [weights]}``, with attention weights ``[B, T, S]``, or None in their
        place if generation does not need them.
        """
        features, extra = super().extract_features(*args, **kwargs)
        return features, extra if self.need_attn else {**extra, "attn": [None]}

    def output_layer(self, features: Tensor) -> Tensor:
        """Map features ``[B, T, C]`` to logits ``[B, T, V]``."""
        return super().output_layer(features) if self._output is None else self._output(features)

    def last_product(self, features: Tensor) -> OutputLayer:
        """Return the output layer's input and weight; the loss computes logits from them."""
        return OutputLayer(features, self.output_projection.weight)

    def make_generation_fast_(self, need_attn: Any = False, **unused: Any) -> None:
        """Prepare for generation; fairseq calls this.

        ``need_attn``, set by ``--print-alignment``, keeps the attention among the results. In a
        fused model, the output layer becomes a :class:`FinalLinear`.
        """
        self.need_attn = bool(need_attn)
        if self.cfg.muse_fused:
            self._output = FinalLinear(self.output_projection.weight)

    def _load_from_state_dict(self, *arguments: Any) -> None:
        """Load other weights, and forget the output layer that was prepared with earlier ones."""
        self._output = None
        super()._load_from_state_dict(*arguments)


@models.register_model("muse", dataclass=MuseConfig)
class MuseModel(models.TranslationTransformer):
    """A Transformer with MUSE blocks in encoder and decoder."""

    encoder_class, decoder_class = MuseEncoder, MuseDecoder

    @classmethod
    def without_effect(cls, cfg: Namespace) -> Iterator[tuple[str, str]]:
        """Yield each option in ``cfg`` that has no effect, and what would give it an effect."""
        yield from super().without_effect(cfg)
        if cfg.muse_kernels == "none":
            yield "muse_convolution", "convolutions (`--muse-kernels`)"
        if cfg.muse_kernels == "none" or cfg.muse_convolution != "dynamic":
            yield "muse_separate_projection", "dynamic convolutions"
            yield "weight_dropout", "dynamic convolutions"


models.register_architecture("muse", "muse_base")
models.register_architecture("muse", "muse_simple_base", muse_kernels="none")

LARGE: dict[str, Any] = models.both_sides(768, 3072, 16)
models.register_architecture("muse", "muse_large", **LARGE)
models.register_architecture("muse", "muse_simple_large", **LARGE, muse_kernels="none")

# The paper's four tasks: dropout as in section 3.2.2, all else as in the authors' own commands.
models.register_architecture("muse", "muse_iwslt_de_en", dropout=0.4)
models.register_architecture("muse", "muse_iwslt_en_vi", dropout=0.3)
WMT = {**LARGE, "share_all_embeddings": True, "attention_dropout": 0.1, "input_dropout": 0.1}
models.register_architecture("muse", "muse_wmt_en_de", **WMT, dropout=0.3)
models.register_architecture("muse", "muse_wmt_en_fr", **WMT)

models.register_architecture("muse", "muse_tiny", **models.both_sides(128, 256, 4, layers=4))
