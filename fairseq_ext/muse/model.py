"""MUSE as a model of fairseq: configuration, model, named architectures.

The model is fairseq's Transformer, with the same flags but other layers.
"""

# fairseq reads the types of a configuration's fields, so their evaluation is not postponed here.

from dataclasses import dataclass
from typing import Any

from fairseq.dataclass import ChoiceEnum

from fairseq_ext.base import configuration, models
from fairseq_ext.base.configuration import option
from fairseq_ext.muse.encoder_decoder import MuseDecoder, MuseEncoder


@dataclass
class MuseConfig(configuration.TransformerModelConfig):
    """Options of ``muse``; the defaults are the paper's MUSE-base."""

    encoder_embed_dim: int = option(384, "encoder embedding dimension")
    encoder_ffn_embed_dim: int = option(768, "size of the encoder's feed-forward layers")
    encoder_layers: int = option(12, "number of encoder layers")
    encoder_attention_heads: int = option(4, "attention heads, and kernels, of each encoder layer")
    decoder_embed_dim: int = option(384, "decoder embedding dimension")
    decoder_ffn_embed_dim: int = option(768, "size of the decoder's feed-forward layers")
    decoder_layers: int = option(12, "number of decoder layers")
    decoder_attention_heads: int = option(4, "attention heads, and kernels, of each decoder layer")
    muse_kernels: str = option(
        "3,15",
        "kernel sizes of the convolutions: one size, or several with commas, whose "
        "outputs are gated (3,15); with slashes, sizes for groups of layers from the lowest to "
        "the highest (3/7/15/31); `none` for MUSE-simple",
    )
    muse_convolution: ChoiceEnum(["dynamic", "ordinary"]) = option(
        "dynamic",
        "dynamic: convolve the values of the attention with kernels predicted from "
        "them; ordinary: convolve the layer's input with a fixed kernel over all channels",
    )
    muse_separate_projection: bool = option(
        False, "give the convolution its own value projection (default: it shares attention's)"
    )
    weight_dropout: float = option(0.1, "dropout probability for the convolution's kernels")
    input_dropout: float = option(
        0.0, "dropout probability for the input of self-attention and convolution"
    )
    muse_fused: bool = option(
        False,
        "fuse the matrices of all branches into two for each layer (the paper's W_Enc "
        "and W_Dec): same function, faster translation. Checkpoints can be loaded either way: "
        "--model-overrides \"{'muse_fused': True}\"",
    )


@models.register_model("muse", dataclass=MuseConfig)
class MuseModel(models.TranslationTransformer):
    """A Transformer with MUSE blocks in encoder and decoder."""

    encoder_class, decoder_class = MuseEncoder, MuseDecoder


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
