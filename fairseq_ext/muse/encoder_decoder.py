"""The encoder and decoder of MUSE: fairseq's Transformer classes with MUSE blocks as layers."""

from collections.abc import Iterator
from typing import Any

import torch
from fairseq import utils
from fairseq.data import Dictionary
from fairseq.models.transformer import (
    TransformerConfig,
    TransformerDecoderBase,
    TransformerEncoderBase,
)
from fairseq.modules import FairseqDropout
from fairseq.modules.checkpoint_activations import checkpoint_wrapper
from torch import Tensor, nn

from fairseq_ext.base.dropout import dropout, is_active
from fairseq_ext.base.padding import reorder_rows
from fairseq_ext.muse.attention import DecoderState
from fairseq_ext.muse.block import Dropouts, ParallelBlock
from fairseq_ext.muse.convolution import kernels_of_layers
from fairseq_ext.muse.projections import OneDnnProduct
from fairseq_ext.training.loss import OutputLayer

EncoderOut = dict[str, list[Tensor]]
IncrementalState = dict[str, dict[str, Any]]
Extra = dict[str, list[Tensor | None]]


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
    """fairseq's dropout, faster on the CPU; ``--retain-dropout-modules`` takes the block's name."""

    def __init__(self, p: float) -> None:
        super().__init__(p, module_name=ParallelBlock.__name__)

    def forward(self, x: Tensor, inplace: bool = False) -> Tensor:
        """Drop values of ``x``, which may have any shape."""
        if x.is_cuda or not is_active(self):
            return super().forward(x, inplace)
        return dropout(x, self.p)


class EncoderBlock(ParallelBlock):
    """:class:`ParallelBlock` with the interface of fairseq's encoder layers."""

    load_to_BT = False  # fairseq 0.12.2 reads this: it is not a fused layer of torch

    def forward(self, x: Tensor, encoder_padding_mask: Tensor | None) -> Tensor:
        """Map ``[S, B, C]`` to ``[S, B, C]``, with pads ``[B, S]``."""
        return super().forward(x, encoder_padding_mask)[0]


class DecoderBlock(ParallelBlock):
    """:class:`ParallelBlock` with the interface of fairseq's decoder layers (whole sentences)."""

    def forward(
        self,
        x: Tensor,
        encoder_out: Tensor,
        encoder_padding_mask: Tensor | None,
        incremental_state: None,
        self_attn_mask: Tensor | None,
        self_attn_padding_mask: Tensor | None,
        **unused: bool,
    ) -> tuple[Tensor, Tensor, None]:
        """Map ``[T, B, C]`` to itself; also return source weights ``[H, B, T, S]`` and None."""
        source = self.source(encoder_out, encoder_padding_mask)
        x, weights = super().forward(x, self_attn_padding_mask, self_attn_mask, source)
        return x, weights.transpose(0, 1), None


