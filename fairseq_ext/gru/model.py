"""The GRU with attention as a model of fairseq: configuration, model, named architectures.

Letters: ``B`` sentences, ``R`` rows (hypotheses), ``S`` source and ``T`` target tokens, ``V``
symbols; sizes ``H`` of a state, ``C`` of an annotation, ``O`` of the output layer's input.
"""

from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.dataclass import ChoiceEnum
from fairseq.models import FairseqEncoder, FairseqEncoderDecoderModel, FairseqIncrementalDecoder
from fairseq.modules import FairseqDropout
from fairseq.tasks import FairseqTask
from torch import Tensor, nn

from fairseq_ext.base import configuration, models, padding
from fairseq_ext.base.configuration import option
from fairseq_ext.gru.attention import ATTENTION_TYPES
from fairseq_ext.gru.decoder import AttentiveGRU, Source, State
from fairseq_ext.gru.recurrence import BidirectionalGRU, xavier_uniform_per_gate_
from fairseq_ext.training.loss import OutputLayer

IncrementalState = dict["GRUAttentionDecoder", tuple[State, Tensor]]


@dataclass
class GRUAttentionConfig(configuration.TranslationModelConfig):
    """Options of the model ``gru_attention``; all sizes but those of embeddings are the paper's."""

    encoder_hidden_size: int = option(
        256, "size of the encoder's GRU in each of its two directions"
    )
    decoder_hidden_size: int = option(256, "size of the decoder's GRU")
    attention_dim: int = option(256, "size of the hidden layer of --attention-type mlp")
    attention_type: ChoiceEnum(list(ATTENTION_TYPES)) = option(
        "mlp",
        "score of decoder state s and annotation h: v tanh(W [s; h] + b) (mlp), s W h "
        "(general), or s h (dot; --decoder-hidden-size must be twice --encoder-hidden-size)",
    )
    decoder_order: ChoiceEnum(["bahdanau", "luong"]) = option(
        "bahdanau",
        "bahdanau: attend with the state before the GRU's step, which then reads the context; "
        "luong: attend with the state after the step; the attentional vector is read by the next "
        "step",
    )
    no_input_feeding: bool = option(
        False, "let the decoder's GRU read only the previous word; trains much faster"
    )


@models.register_model("gru_attention", dataclass=GRUAttentionConfig)
class GRUAttentionModel(FairseqEncoderDecoderModel):
    """A model with a bidirectional GRU encoder and an attentive GRU decoder."""

    @classmethod
    def build_model(cls, cfg: GRUAttentionConfig, task: FairseqTask) -> "GRUAttentionModel":
        """Build the model for a task's dictionaries.

        Raise ConfigError if options exclude each other.
        """
        cfg = configuration.with_defaults(cfg, GRUAttentionConfig, task)
        source, target = task.source_dictionary, task.target_dictionary
        of_source = of_target = models.build_embedding(source, cfg.encoder_embed_dim)
        if cfg.share_all_embeddings:
            models.require_shareable(cfg, source, target)
        else:
            of_target = models.build_embedding(target, cfg.decoder_embed_dim)
        encoder = GRUEncoder(cfg, source, of_source)
        return cls(encoder, GRUAttentionDecoder(cfg, target, of_target))

    @staticmethod
    def without_effect(cfg: Namespace) -> Iterator[tuple[str, str]]:
        """Yield each option in ``cfg`` that has no effect, and what would give it an effect."""
        if cfg.attention_type != "mlp":
            yield "attention_dim", "`--attention-type mlp`"


class GRUEncoder(padding.BeamSearchEncoder, FairseqEncoder):
    """An encoder: embedding, bidirectional GRU, and a layer for the decoder's first state."""

    by_row = "hidden"

    def __init__(
        self, cfg: GRUAttentionConfig, dictionary: Dictionary, embed_tokens: nn.Embedding
    ) -> None:
        super().__init__(dictionary)
        self.max_source_positions = cfg.max_source_positions
        self.padding_idx = dictionary.pad()
        self.embed_tokens = embed_tokens
        self.dropout = FairseqDropout(cfg.dropout, module_name=type(self).__name__)
        self.gru = BidirectionalGRU(cfg.encoder_embed_dim, cfg.encoder_hidden_size)
        self.bridge = nn.Linear(2 * cfg.encoder_hidden_size, cfg.decoder_hidden_size)
        models.init_linear_(self.bridge)

    def forward(
        self, src_tokens: Tensor, src_lengths: Tensor | None = None, **unused: Any
    ) -> padding.EncoderOut:
        """Encode ``src_tokens`` ``[B, S]``, padded on either side; lengths need not be sorted.

        Return a dictionary of one-item lists, as in fairseq:

        - ``encoder_out``: the annotations ``[S, B, C]``, in the order of ``src_tokens``, 0 on pads;
        - ``encoder_padding_mask``: ``[B, S]``, true on pads;
        - ``hidden``: the decoder's first state ``s_0``, ``[B, H]``;
        - ``src_lengths``: ``[B, 1]``.
        """
        padding_mask = src_tokens.eq(self.padding_idx)
        embedded = self.dropout(self.embed_tokens(src_tokens))
        annotations, final = self.gru(embedded, padding_mask)
        hidden = torch.tanh(self.bridge(final))  # s_0
        return {
            "encoder_out": [self.dropout(annotations).transpose(0, 1)],
            "encoder_padding_mask": [padding_mask],
            "hidden": [hidden],
            "src_lengths": [(~padding_mask).sum(1, keepdim=True).int()],
        }

    def max_positions(self) -> int:
        return self.max_source_positions


