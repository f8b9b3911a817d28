"""Register architectures, build embedding tables, and give our Transformers a base class."""

from argparse import Namespace
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, TypeVar

import torch
from fairseq import models
from fairseq.data import Dictionary
from fairseq.dataclass import FairseqDataclass
from fairseq.models import BaseFairseqModel
from fairseq.models import register_model as fairseq_register_model
from fairseq.models.transformer import (
    TransformerConfig,
    TransformerDecoderBase,
    TransformerEncoderBase,
    TransformerModelBase,
)
from fairseq.tasks import FairseqTask
from torch import nn

from fairseq_ext.base import configuration
from fairseq_ext.base.configuration import TransformerModelConfig, TranslationModelConfig
from fairseq_ext.utils.errors import ConfigError, EnvironmentProblem

Model = TypeVar("Model", bound=type)


def register_model(name: str, dataclass: type[FairseqDataclass]) -> Callable[[Model], Model]:
    """Return a class decorator that registers a model with fairseq under the name ``name``.

    ``dataclass`` declares the model's options, and becomes the class's ``Config``. Raise
    EnvironmentProblem if another model or architecture has this name.
    """

    def register(cls: Model) -> Model:
        refuse_taken(name, cls)
        cls.Config = dataclass  # type: ignore[attr-defined]
        return fairseq_register_model(name, dataclass=dataclass)(cls)

    return register


def register_architecture(model_name: str, name: str, **defaults: Any) -> None:
    """Register the architecture ``name``: the model ``model_name`` with other ``defaults``.

    Raises:
        EnvironmentProblem: another model or architecture has this name.
        TypeError: one of ``defaults`` is no option of the model.
    """
    unknown = defaults.keys() - models.MODEL_DATACLASS_REGISTRY[model_name].__dataclass_fields__
    if unknown:
        raise TypeError(f"{name}: {sorted(unknown)} are not options of {model_name}")
    refuse_taken(name, models.MODEL_REGISTRY[model_name])

    def set_defaults(args: Namespace) -> None:
        for option, value in defaults.items():
            if not hasattr(args, option):
                setattr(args, option, value)

    models.register_model_architecture(model_name, name)(set_defaults)


def both_sides(embed_dim: int, ffn_embed_dim: int, heads: int, **extra: int) -> dict[str, int]:
    """Return options, such as ``encoder_embed_dim``, that make encoder and decoder equal in size.

    ``extra`` has further sizes: ``layers=6`` sets ``encoder_layers`` and ``decoder_layers``.
    """
    sizes = {"embed_dim": embed_dim, "ffn_embed_dim": ffn_embed_dim, "attention_heads": heads}
    sizes |= extra
    return {f"{side}_{name}": sizes[name] for side in ("encoder", "decoder") for name in sizes}


def refuse_taken(name: str, cls: type) -> None:
    """Raise EnvironmentProblem if ``name``, which ``cls`` wants to have, is already registered."""
    registered = models.MODEL_REGISTRY.get(name) or models.ARCH_MODEL_REGISTRY.get(name)
    if registered is not None:
        raise EnvironmentProblem(
            f"the model name `{name}` of {cls.__module__} is already taken by "
            f"{registered.__module__}.{registered.__qualname__}. Load only one of the two plugins "
            "(look at --user-dir), or rename the other one's model."
        )


def models_with(option: str) -> list[str]:
    """Return the names of our models that have an option, such as ``binary_weights``, sorted."""
    return sorted(
        name
        for name, config in models.MODEL_DATACLASS_REGISTRY.items()
        if models.MODEL_REGISTRY[name].__module__.startswith("fairseq_ext.")
        and option in config.__dataclass_fields__
    )


def options_without_effect(args: Namespace) -> dict[str, str]:
    """Return ``{option: requirement}`` for the options of ``args.arch`` that have no effect.

    For example, ``{"attention_dim": "`--attention-type mlp`"}`` says that ``attention_dim`` has no
    effect without ``--attention-type mlp``. The result is {} for architectures of other packages.
    """
    model = models.ARCH_MODEL_REGISTRY.get(getattr(args, "arch", None))
    if not hasattr(model, "without_effect"):
        return {}
    defaults = {name: option.default for name, option in model.Config.__dataclass_fields__.items()}
    return dict(model.without_effect(Namespace(**{**defaults, **vars(args)})))


