"""BMT as a model of fairseq: configuration, model, named architectures.

A BMT is fairseq's pre-norm Transformer with other attentions and feed-forward layers. Everything
else is fairseq's own, including the flags.
"""

# Without `from __future__ import annotations`: fairseq reads the types of a configuration's fields.

from dataclasses import dataclass
from typing import Any

from fairseq.dataclass import ChoiceEnum
from fairseq.modules import MultiheadAttention, TransformerDecoderLayer, TransformerEncoderLayer
from fairseq.tasks import FairseqTask
from torch import nn

from fairseq_ext.base import configuration, models
from fairseq_ext.base.configuration import option
from fairseq_ext.binary import compose, switches
from fairseq_ext.binary.attention import BinaryAttention
from fairseq_ext.binary.linear import BinaryLinear, FeedForwardOutput
from fairseq_ext.utils.errors import wrong_value

NORM_EPS = 1e-6  # the default of flax, which the paper's code uses; torch's is 1e-5


@dataclass
class BmtConfig(configuration.TransformerModelConfig):
    """Options of the model ``bmt``; the defaults come from the paper's study of scaling laws."""

    attention_dropout: float = option(0.1, "dropout probability for attention weights")
    activation_dropout: float = option(0.1, "dropout probability after the activation function")
    bmt_preset: ChoiceEnum(list(switches.PRESETS)) = option(
        "bmt-1",
        "row of the paper's Table 1: the products to binarize, with their layer norms and "
        "shortcuts; other options override parts of the row",
    )
    bmt_ffn: ChoiceEnum(["preset", "layer", "scale", "none"]) = option(
        "preset",
        "operation after each product of the feed-forward network: layer norm (layer), division "
        "by s (scale) or nothing (none)",
    )
    bmt_attention_output: ChoiceEnum(["preset", "shortcut", "layer", "scale", "plain"]) = option(
        "preset",
        "output of the attention, computed from the joined heads A: LN(A W) + A (shortcut), "
        "LN(A W) (layer), A W / s (scale) or A W (plain)",
    )
    binarizer: ChoiceEnum(["preset", "bmt", "xnor"]) = option(
        "preset",
        "values of binary numbers: ±B/2 (bmt), or the sign times the mean magnitude, as in "
        "XNOR-Net (xnor)",
    )
    bmt_scale: float = option(64.0, "scaling factor s that divides products of two binary operands")
    dropout_before_binarization: bool = option(
        False,
        "apply dropout to hidden units before binarizing them, as the paper's code "
        "does, so that dropped units become +B/2; otherwise they count as 0",
    )


class Layers:
    """Builds the linear layers and attentions of a ``bmt`` model as its options say."""

    def __init__(self, cfg: BmtConfig) -> None:
        self.cfg = cfg
        self.switches = switches.selected(cfg)

    def exchange(self, layer: TransformerEncoderLayer | TransformerDecoderLayer) -> None:
        """Replace the attentions and feed-forward network of fairseq's ``layer`` by binary ones."""
        layer.self_attn = self.attention(layer.self_attn)
        if getattr(layer, "encoder_attn", None) is not None:
            layer.encoder_attn = self.attention(layer.encoder_attn)
        layer.fc1 = self.linear("ffn", layer.fc1)
        layer.fc2 = FeedForwardOutput(
            self.linear("ffn", layer.fc2),
            layer.activation_dropout_module,
            norms=self.switches.ffn == "layer",
            dropout_first=self.cfg.dropout_before_binarization,
        )
        layer.activation_dropout_module = nn.Identity()  # because fc2 applies this dropout

    def linear(self, product: str, stock: nn.Linear) -> BinaryLinear:
        """Build a Xavier-initialized layer for ``product``, with the size of ``stock``."""
        after = {"ffn": self.switches.ffn, "out": self.switches.output}.get(product)
        layer = BinaryLinear(
            stock.in_features,
            stock.out_features,
            stock.bias is not None,
            **compose.layer_options(self.cfg, self.switches, product),
            scale=self.cfg.bmt_scale if after == "scale" else 1.0,
        )
        models.init_linear_(layer)
        return layer

    def attention(self, stock: MultiheadAttention) -> BinaryAttention:
        """Build a binary attention with the sizes of ``stock``, an attention of fairseq."""
        attention = BinaryAttention(
            stock.embed_dim,
            stock.num_heads,
            kdim=stock.kdim,
            vdim=stock.vdim,
            dropout=self.cfg.attention_dropout,
            self_attention=stock.self_attention,
            encoder_decoder_attention=stock.encoder_decoder_attention,
            bias=False,
            norm_heads=self.switches.heads_norm,
            norm_output=self.switches.output in ("shortcut", "layer"),
            shortcut=self.switches.output == "shortcut",
            **compose.attention_options(self.cfg, self.switches),
        )
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            product = compose.LAYER_NAMES[name]
            setattr(attention, name, self.linear(product, getattr(attention, name)))
        return attention


@models.register_model("bmt", dataclass=BmtConfig)
class BmtModel(models.TranslationTransformer):
    """A pre-norm Transformer whose matrix products can be binarized."""

    @classmethod
    def build_model(cls, cfg: BmtConfig, task: FairseqTask) -> "BmtModel":
        """Build the model for a task's dictionaries, always with pre-norm.

        Raise ConfigError if options exclude each other, or if ``--bmt-scale`` is not above 0.
        """
        pre_norm = {"encoder_normalize_before": True, "decoder_normalize_before": True}
        options: Any = configuration.namespace(cfg, **pre_norm)
        return super().build_model(options, task)

    @classmethod
    def complete(cls, model: "BmtModel", cfg: BmtConfig) -> None:
        """Replace attentions and feed-forward networks by binary ones.

        Also set ε of all layer norms, and let the model switch to its next :class:`Stage` in
        training.
        """
        if not cfg.bmt_scale > 0:
            raise wrong_value("--bmt-scale", "above 0", cfg.bmt_scale)
        layers = Layers(cfg)
        for layer in (*model.encoder.layers, *model.decoder.layers):
            layers.exchange(layer)
        for module in model.modules():
            if hasattr(module, "normalized_shape"):  # a layer norm of torch or of apex
                module.eps = NORM_EPS
        compose.add_stage(model, cfg, layers.switches)


TINY, BASE = models.both_sides(128, 256, 4, layers=4), models.both_sides(512, 2048, 8)

models.register_architecture(
    "bmt", "bmt_wmt_de_en", **models.both_sides(1024, 4096, 16), share_all_embeddings=True
)
models.register_architecture("bmt", "bmt_base", **BASE)
# Appendix A.2; give the depths by --encoder-layers and --decoder-layers.
models.register_architecture("bmt", "bmt_scaling", **BASE, share_all_embeddings=True)
models.register_architecture("bmt", "bmt_tiny", **TINY)


@models.register_model("binary_transformer", dataclass=configuration.TransformerModelConfig)
class BinaryTransformerModel(models.TranslationTransformer):
    """fairseq's own Transformer, whose matrix products can be binarized."""


models.register_architecture("binary_transformer", "binary_transformer_tiny", **TINY)
