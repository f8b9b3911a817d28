"""The configuration options that our models share, under fairseq's own names."""

from argparse import Namespace
from dataclasses import dataclass, field, fields
from typing import Any

from fairseq import utils
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.models.transformer import TransformerConfig
from fairseq.tasks import FairseqTask
from omegaconf import II, DictConfig, OmegaConf

from fairseq_ext.utils.errors import ConfigError


def option(default: Any, help: str) -> Any:
    """Declare a field of a configuration, which fairseq turns into an option with this help."""
    return field(default=default, metadata={"help": help})


@dataclass
class TranslationModelConfig(FairseqDataclass):
    """The options of fairseq's models that all our translation architectures have.

    fairseq's commands refuse a model option that the architecture's configuration does not declare.
    """

    dropout: float = option(0.1, "dropout probability")
    encoder_embed_dim: int = option(256, "encoder embedding dimension")
    decoder_embed_dim: int = option(256, "decoder embedding dimension")
    share_decoder_input_output_embed: bool = option(
        False, "share decoder input and output embeddings"
    )
    share_all_embeddings: bool = option(
        False,
        "share encoder, decoder and output embeddings "
        "(requires one dictionary and equal embedding dimensions)",
    )
    max_source_positions: int = II("task.max_source_positions")
    max_target_positions: int = II("task.max_target_positions")


@dataclass
class EncoderConfig(FairseqDataclass):
    """The options of fairseq for an encoder made of Transformer layers."""

    dropout: float = option(0.1, "dropout probability")
    encoder_embed_dim: int = option(512, "encoder embedding dimension")
    activation_fn: ChoiceEnum(utils.get_available_activation_fns()) = option(
        "relu", "activation function of the feed-forward layers"
    )
    attention_dropout: float = option(0.0, "dropout probability for attention weights")
    activation_dropout: float = option(0.0, "dropout probability after the activation function")
    encoder_ffn_embed_dim: int = option(2048, "size of the encoder's feed-forward layers")
    encoder_layers: int = option(6, "number of encoder layers")
    encoder_attention_heads: int = option(8, "attention heads of each encoder layer")
    encoder_normalize_before: bool = option(
        False, "apply layer norm before each encoder block (pre-norm)"
    )
    encoder_learned_pos: bool = option(
        False, "learn the encoder's positional embeddings (default: sinusoidal)"
    )
    no_token_positional_embeddings: bool = option(False, "do not use positional embeddings")
    layernorm_embedding: bool = option(False, "apply layer norm to the embeddings")
    no_scale_embedding: bool = option(
        False, "do not multiply embeddings by the square root of their size"
    )
    checkpoint_activations: bool = option(
        False, "save memory by computing activations again in the backward pass"
    )


@dataclass
class BinaryOptions(FairseqDataclass):
    """Options that say which parts of a Transformer are binarized (:mod:`fairseq_ext.binary`)."""

    binary_weights: str = option(
        "",
        "products whose weights are binarized: `none`, or a comma-separated list of qkv (queries, "
        "keys, values), out (output of attention) and ffn (feed-forward); with `ternary` in the "
        "list the weights become -1, 0 or 1 times their mean magnitude; `ternary` alone stands "
        "for all three products",
    )
    binary_activations: str = option(
        "",
        "products whose inputs are binarized: `none`, or a comma-separated list of qkv, out, ffn, "
        "qk (queries times keys) and score-v (attention weights times values)",
    )
    binary_score_v: ChoiceEnum(["signed", "unsigned"]) = option(
        "signed",
        "how score-v binarizes attention weights: all visible positions count equally "
        "(signed), or only those with at least half of the largest weight (unsigned)",
    )
    binary_weight_bound: str = option(
        "channel",
        "bound B of binary weights: the largest magnitude in each output `channel` or "
        "in the whole `tensor`, or a fixed number; ternary weights have the mean magnitude of "
        "a channel or of the tensor",
    )
    binary_activation_bound: str = option(
        "token",
        "bound B of binary inputs: the largest magnitude of each `token`, or a fixed number",
    )
    binary_gradient: ChoiceEnum(["code", "paper"]) = option(
        "code",
        "gradients pass for numbers up to this magnitude: (1 - 2^-7) B, as in the paper's "
        "code (code), or B, as the paper prints (paper)",
    )
    stage_updates: str = option(
        "",
        "numbers of updates of the training's stages (float, binary weights, binary weights and "
        "activations), such as 50000,88339,88339 (default: binary from the start)",
    )


@dataclass
class TransformerModelConfig(EncoderConfig, TranslationModelConfig, BinaryOptions):
    """The options of a Transformer that translates: fairseq's own, and those of binarization."""

    decoder_embed_dim: int = option(512, "decoder embedding dimension")
    decoder_ffn_embed_dim: int = option(2048, "size of the decoder's feed-forward layers")
    decoder_layers: int = option(6, "number of decoder layers")
    decoder_attention_heads: int = option(8, "attention heads of each decoder layer")
    decoder_normalize_before: bool = option(
        False, "apply layer norm before each decoder block (pre-norm)"
    )
    decoder_learned_pos: bool = option(
        False, "learn the decoder's positional embeddings (default: sinusoidal)"
    )


def namespace(cfg: FairseqDataclass | DictConfig | Namespace, **values: Any) -> Namespace:
    """Copy a configuration into a Namespace; ``values`` replace options, or add new ones."""
    present: Any = vars(cfg)
    if isinstance(cfg, DictConfig):
        present = OmegaConf.to_container(cfg, resolve=True, enum_to_str=True)
    return Namespace(**{**present, **values})


def with_defaults(
    cfg: FairseqDataclass | DictConfig | Namespace,
    config: type[FairseqDataclass],
    task: FairseqTask,
) -> Any:
    """Copy a model's configuration, and add defaults of options that are newer than its checkpoint.

    ``config`` is the dataclass with all options. A default such as ``${task.max_source_positions}``
    is read from the configuration of ``task``.
    """
    options = namespace(cfg)
    for option in fields(config):
        if not hasattr(options, option.name):
            _, of_task, name = str(option.default).partition("${task.")
            value = getattr(task.cfg, name[:-1]) if of_task else option.default
            setattr(options, option.name, value)
    return options


def transformer_config(flat: Namespace) -> TransformerConfig:
    """Turn our flat configuration into the nested one that fairseq's Transformer classes read.

    Raise ConfigError if the number of attention heads does not divide the embedding dimension.
    """
    sides = [side for side in ("encoder", "decoder") if hasattr(flat, f"{side}_embed_dim")]
    for side in sides:
        heads, width = getattr(flat, f"{side}_attention_heads"), getattr(flat, f"{side}_embed_dim")
        if heads < 1 or width % heads:
            raise ConfigError(
                f"`--{side}-attention-heads` must divide `--{side}-embed-dim` ({width}), "
                f"but is {heads} instead."
            )
    config = TransformerConfig.from_namespace(flat)
    if "decoder" in sides:
        # fairseq sets these two sizes itself only in configurations made by hydra.
        config.decoder.input_dim = config.decoder.output_dim = flat.decoder_embed_dim
    return config
