"""What every wing shares: registration, the configuration all models have, embeddings."""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

import torch
from fairseq import utils
from fairseq.data import Dictionary
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models import (
    ARCH_MODEL_REGISTRY,
    MODEL_DATACLASS_REGISTRY,
    MODEL_REGISTRY,
    register_model_architecture,
)
from fairseq.models import register_model as fairseq_register_model
from fairseq.models.transformer import TransformerConfig, TransformerModelBase
from fairseq.tasks import FairseqTask
from omegaconf import II, DictConfig, OmegaConf
from torch import nn

from fairseq_ext.errors import ConfigError, EnvironmentProblem

Model = TypeVar("Model", bound=type)


@dataclass
class ModelConfig(FairseqDataclass):
    """The stock flags that every architecture of ours honours, under fairseq's own names.

    A flag that a model does not list is refused by name by the command's own parser.
    """

    dropout: float = field(default=0.1, metadata={"help": "dropout probability"})
    encoder_embed_dim: int = field(default=256, metadata={"help": "encoder embedding dimension"})


@dataclass
class TranslationModelConfig(ModelConfig):
    """Stock flags of every architecture that translates."""

    decoder_embed_dim: int = field(default=256, metadata={"help": "decoder embedding dimension"})
    share_decoder_input_output_embed: bool = field(
        default=False, metadata={"help": "share decoder input and output embeddings"}
    )
    share_all_embeddings: bool = field(
        default=False,
        metadata={
            "help": "share encoder, decoder and output embeddings "
            "(requires shared dictionary and embed dim)"
        },
    )
    max_source_positions: int = II("task.max_source_positions")
    max_target_positions: int = II("task.max_target_positions")


@dataclass
class TransformerEncoderConfig(ModelConfig):
    """Stock flags of an encoder that is built of Transformer layers."""

    activation_fn: ChoiceEnum(utils.get_available_activation_fns()) = field(
        default="relu", metadata={"help": "activation function of the feed-forward layers"}
    )
    attention_dropout: float = field(
        default=0.0, metadata={"help": "dropout probability for attention weights"}
    )
    activation_dropout: float = field(
        default=0.0, metadata={"help": "dropout probability after the activation function"}
    )
    encoder_embed_dim: int = field(default=512, metadata={"help": "encoder embedding dimension"})
    encoder_ffn_embed_dim: int = field(
        default=2048, metadata={"help": "size of the encoder's feed-forward layers"}
    )
    encoder_layers: int = field(default=6, metadata={"help": "number of encoder layers"})
    encoder_attention_heads: int = field(
        default=8, metadata={"help": "attention heads of each encoder layer"}
    )
    encoder_normalize_before: bool = field(
        default=False, metadata={"help": "apply layer norm before each encoder block (pre-norm)"}
    )
    encoder_learned_pos: bool = field(
        default=False, metadata={"help": "learned instead of sinusoidal positions in the encoder"}
    )
    no_token_positional_embeddings: bool = field(
        default=False, metadata={"help": "no positional embeddings"}
    )
    layernorm_embedding: bool = field(
        default=False, metadata={"help": "apply layer norm to the embeddings"}
    )
    no_scale_embedding: bool = field(
        default=False, metadata={"help": "do not multiply embeddings by the root of their size"}
    )
    checkpoint_activations: bool = field(
        default=False,
        metadata={"help": "compute activations again in the backward pass, to save memory"},
    )


@dataclass
class BinaryOptions(FairseqDataclass):
    """What is binarized of an architecture of Transformer layers, by :mod:`fairseq_ext.binary`."""

    binary_weights: str = field(
        default="",
        metadata={"help": "matrices with one bit for each weight: of qkv,out,ffn, or `none`"},
    )
    binary_activations: str = field(
        default="",
        metadata={
            "help": "matrix products with one bit for each input: of qkv,out,ffn,qk,score-v, or "
            "`none`"
        },
    )
    binary_score_v: ChoiceEnum(["signed", "unsigned"]) = field(
        default="signed",
        metadata={"help": "binarize attention weights to a mean of what is visible, or to 0 and 1"},
    )
    binary_weight_bound: str = field(
        default="channel",
        metadata={
            "help": "B of weights: the largest of each output `channel` or of the `tensor`, or a "
            "number"
        },
    )
    binary_activation_bound: str = field(
        default="token",
        metadata={"help": "B of a layer's inputs: the largest of each `token`, or a number"},
    )
    binary_gradient: ChoiceEnum(["code", "paper"]) = field(
        default="code",
        metadata={
            "help": "the gradient passes up to (1 - 2^-7) B, as in the paper's code, or up to B, "
            "as it is printed"
        },
    )
    stage_updates: str = field(
        default="",
        metadata={
            "help": "updates in float, with binary weights, and with binary weights and "
            "activations (50000,88339,88339); without it all is binary from the start"
        },
    )


