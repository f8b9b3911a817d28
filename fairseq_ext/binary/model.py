"""fairseq wiring of BMT: configuration, model, named architectures.

A BMT is fairseq's pre-norm Transformer with other attentions and feed-forward layers. Everything
else is fairseq's own, including the flags.
"""

# fairseq reads the types of a configuration's fields, so their evaluation is not postponed here.

from argparse import Namespace
from dataclasses import dataclass, field
from typing import Any

from fairseq.data import Dictionary
from fairseq.dataclass import ChoiceEnum
from fairseq.models.transformer import (
    TransformerConfig,
    TransformerDecoderBase,
    TransformerEncoderBase,
)
from fairseq.modules import FairseqDropout
from fairseq.modules.checkpoint_activations import checkpoint_wrapper
from fairseq.modules.transformer_layer import (
    TransformerDecoderLayerBase,
    TransformerEncoderLayerBase,
)
from torch import nn

from fairseq_ext.base import configuration, models
from fairseq_ext.binary import compose, stages, switches
from fairseq_ext.binary.attention import BinaryAttention
from fairseq_ext.binary.binarize import KINDS
from fairseq_ext.binary.feedforward import FeedForwardOutput
from fairseq_ext.binary.linear import BinaryLinear
from fairseq_ext.utils.errors import ConfigError

NORM_EPS = 1e-6  # the default of flax, which the paper's code uses; torch's is 1e-5


@dataclass
class BmtConfig(configuration.TransformerModelConfig):
    """Options of ``bmt``; the defaults are those of the paper's scaling-law study."""

    encoder_embed_dim: int = field(default=512, metadata={"help": "encoder embedding dimension"})
    attention_dropout: float = field(
        default=0.1, metadata={"help": "dropout probability for attention weights"}
    )
    activation_dropout: float = field(
        default=0.1, metadata={"help": "dropout probability after the activation function"}
    )
    bmt_preset: ChoiceEnum(list(switches.PRESETS)) = field(
        default="bmt-1",
        metadata={
            "help": "row of the paper's Table 1: the products to binarize, with their layer norms "
            "and shortcuts; other options override parts of it"
        },
    )
    bmt_ffn: ChoiceEnum(["preset", *switches.NORMS]) = field(
        default="preset",
        metadata={
            "help": "operation after each product of the feed-forward network: layer norm, 1/s or "
            "none"
        },
    )
    bmt_attention_output: ChoiceEnum(["preset", *switches.OUTPUTS]) = field(
        default="preset",
        metadata={"help": "output of the attention: LN(A W) + A, LN(A W), A W / s, or A W"},
    )
    binarizer: ChoiceEnum(["preset", *KINDS]) = field(
        default="preset",
        metadata={"help": "values of binary numbers: ±B/2, or XNOR-Net's sign times mean"},
    )
    bmt_scale: float = field(
        default=64.0,
        metadata={"help": "scaling factor s that divides products of two binary operands"},
    )
    dropout_before_binarization: bool = field(
        default=False,
        metadata={
            "help": "apply dropout to hidden units before binarizing them, as the paper's code "
            "does, so that dropped units become +B/2; otherwise they count as 0"
        },
    )


def switches_of(cfg: BmtConfig | TransformerConfig) -> switches.Switches:
    """Return the preset's switches after command-line overrides.

    Raises:
        ConfigError: a product is unknown, or an option would have no effect.
    """
    return switches.override(
        switches.PRESETS[str(cfg.bmt_preset)],
        cfg.binary_weights,
        cfg.binary_activations,
        str(cfg.bmt_ffn),
        str(cfg.bmt_attention_output),
        str(cfg.binarizer),
    )


class Layers:
    """Builds the parts of a layer for a configuration.

    Args:
        cfg: fairseq's configuration, which also has the flat options of :class:`BmtConfig`.
    """

    def __init__(self, cfg: TransformerConfig) -> None:
        self.cfg, self.switches = cfg, switches_of(cfg)

    def linear(self, product: str, inputs: int, outputs: int, *, bias: bool = True) -> BinaryLinear:
        """Build the layer of a product in ``switches.LAYERS``, initialized with Xavier-uniform."""
        after = {"ffn": self.switches.ffn, "out": self.switches.output}.get(product)
        layer = BinaryLinear(
            inputs,
            outputs,
            bias,
            **compose.layer_options(self.cfg, self.switches, product),
            scale=self.cfg.bmt_scale if after == "scale" else 1.0,
        )
        models.init_linear_(layer)
        return layer

    def attention(self, dim: int, heads: int, source_dim: int | None = None) -> BinaryAttention:
        """Self-attention, or attention over a source of ``source_dim`` channels."""
        selection = self.switches
        attention = BinaryAttention(
            dim,
            heads,
            kdim=source_dim,
            vdim=source_dim,
            dropout=self.cfg.attention_dropout,
            self_attention=source_dim is None,
            encoder_decoder_attention=source_dim is not None,
            bias=False,
            norm_heads=selection.heads_norm,
            norm_output=selection.output in ("shortcut", "layer"),
            shortcut=selection.output == "shortcut",
            **compose.attention_options(self.cfg, selection),
        )
        for name in ("q_proj", "k_proj", "v_proj"):
            size = dim if name == "q_proj" else source_dim or dim
            setattr(attention, name, self.linear("qkv", size, dim, bias=False))
        attention.out_proj = self.linear("out", dim, dim, bias=False)
        return attention

    def feed_forward_output(self, inputs: int, outputs: int, layer: str) -> FeedForwardOutput:
        """``W_2`` with its norms and dropout; ``--retain-dropout-modules`` calls it ``layer``."""
        return FeedForwardOutput(
            self.linear("ffn", inputs, outputs),
            FairseqDropout(self.cfg.bmt_activation_dropout, module_name=layer),
            norms=self.switches.ffn == "layer",
            dropout_first=self.cfg.dropout_before_binarization,
        )


