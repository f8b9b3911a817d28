"""The encoder and decoder of MUSE: fairseq's Transformer classes with MUSE blocks as layers."""

from collections.abc import Iterator
from typing import Any

from fairseq import utils
from fairseq.data import Dictionary
from fairseq.incremental_decoding_utils import with_incremental_state
from fairseq.models.transformer import (
    TransformerConfig,
    TransformerDecoderBase,
    TransformerEncoderBase,
)
from fairseq.modules import FairseqDropout
from fairseq.modules.checkpoint_activations import checkpoint_wrapper
from torch import Tensor, nn

from fairseq_ext.base.dropout import dropout, is_active
from fairseq_ext.base.padding import keep_sentences, reorder_rows, select_sentences
from fairseq_ext.muse.attention import Source
from fairseq_ext.muse.block import Dropouts, ParallelBlock
from fairseq_ext.muse.convolution import kernels_of_layers
from fairseq_ext.muse.projections import OneDnnProduct
from fairseq_ext.training.loss import OutputLayer

EncoderOut = dict[str, list[Tensor]]
IncrementalState = dict[str, Any]


def block_options(cfg: TransformerConfig, side: str) -> Iterator[dict[str, Any]]:
    """Yield the arguments of :class:`ParallelBlock` for each layer of the encoder or decoder."""
    sizes = getattr(cfg, side)
    ordinary = cfg.muse_convolution == "ordinary"
    kernels = kernels_of_layers(str(cfg.muse_kernels), sizes.layers, ordinary=ordinary)
    for kernel_sizes in kernels:
        yield {
            "dim": sizes.embed_dim,
            "ffn_dim": sizes.ffn_embed_dim,
            "heads": sizes.attention_heads,
            "kernel_sizes": kernel_sizes,
            "causal": side == "decoder",
            "source_dim": cfg.encoder.embed_dim if side == "decoder" else None,
            "ordinary": ordinary,
            "separate": cfg.muse_separate_projection,
            "normalize_before": sizes.normalize_before,
            "fused": cfg.muse_fused,
            "activation": utils.get_activation_fn(str(cfg.activation_fn)),
            "dropouts": Dropouts(
                branch=cfg.dropout,
                input=cfg.input_dropout,
                attention=cfg.attention_dropout,
                activation=cfg.activation_dropout,
                kernel=cfg.weight_dropout,
            ),
            "make_dropout": BlockDropout,
        }


class BlockDropout(FairseqDropout):
    """A faster dropout on the CPU; ``--retain-dropout-modules`` finds it by the block's name."""

    def __init__(self, p: float) -> None:
        super().__init__(p, module_name=ParallelBlock.__name__)

    def forward(self, x: Tensor, inplace: bool = False) -> Tensor:
        """Drop values of ``x``, which may have any shape."""
        if x.is_cuda or not is_active(self):
            return super().forward(x, inplace)
        return dropout(x, self.p)


class EncoderBlock(ParallelBlock):
    """:class:`ParallelBlock` with the interface of fairseq's encoder layers."""

    load_to_BT = False  # tells fairseq 0.12.2 that this is not a fused layer of torch

    def forward(self, x: Tensor, encoder_padding_mask: Tensor | None) -> Tensor:
        """Map ``[S, B, C]`` to ``[S, B, C]``, with pads ``[B, S]``."""
        return super().forward(x, encoder_padding_mask)[0]