class MuseEncoder(TransformerEncoderBase):
    """fairseq's encoder with layers of :class:`EncoderBlock`."""

    def __init__(
        self, cfg: TransformerConfig, dictionary: Dictionary, embed_tokens: nn.Embedding
    ) -> None:
        self._options = block_options(cfg, "encoder")
        super().__init__(cfg, dictionary, embed_tokens)
        del self._options  # a generator, which cannot be copied with the model (--store-ema)

    def build_encoder_layer(self, cfg: TransformerConfig) -> nn.Module:
        """Build the next layer; fairseq's hook."""
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
        """Build the next layer; fairseq's hook."""
        layer = DecoderBlock(**next(self._options))
        return checkpoint_wrapper(layer) if cfg.checkpoint_activations else layer

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        encoder_out: EncoderOut,
        incremental_state: IncrementalState | None = None,
        full_context_alignment: bool = False,
        alignment_layer: int | None = None,
        alignment_heads: int | None = None,
    ) -> tuple[Tensor, Extra]:
        """Compute features ``[B, T, C]`` and attention; only one word with ``incremental_state``.

        Incremental steps write into one cache, so they have no gradient.

        The second part has ``attn`` ``[B, T, S]``: the mean over the heads of the last layer or of
        ``alignment_layer``. It is None if generation does not need it.
        """
        if incremental_state is not None:
            features, weights = self._step(
                prev_output_tokens, encoder_out, incremental_state, alignment_layer
            )
            weights = weights[:, :alignment_heads].mean(1).reshape(len(features), 1, -1)
            extra: Extra = {"attn": [weights], "inner_states": []}
        else:
            features, extra = super().extract_features(
                prev_output_tokens,
                one_row_each(encoder_out, prev_output_tokens.size(0)),
                None,
                full_context_alignment,
                alignment_layer,
                alignment_heads,
            )
        if not self.need_attn:
            extra["attn"] = [None]
        return features, extra

    @torch.no_grad()
    def _step(
        self,
        prev_output_tokens: Tensor,
        encoder_out: EncoderOut,
        incremental_state: IncrementalState,
        alignment_layer: int | None,
    ) -> tuple[Tensor, Tensor]:
        """Decode one step: ``[R, 1, C]``, and weights over the source ``[B, H, R / B, S]``."""
        x = self.embed_scale * self.embed_tokens(prev_output_tokens[:, -1])  # [R, C]
        if self.embed_positions is not None:
            x = x + self.embed_positions(prev_output_tokens, incremental_state)[:, -1]
        if self.layernorm_embedding is not None:
            x = self.layernorm_embedding(x)
        x = self.dropout_module(x)
        state = self.get_incremental_state(incremental_state, "state")
        if state is None:
            state = self._first_state(x, encoder_out)
            self.set_incremental_state(incremental_state, "state", state)
        alignment_index = self.num_layers - 1 if alignment_layer is None else alignment_layer
        weights = None
        layers = zip(self.layers, state.extend(), state.sources, strict=True)
        for index, (layer, cache, source) in enumerate(layers):
            x, of_layer = layer.step(x, cache, source)
            weights = of_layer if index == alignment_index else weights
        if self.layer_norm is not None:
            x = self.layer_norm(x)
        return x.unsqueeze(1), weights

    def _first_state(self, x: Tensor, encoder_out: EncoderOut) -> DecoderState:
        encoded, mask = encoder_out["encoder_out"][0], encoder_out["encoder_padding_mask"][0]
        mask = mask if mask.any() else None
        sources = [layer.source(encoded, mask) for layer in self.layers]
        first, heads = self.layers[0], self.layers[0].attention.heads
        shape = (self.num_layers, first.cached_parts, x.size(0), heads, x.size(1) // heads)
        return DecoderState(shape, sources[0].keys, sources)

    def output_layer(self, features: Tensor) -> Tensor:
        """Map features ``[B, T, C]`` to logits ``[B, T, V]``."""
        return self._output(features, self.output_projection.weight, None)

    def last_product(self, features: Tensor) -> OutputLayer:
        """Return the weights of :meth:`output_layer`, which the loss computes in chunks."""
        return OutputLayer(features, self.output_projection.weight)

    def reorder_incremental_state(
        self, incremental_state: IncrementalState, new_order: Tensor
    ) -> None:
        """Reorder the cache for beam search."""
        state = self.get_incremental_state(incremental_state, "state")
        if state is not None:
            state.reorder(new_order)

    def make_generation_fast_(self, need_attn: Any = False, **unused: Any) -> None:
        """Make attention depend on ``--print-alignment``, and pack the weights of a fused model."""
        self.need_attn = bool(need_attn)
        self._output.enabled = self.cfg.muse_fused


def one_row_each(encoder_out: EncoderOut, rows: int) -> EncoderOut:
    """Copy the encoder's output for each row, if several of the ``rows`` share a sentence."""
    encoded, mask = encoder_out["encoder_out"][0], encoder_out["encoder_padding_mask"][0]
    group = rows // encoded.size(1)
    if group == 1:
        return encoder_out
    return {
        **encoder_out,
        "encoder_out": [encoded.repeat_interleave(group, dim=1)],
        "encoder_padding_mask": [mask.repeat_interleave(group, dim=0)],
    }