def build_embedding(dictionary: Dictionary, embed_dim: int) -> nn.Embedding:
    """Build an embedding table ``[symbols, embed_dim]``: Xavier-uniform, 0 for the pad symbol."""
    embedding = nn.Embedding(len(dictionary), embed_dim, padding_idx=dictionary.pad())
    nn.init.xavier_uniform_(embedding.weight)
    with torch.no_grad():
        embedding.weight[dictionary.pad()].zero_()
    return embedding


def require_shareable(cfg: TranslationModelConfig, source: Dictionary, target: Dictionary) -> None:
    """Raise ConfigError unless source and target have one dictionary and one embedding size."""
    if source != target:
        raise ConfigError(
            "`--share-all-embeddings` must have one dictionary for both languages, but the "
            f"dictionaries of source ({len(source)} symbols) and target ({len(target)} symbols) "
            "differ. Run fairseq-preprocess with --joined-dictionary."
        )
    if cfg.encoder_embed_dim != cfg.decoder_embed_dim:
        raise ConfigError(
            "`--decoder-embed-dim` must equal `--encoder-embed-dim` "
            f"({cfg.encoder_embed_dim}) with `--share-all-embeddings`, but is "
            f"{cfg.decoder_embed_dim} instead."
        )


def init_linear_(linear: nn.Linear) -> None:
    """Initialize a linear layer: Xavier-uniform weight (Glorot & Bengio 2010), bias 0."""
    nn.init.xavier_uniform_(linear.weight)
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)


class TranslationTransformer(TransformerModelBase):
    """The base of our models that are fairseq's Transformer with other layers.

    A subclass sets the classes of encoder and decoder, or changes the model in :meth:`complete`.
    """

    Config: type[TransformerModelConfig]
    encoder_class: type[TransformerEncoderBase] = TransformerEncoderBase
    decoder_class: type[TransformerDecoderBase] = TransformerDecoderBase
    binarization: ModuleType | None = None
    """The module :mod:`fairseq_ext.binary.compose`, which binarizes the layers that options name.
    That module sets this attribute itself, so that no paper's folder has to import another."""

    # fairseq's Transformer would add its own options, too.
    add_args: Any = classmethod(BaseFairseqModel.add_args.__func__)

    @classmethod
    def build_model(cls, cfg: TransformerModelConfig, task: FairseqTask) -> TransformerModelBase:
        """Build the model for a task's dictionaries.

        Raise ConfigError if options exclude each other.
        """
        options: Any = configuration.with_defaults(cfg, cls.Config, task)
        if options.share_all_embeddings:
            require_shareable(options, task.source_dictionary, task.target_dictionary)
        model = super().build_model(configuration.transformer_config(options), task)
        cls.complete(model, options)
        if cls.binarization is not None:
            cls.binarization.binarize_model(model, options)
        return model

    @classmethod
    def without_effect(cls, cfg: Namespace) -> Iterator[tuple[str, str]]:
        """Yield each option without effect in ``cfg``, and what would give it an effect."""
        if cls.binarization is not None:
            yield from cls.binarization.without_effect(cfg)

    @classmethod
    def build_encoder(
        cls, cfg: TransformerConfig, src_dict: Dictionary, embed_tokens: nn.Embedding
    ) -> TransformerEncoderBase:
        return cls.encoder_class(cfg, src_dict, embed_tokens)

    @classmethod
    def build_decoder(
        cls, cfg: TransformerConfig, tgt_dict: Dictionary, embed_tokens: nn.Embedding
    ) -> TransformerDecoderBase:
        return cls.decoder_class(cfg, tgt_dict, embed_tokens)

    @classmethod
    def complete(cls, model: TransformerModelBase, cfg: TransformerModelConfig) -> None:
        """Change ``model``, built by fairseq, as ``cfg`` says; subclasses may override this."""