@with_incremental_state
class DecoderBlock(ParallelBlock):
    """:class:`ParallelBlock` with the interface of fairseq's decoder layers.

    Between the steps of beam search it keeps keys and values of earlier positions and of the
    source. All rows of a sentence share the source's keys and values.
    """

    def forward(
        self,
        x: Tensor,
        encoder_out: Tensor,
        encoder_padding_mask: Tensor,
        incremental_state: IncrementalState | None,
        self_attn_mask: Tensor | None,
        self_attn_padding_mask: Tensor | None,
        **unused: bool,
    ) -> tuple[Tensor, Tensor, None]:
        """Map x to ``[T, R, C]``; also return source weights ``[H, R, T, S]`` and None."""
        if incremental_state is None:
            source = self.source(encoder_out, encoder_padding_mask)
            x, weights = super().forward(x, self_attn_padding_mask, self_attn_mask, source)
            return x, weights.transpose(0, 1), None
        state = self.get_incremental_state(incremental_state, "state")
        if state is None:
            mask = encoder_padding_mask if encoder_padding_mask.any() else None
            state = self.source(encoder_out, mask), {}
            self.set_incremental_state(incremental_state, "state", state)
        source, past = state
        x, weights = super().forward(x, source=source, past=past)
        return x, weights.transpose(0, 1), None

    def reorder_incremental_state(
        self, incremental_state: IncrementalState, new_order: Tensor
    ) -> None:
        """Reorder the state for beam search: take rows ``new_order`` ``[R']`` and their sources."""
        state = self.get_incremental_state(incremental_state, "state")
        if state is None:
            return
        source, past = state
        rows, sentences = (len(tensor) // self.attention.heads for tensor in (past["0"], source[0]))
        for name, value in past.items():
            past[name] = value.unflatten(0, (rows, -1)).index_select(0, new_order).flatten(0, 1)
        if sentences > 1:
            order = select_sentences(new_order, rows // sentences)
            source = Source(
                *(
                    value
                    if value is None
                    else keep_sentences(value.unflatten(0, (sentences, -1)), 0, order).flatten(0, 1)
                    for value in source
                )
            )
            self.set_incremental_state(incremental_state, "state", (source, past))


class MuseEncoder(TransformerEncoderBase):
    """fairseq's encoder with layers of :class:`EncoderBlock`."""

    def __init__(
        self, cfg: TransformerConfig, dictionary: Dictionary, embed_tokens: nn.Embedding
    ) -> None:
        self._options = block_options(cfg, "encoder")
        super().__init__(cfg, dictionary, embed_tokens)
        del self._options  # a generator, which cannot be copied with the model (--store-ema)

    def build_encoder_layer(self, cfg: TransformerConfig) -> nn.Module:
        """Build the next layer; fairseq calls this."""
        layer = EncoderBlock(**next(self._options))
        return checkpoint_wrapper(layer) if cfg.checkpoint_activations else layer

    def reorder_encoder_out(self, encoder_out: EncoderOut, new_order: Tensor) -> EncoderOut:
        """Select rows ``new_order`` ``[R']``; the rows of a sentence share its stored tensors."""
        return reorder_rows(encoder_out, new_order, "src_lengths")


class MuseDecoder(TransformerDecoderBase):
    """fairseq's decoder with layers of :class:`DecoderBlock` and its own incremental decoding."""

    def __init__(
        self, cfg: TransformerConfig, dictionary: Dictionary, embed_tokens: nn.Embedding
    ) -> None:
        self._options = block_options(cfg, "decoder")
        super().__init__(cfg, dictionary, embed_tokens)
        del self._options  # a generator, which cannot be copied with the model (--store-ema)
        self.need_attn = True
        self._output = OneDnnProduct()

    def build_decoder_layer(
        self, cfg: TransformerConfig, no_encoder_attn: bool = False
    ) -> nn.Module:
        """Build the next layer; fairseq calls this."""
        layer = DecoderBlock(**next(self._options))
        return checkpoint_wrapper(layer) if cfg.checkpoint_activations else layer

    def extract_features(self, *args: Any, **kwargs: Any) -> tuple[Tensor, dict[str, Any]]:
        """Compute features ``[B, T, C]``, and attention ``[B, T, S]`` if generation needs it."""
        features, extra = super().extract_features(*args, **kwargs)
        return features, extra if self.need_attn else {**extra, "attn": [None]}

    def output_layer(self, features: Tensor) -> Tensor:
        """Map features ``[B, T, C]`` to logits ``[B, T, V]``."""
        return self._output(features, self.output_projection.weight, None)

    def last_product(self, features: Tensor) -> OutputLayer:
        """Return the weights of :meth:`output_layer`, which the loss computes in chunks."""
        return OutputLayer(features, self.output_projection.weight)

    def make_generation_fast_(self, need_attn: Any = False, **unused: Any) -> None:
        """Make attention depend on ``--print-alignment``, and pack the weights of a fused model."""
        self.need_attn = bool(need_attn)
        self._output.enabled = self.cfg.muse_fused
