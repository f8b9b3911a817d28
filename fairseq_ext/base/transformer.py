"""The base class of our architectures that are built on fairseq's Transformer."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable

from fairseq.models.transformer import TransformerModelBase
from fairseq.tasks import FairseqTask
from torch import nn

from fairseq_ext.base.configuration import (
    TransformerModelConfig,
    add_dataclass_args,
    transformer_config,
    with_defaults,
)
from fairseq_ext.base.embeddings import require_shareable

# Functions to call with every new model and its configuration. The wing `binary` adds a function
# that binarizes the layers named by the options, so that no wing has to import another.
after_build: list[Callable[[nn.Module, TransformerModelConfig], None]] = []


class TranslationTransformer(TransformerModelBase):
    """Base class of our architectures that are built on fairseq's Transformer."""

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
        cfg = with_defaults(cfg, cls.Config, task)
        if cfg.share_all_embeddings:
            require_shareable(cfg, task.source_dictionary, task.target_dictionary)
        model = super().build_model(transformer_config(cls.prepare(cfg)), task)
        cls.complete(model, cfg)
        for change in after_build:
            change(model, cfg)
        return model

    @classmethod
    def prepare(cls, cfg: TransformerModelConfig) -> TransformerModelConfig | Namespace:
        """Hook: change the configuration before fairseq's classes read it."""
        return cfg

    @classmethod
    def complete(cls, model: TransformerModelBase, cfg: TransformerModelConfig) -> None:
        """Hook: change the model after fairseq's classes have built it."""