@dataclass
class TransformerModelConfig(TransformerEncoderConfig, TranslationModelConfig, BinaryOptions):
    """Stock flags of the architectures that are built of Transformer layers, and what is binary."""

    decoder_embed_dim: int = field(default=512, metadata={"help": "decoder embedding dimension"})
    decoder_ffn_embed_dim: int = field(
        default=2048, metadata={"help": "size of the decoder's feed-forward layers"}
    )
    decoder_layers: int = field(default=6, metadata={"help": "number of decoder layers"})
    decoder_attention_heads: int = field(
        default=8, metadata={"help": "attention heads of each decoder layer"}
    )
    decoder_normalize_before: bool = field(
        default=False, metadata={"help": "apply layer norm before each decoder block (pre-norm)"}
    )
    decoder_learned_pos: bool = field(
        default=False, metadata={"help": "learned instead of sinusoidal positions in the decoder"}
    )


# Called with each Transformer that has been built and its configuration, to change the model where
# its options say so. What crosses wings comes here by itself, so that none imports another.
finishers: list[Callable[[nn.Module, TransformerModelConfig], None]] = []


class TranslationTransformer(TransformerModelBase):
    """What our architectures of Transformer layers have in common with fairseq's."""

    Config: type[TransformerModelConfig]

    @classmethod
    def add_args(cls, parser: ArgumentParser) -> None:
        """Add the options of the model's configuration."""
        add_dataclass_args(parser, cls.Config)

    @classmethod
    def build_model(cls, cfg: TransformerModelConfig, task: FairseqTask) -> TransformerModelBase:
        """Build the model for a task's dictionaries.

        Raises:
            ConfigError: options that do not fit each other, such as heads that do not divide the
                embedding dimension, or embeddings that cannot be shared.
        """
        cfg = with_defaults(cfg, cls.Config)
        if cfg.share_all_embeddings:
            require_shareable(cfg, task.source_dictionary, task.target_dictionary)
        model = super().build_model(transformer_config(cls.prepare(cfg)), task)
        cls.complete(model, cfg)
        for finish in finishers:
            finish(model, cfg)
        return model

    @classmethod
    def prepare(cls, cfg: TransformerModelConfig) -> TransformerModelConfig | Namespace:
        """The configuration that fairseq's classes are to read."""
        return cfg

    @classmethod
    def complete(cls, model: TransformerModelBase, cfg: TransformerModelConfig) -> None:
        """What to do to a model that fairseq's classes have built."""


def namespace(cfg: FairseqDataclass | DictConfig | Namespace, **more: Any) -> Namespace:
    """A model's configuration, in whichever form fairseq hands it, with ``more`` values."""
    if isinstance(cfg, DictConfig):
        cfg = Namespace(**OmegaConf.to_container(cfg, resolve=True, enum_to_str=True))
    return Namespace(**{**vars(cfg), **more})


def with_defaults(
    cfg: FairseqDataclass | DictConfig | Namespace, config: type[FairseqDataclass]
) -> Namespace:
    """``cfg`` with the defaults of options that a checkpoint is older than."""
    present = namespace(cfg)
    missing = {
        option.name: option.default
        for option in fields(config)
        if not hasattr(present, option.name) and not str(option.default).startswith("${")
    }
    return namespace(present, **missing)


def transformer_config(cfg: TransformerEncoderConfig) -> TransformerConfig:
    """What fairseq's Transformer classes read, from a flat configuration (an encoder's alone, too).

    Raises:
        ConfigError: a number of heads that does not divide its embedding dimension.
    """
    cfg = namespace(cfg)
    sides = [side for side in ("encoder", "decoder") if hasattr(cfg, f"{side}_embed_dim")]
    for side in sides:
        heads, width = getattr(cfg, f"{side}_attention_heads"), getattr(cfg, f"{side}_embed_dim")
        if heads < 1 or width % heads:
            raise ConfigError(
                f"`--{side}-attention-heads` must divide `--{side}-embed-dim` ({width}), "
                f"but is {heads} instead."
            )
    config = TransformerConfig.from_namespace(cfg)
    if "decoder" in sides:
        # They follow `--decoder-embed-dim`, but only where hydra has made the configuration.
        config.decoder.input_dim = config.decoder.output_dim = cfg.decoder_embed_dim
    return config