class BmtEncoderLayer(TransformerEncoderLayerBase):
    """fairseq's layer with binary parts."""

    def build_self_attention(self, embed_dim: int, cfg: TransformerConfig) -> nn.Module:
        """fairseq's hook."""
        self._layers = Layers(cfg)
        return self._layers.attention(embed_dim, cfg.encoder.attention_heads)

    def build_fc1(self, input_dim: int, output_dim: int, *unused: Any) -> nn.Module:
        """fairseq's hook."""
        return self._layers.linear("ffn", input_dim, output_dim)

    def build_fc2(self, input_dim: int, output_dim: int, *unused: Any) -> nn.Module:
        """fairseq's hook."""
        return self._layers.feed_forward_output(input_dim, output_dim, type(self).__name__)


class BmtDecoderLayer(TransformerDecoderLayerBase):
    """fairseq's layer with binary parts."""

    build_fc1, build_fc2 = BmtEncoderLayer.build_fc1, BmtEncoderLayer.build_fc2

    def build_self_attention(
        self, embed_dim: int, cfg: TransformerConfig, **unused: bool
    ) -> nn.Module:
        """fairseq's hook."""
        self._layers = Layers(cfg)
        return self._layers.attention(embed_dim, cfg.decoder.attention_heads)

    def build_encoder_attention(self, embed_dim: int, cfg: TransformerConfig) -> nn.Module:
        """fairseq's hook."""
        return self._layers.attention(embed_dim, cfg.decoder.attention_heads, cfg.encoder.embed_dim)


class BmtEncoder(TransformerEncoderBase):
    """fairseq's encoder with :class:`BmtEncoderLayer`."""

    def build_encoder_layer(self, cfg: TransformerConfig) -> nn.Module:
        """fairseq's hook for the next layer."""
        layer = BmtEncoderLayer(cfg)
        return checkpoint_wrapper(layer) if cfg.checkpoint_activations else layer


class BmtDecoder(TransformerDecoderBase):
    """fairseq's decoder with :class:`BmtDecoderLayer`."""

    def build_decoder_layer(
        self, cfg: TransformerConfig, no_encoder_attn: bool = False
    ) -> nn.Module:
        """fairseq's hook for the next layer."""
        layer = BmtDecoderLayer(cfg, no_encoder_attn)
        return checkpoint_wrapper(layer) if cfg.checkpoint_activations else layer


@models.register_model("bmt", dataclass=BmtConfig)
class BmtModel(models.TranslationTransformer):
    """Pre-norm Transformer whose matrix products can be binarized."""

    Config = BmtConfig

    @classmethod
    def prepare(cls, cfg: BmtConfig) -> Namespace:
        """Set pre-norm, and take over the dropout of hidden units: it comes after the inner norm.

        Raises:
            ConfigError: the scale is not above 0.
        """
        if not cfg.bmt_scale > 0:
            raise ConfigError(f"`--bmt-scale` must be above 0, but is {cfg.bmt_scale} instead.")
        return configuration.namespace(
            cfg,
            encoder_normalize_before=True,
            decoder_normalize_before=True,
            bmt_activation_dropout=cfg.activation_dropout,
            activation_dropout=0.0,
        )

    @classmethod
    def complete(cls, model: "BmtModel", cfg: BmtConfig) -> None:
        """Set ε of the layer norms, and add the stage.

        Raises:
            ConfigError: ``--stage-updates`` lacks the stage that binarizes the chosen parts.
        """
        for module in model.modules():
            if hasattr(module, "normalized_shape"):  # apex's layer norm is none of torch's
                module.eps = NORM_EPS
        model.binary_stage = stages.Stage(
            compose.staged_layers(model), compose.stages_of(cfg, switches_of(cfg))
        )

    @classmethod
    def build_encoder(
        cls, cfg: TransformerConfig, src_dict: Dictionary, embed_tokens: nn.Embedding
    ) -> BmtEncoder:
        """fairseq's hook for the encoder."""
        return BmtEncoder(cfg, src_dict, embed_tokens)

    @classmethod
    def build_decoder(
        cls, cfg: TransformerConfig, tgt_dict: Dictionary, embed_tokens: nn.Embedding
    ) -> BmtDecoder:
        """fairseq's hook for the decoder."""
        return BmtDecoder(cfg, tgt_dict, embed_tokens)


def _sizes(dim: int, ffn_dim: int, heads: int, **extra: Any) -> dict[str, Any]:
    sides = ("encoder", "decoder")
    sizes = {"embed_dim": dim, "ffn_embed_dim": ffn_dim, "attention_heads": heads, **extra}
    return {f"{side}_{name}": value for side in sides for name, value in sizes.items()}


models.register_architecture(
    "bmt", "bmt_wmt_de_en", **_sizes(1024, 4096, 16), share_all_embeddings=True
)
models.register_architecture("bmt", "bmt_base", **_sizes(512, 2048, 8))
# Appendix A.2; give the depths by --encoder-layers and --decoder-layers.
models.register_architecture(
    "bmt", "bmt_scaling", **_sizes(512, 2048, 8), share_all_embeddings=True
)
models.register_architecture("bmt", "bmt_tiny", **_sizes(128, 256, 4, layers=4))


@models.register_model("binary_transformer", dataclass=configuration.TransformerModelConfig)
class BinaryTransformerModel(models.TranslationTransformer):
    """fairseq's own Transformer, whose matrix products can be binarized."""

    Config = configuration.TransformerModelConfig


models.register_architecture(
    "binary_transformer", "binary_transformer_tiny", **_sizes(128, 256, 4, layers=4)
)
