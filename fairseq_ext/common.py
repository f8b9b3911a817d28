"""What every wing shares: registration, the configuration all models have, embeddings."""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from fairseq.data import Dictionary
from fairseq.dataclass import FairseqDataclass
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models import (
    ARCH_MODEL_REGISTRY,
    MODEL_DATACLASS_REGISTRY,
    MODEL_REGISTRY,
    register_model_architecture,
)
from fairseq.models import register_model as fairseq_register_model
from omegaconf import II
from torch import nn

from fairseq_ext.errors import ConfigError, EnvironmentProblem

Model = TypeVar("Model", bound=type)


@dataclass
class TranslationModelConfig(FairseqDataclass):
    """The stock flags that every architecture of ours honours, under fairseq's own names.

    A flag that a model does not list is refused by name by the command's own parser.
    """

    dropout: float = field(default=0.1, metadata={"help": "dropout probability"})
    encoder_embed_dim: int = field(default=256, metadata={"help": "encoder embedding dimension"})
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
    return encoder, encoder


def init_linear_(linear: nn.Linear) -> None:
    """Xavier-uniform weight (Glorot & Bengio 2010), zero bias."""
    nn.init.xavier_uniform_(linear.weight)
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)