def add_dataclass_args(parser: ArgumentParser, config: type[FairseqDataclass]) -> None:
    """Give a legacy ``add_args`` the options of a flat dataclass, without their defaults.

    Without defaults a named architecture's value and a flag on the command line win over the
    dataclass in that order, and no default is written twice.
    """
    gen_parser_from_dataclass(parser, config(), delete_default=True)


def register_model(name: str, dataclass: type[FairseqDataclass]) -> Callable[[Model], Model]:
    """fairseq's ``register_model``, which says so when the name is taken.

    Raises:
        EnvironmentProblem: another class has the name; fairseq would silently keep that one.
    """

    def register(cls: Model) -> Model:
        refuse_taken(name, cls)
        return fairseq_register_model(name, dataclass=dataclass)(cls)

    return register


def register_architecture(model_name: str, name: str, **defaults: Any) -> None:
    """Register a named architecture: a model whose configuration has these defaults.

    Raises:
        EnvironmentProblem: the name is taken.
        TypeError: a default is not an option of the model.
    """
    unknown = defaults.keys() - MODEL_DATACLASS_REGISTRY[model_name].__dataclass_fields__
    if unknown:
        raise TypeError(f"{name}: {sorted(unknown)} are not options of {model_name}")
    refuse_taken(name, MODEL_REGISTRY[model_name])

    def set_defaults(args: Namespace) -> None:
        for option, value in defaults.items():
            if not hasattr(args, option):
                setattr(args, option, value)

    register_model_architecture(model_name, name)(set_defaults)


def refuse_taken(name: str, cls: type) -> None:
    """Raise :class:`EnvironmentProblem` where a model or architecture has the name already."""
    taken = MODEL_REGISTRY.get(name) or ARCH_MODEL_REGISTRY.get(name)
    if taken is not None:
        raise EnvironmentProblem(
            f"the model name `{name}` of {cls.__module__} is already taken by "
            f"{taken.__module__}.{taken.__qualname__}. Load only one of the two plugins "
            "(look at --user-dir), or rename the other one's model."
        )


def build_embedding(dictionary: Dictionary, embed_dim: int) -> nn.Embedding:
    """An embedding table ``[V, E]``, Xavier-uniform, zero for the pad symbol."""
    embedding = nn.Embedding(len(dictionary), embed_dim, padding_idx=dictionary.pad())
    nn.init.xavier_uniform_(embedding.weight)
    with torch.no_grad():
        embedding.weight[dictionary.pad()].zero_()
    return embedding


def build_embeddings(
    cfg: TranslationModelConfig, source: Dictionary, target: Dictionary
) -> tuple[nn.Embedding, nn.Embedding]:
    """Encoder and decoder embeddings, one table for both with ``--share-all-embeddings``.

    Raises:
        ConfigError: they are to be shared, but the dictionaries or the sizes differ.
    """
    encoder = build_embedding(source, cfg.encoder_embed_dim)
    if not cfg.share_all_embeddings:
        return encoder, build_embedding(target, cfg.decoder_embed_dim)
    require_shareable(cfg, source, target)
    return encoder, encoder


def require_shareable(cfg: TranslationModelConfig, source: Dictionary, target: Dictionary) -> None:
    """Raise :class:`ConfigError` where one table cannot serve both languages."""
    if source != target:
        raise ConfigError(
            "`--share-all-embeddings` must have one dictionary for both languages, but "
            f"{len(source)} source and {len(target)} target symbols differ instead. "
            "Run fairseq-preprocess with --joined-dictionary."
        )
    if cfg.encoder_embed_dim != cfg.decoder_embed_dim:
        raise ConfigError(
            "`--decoder-embed-dim` must equal `--encoder-embed-dim` "
            f"({cfg.encoder_embed_dim}) with `--share-all-embeddings`, but is "
            f"{cfg.decoder_embed_dim} instead."
        )


def init_linear_(linear: nn.Linear) -> None:
    """Xavier-uniform weight (Glorot & Bengio 2010), zero bias."""
    nn.init.xavier_uniform_(linear.weight)
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)
