"""Encoder-only models that classify sentences, with Linformer attention or exact attention.

Pampaloni (section 7) finds that Linformer speeds up an encoder alone much more than a translation
model, and suggests sentence classification as the better benchmark. Both models below consist of an
encoder, a pooling over the tokens and fairseq's classification head. Letters of shapes: ``B``
sentences, ``S`` tokens, ``C`` channels. The models differ only in the encoder's attention:

- ``linformer_encoder``: :class:`LinformerEncoder`, whose cost is linear in the sentence's length;
- ``transformer_encoder``: fairseq's own encoder, whose cost is quadratic.

Usage: ``fairseq-train DATA --user-dir user_dir --task sentence_prediction --criterion
sentence_prediction --num-classes N --arch linformer_encoder``.
"""

import logging
from dataclasses import dataclass
from typing import Any

import torch
from fairseq import utils
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.models import FairseqEncoderModel
from fairseq.models.roberta.model import RobertaClassificationHead
from fairseq.models.transformer import TransformerEncoderBase, TransformerModelBase
from fairseq.tasks import FairseqTask
from omegaconf import II
from torch import Tensor, nn

from fairseq_ext.base import configuration, models
from fairseq_ext.base.configuration import option
from fairseq_ext.base.padding import EncoderOut
from fairseq_ext.linformer.model import (
    LinformerEncoder,
    LinformerOptions,
    replace_attentions,
    without_effect,
)

logger = logging.getLogger(__name__)


@dataclass
class TransformerEncoderConfig(configuration.EncoderConfig):
    """Options of the model ``transformer_encoder``."""

    pooling: ChoiceEnum(["mean", "bos"]) = option(
        "mean",
        "vector that the classification head reads: the mean over the sentence's "
        "tokens, or its first token (<s> with `--init-token 0`)",
    )
    pooler_dropout: float = option(0.0, "dropout probability in the classification head")
    pooler_activation_fn: ChoiceEnum(utils.get_available_activation_fns()) = option(
        "tanh", "activation function of the classification head"
    )
    max_positions: int = II("task.max_positions")  # the name under which the task sets it


@dataclass
class LinformerEncoderConfig(LinformerOptions, TransformerEncoderConfig):
    """Options of the model ``linformer_encoder``."""


@models.register_model("transformer_encoder", dataclass=TransformerEncoderConfig)
class TransformerClassifier(FairseqEncoderModel):
    """A sentence classifier: fairseq's Transformer encoder, pooling and classification heads."""

    Config: type[TransformerEncoderConfig]
    encoder_class = TransformerEncoderBase

    def __init__(self, cfg: FairseqDataclass, encoder: TransformerEncoderBase) -> None:
        super().__init__(encoder)
        self.cfg = cfg
        self.classification_heads = nn.ModuleDict()

    @classmethod
    def build_model(cls, cfg: FairseqDataclass, task: FairseqTask) -> "TransformerClassifier":
        """Build the model for a task's dictionary, without a head, which the task then adds."""
        cfg = configuration.with_defaults(cfg, cls.Config, task)
        cfg.max_source_positions = cfg.max_positions
        config = configuration.transformer_config(cfg)
        dictionary, size = task.source_dictionary, cfg.encoder_embed_dim
        embed_tokens = TransformerModelBase.build_embedding(config, dictionary, size)
        return cls(cfg, cls.encoder_class(config, dictionary, embed_tokens))

    def register_classification_head(
        self, name: str, num_classes: int, inner_dim: int | None = None, **unused: Any
    ) -> None:
        """Add a classification head, or replace the head ``name``.

        ``inner_dim`` is the size of the head's hidden layer; None for the encoder's embedding size.
        """
        size = self.cfg.encoder_embed_dim
        self.classification_heads[name] = RobertaClassificationHead(
            input_dim=size,
            inner_dim=inner_dim or size,
            num_classes=num_classes,
            activation_fn=str(self.cfg.pooler_activation_fn),
            pooler_dropout=self.cfg.pooler_dropout,
        )

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor | None = None,
        classification_head_name: str | None = None,
        **unused: Any,
    ) -> tuple[Tensor, EncoderOut]:
        """Classify ``src_tokens`` ``[B, S]``, padded on either side.

        Return the logits ``[B, classes]`` of the named head, or the pooled features ``[B, C]`` if
        no head is named; and the encoder's output.
        """
        encoded = self.encoder(src_tokens, src_lengths)
        pooled = pool(
            encoded["encoder_out"][0].transpose(0, 1),
            encoded["encoder_padding_mask"][0],
            str(self.cfg.pooling),
        )
        if classification_head_name is None:
            return pooled, encoded
        head = self.classification_heads[classification_head_name]
        return head(pooled.unsqueeze(1)), encoded  # the head reads a sentence's first vector

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str) -> None:
        """Replace a checkpoint's classification heads by this model's if names or sizes differ.

        So ``--finetune-from-model`` can train an encoder for other classes. A warning is logged.
        """
        super().upgrade_state_dict_named(state_dict, name)
        prefix = f"{name}.classification_heads." if name else "classification_heads."
        heads = self.classification_heads.state_dict(prefix=prefix)
        saved = {key: value for key, value in state_dict.items() if key.startswith(prefix)}
        if {k: v.shape for k, v in heads.items()} != {k: v.shape for k, v in saved.items()}:
            logger.warning(
                "the checkpoint has other classification heads; the model's heads start untrained"
            )
            for key in saved:
                del state_dict[key]
            state_dict.update(heads)


@models.register_model("linformer_encoder", dataclass=LinformerEncoderConfig)
class LinformerClassifier(TransformerClassifier):
    """A sentence classifier like ``transformer_encoder``, but with Linformer attention."""

    encoder_class = LinformerEncoder
    without_effect = staticmethod(without_effect)

    def __init__(self, cfg: LinformerEncoderConfig, encoder: TransformerEncoderBase) -> None:
        replace_attentions(cfg, encoder)
        super().__init__(cfg, encoder)


def pool(features: Tensor, padding_mask: Tensor, pooling: str) -> Tensor:
    """Pool the tokens' features ``[B, S, C]`` into one vector for each sentence: ``[B, C]``.

    ``padding_mask`` ``[B, S]`` is true on pads. ``pooling`` is ``bos`` for the features of the
    first token, or ``mean`` for the mean over all tokens.
    """
    if pooling == "bos":
        first = padding_mask.to(torch.uint8).argmin(1)
        return features[torch.arange(len(features), device=features.device), first]
    exact = torch.promote_types(features.dtype, torch.float32)  # the sum could overflow fp16
    total = features.masked_fill(padding_mask.unsqueeze(-1), 0).sum(1, dtype=exact)
    return (total / (~padding_mask).sum(1, keepdim=True).clamp(min=1)).to(features.dtype)


for model in ("transformer_encoder", "linformer_encoder"):
    models.register_architecture(
        model,
        f"{model}_tiny",
        encoder_embed_dim=128,
        encoder_ffn_embed_dim=256,
        encoder_layers=4,
        encoder_attention_heads=4,
    )