class GRUAttentionDecoder(FairseqIncrementalDecoder):
    """A decoder: embedding, recurrence with attention (:class:`AttentiveGRU`), output layer."""

    def __init__(
        self, cfg: GRUAttentionConfig, dictionary: Dictionary, embed_tokens: nn.Embedding
    ) -> None:
        super().__init__(dictionary)
        self.max_target_positions = cfg.max_target_positions
        self.need_attn = True
        self.embed_tokens = embed_tokens
        self.dropout = FairseqDropout(cfg.dropout, module_name=type(self).__name__)
        self.recurrence = AttentiveGRU(
            cfg.decoder_embed_dim,
            cfg.decoder_hidden_size,
            2 * cfg.encoder_hidden_size,
            cfg.attention_dim,
            attention_type=str(cfg.attention_type),
            order=str(cfg.decoder_order),
            input_feeding=not cfg.no_input_feeding,
        )
        self.tied = cfg.share_decoder_input_output_embed or cfg.share_all_embeddings
        # A tied output matrix has the embedding's width, so a layer projects the features to it.
        self.to_embedding = (
            nn.Linear(self.recurrence.output_dim, cfg.decoder_embed_dim) if self.tied else None
        )
        self.output_projection = nn.Linear(
            cfg.decoder_embed_dim if self.tied else self.recurrence.output_dim, len(dictionary)
        )
        for module in self.recurrence.modules():
            if isinstance(module, nn.Linear):
                models.init_linear_(module)
        xavier_uniform_per_gate_(self.recurrence.gru)
        if self.to_embedding is not None:
            models.init_linear_(self.to_embedding)
        models.init_linear_(self.output_projection)
        if self.tied:
            self.output_projection.weight = embed_tokens.weight

    def forward(
        self,
        prev_output_tokens: Tensor,
        encoder_out: padding.EncoderOut,
        incremental_state: IncrementalState | None = None,
        features_only: bool = False,
        **unused: Any,
    ) -> tuple[Tensor, dict[str, list[Tensor | None]]]:
        """Compute logits ``[B, T, V]``; if ``features_only``, the output layer's input instead.

        With ``incremental_state``, only the last token of each row is read, and logits are
        ``[R, 1, V]``. Also return ``{"attn": [weights]}``, with attention weights ``[B, T, S]``, or
        None in their place if generation does not need them.
        """
        features, extra = self.extract_features(prev_output_tokens, encoder_out, incremental_state)
        return (features if features_only else self.output_layer(features)), extra

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        encoder_out: padding.EncoderOut,
        incremental_state: IncrementalState | None = None,
        **unused: Any,
    ) -> tuple[Tensor, dict[str, list[Tensor | None]]]:
        """Compute the output layer's input ``[B, T, O]``, and attention as in :meth:`forward`."""
        annotations = encoder_out["encoder_out"][0].transpose(0, 1)
        padding_mask, hidden = encoder_out["encoder_padding_mask"][0], encoder_out["hidden"][0]
        if incremental_state is None:
            embedded = self.dropout(self.embed_tokens(prev_output_tokens)).transpose(0, 1)
            source = self.recurrence.source(annotations, padding_mask)
            features, weights = self.recurrence(embedded, hidden, source)
        else:
            embedded = self.dropout(self.embed_tokens(prev_output_tokens[:, -1]))  # [R, E]
            if self not in incremental_state:
                keys = self.recurrence.attention.keys(annotations)
                incremental_state[self] = self.recurrence.initial(hidden), keys
            state, keys = incremental_state[self]
            source = Source(annotations, keys, padding_mask)
            features, weights, state = self.recurrence.step(embedded, state, source)
            incremental_state[self] = state, keys
            features, weights = features.unsqueeze(0), weights.unsqueeze(0)
        attention = weights.transpose(0, 1).contiguous() if self.need_attn else None
        return self.dropout(features.transpose(0, 1)), {"attn": [attention]}

    def output_layer(self, features: Tensor) -> Tensor:
        """Map features ``[B, T, O]`` to logits ``[B, T, V]``: ``W_o features + b_o``.

        If ``W_o`` is the embedding table, features are first projected to an embedding's size.
        """
        return self.output_projection(self.last_product(features).features)

    def last_product(self, features: Tensor) -> OutputLayer:
        """Return the output layer's input, weight and bias; the loss computes logits from them."""
        outputs = features if self.to_embedding is None else self.to_embedding(features)
        return OutputLayer(outputs, self.output_projection.weight, self.output_projection.bias)

    def reorder_incremental_state(
        self, incremental_state: IncrementalState, new_order: Tensor
    ) -> None:
        """Keep the cached states of rows ``new_order``, and their sentences' keys (beam search)."""
        if self not in incremental_state:
            return
        state, keys = incremental_state[self]
        sentences = padding.select_sentences(new_order, state.hidden.size(0) // keys.size(0))
        state = State._make(None if x is None else x.index_select(0, new_order) for x in state)
        incremental_state[self] = state, padding.keep_sentences(keys, 0, sentences)

    def max_positions(self) -> int:
        return self.max_target_positions

    def make_generation_fast_(self, need_attn: Any = False, **unused: Any) -> None:
        """Return attention from now on only if ``need_attn`` is true (``--print-alignment``)."""
        self.need_attn = bool(need_attn)


# Section 5 of the paper. The number of 43,564,519 parameters implies embeddings of size 100. The
# section does not mention dropout.
models.register_architecture(
    "gru_attention", "gru_europarl_es_en", encoder_embed_dim=100, decoder_embed_dim=100, dropout=0.0
)
models.register_architecture(
    "gru_attention",
    "gru_tiny",
    encoder_embed_dim=32,
    decoder_embed_dim=32,
    encoder_hidden_size=32,
    decoder_hidden_size=32,
    attention_dim=32,
)
