"""Build embedding tables, shared or not, and initialize linear layers."""

from __future__ import annotations

import torch
from fairseq.data import Dictionary
from torch import nn

from fairseq_ext.base.configuration import TranslationModelConfig
from fairseq_ext.utils.errors import ConfigError


def build_embedding(dictionary: Dictionary, embed_dim: int) -> nn.Embedding:
    """Build an embedding table ``[V, E]``: Xavier-uniform, and 0 for the pad symbol."""
    embedding = nn.Embedding(len(dictionary), embed_dim, padding_idx=dictionary.pad())
    nn.init.xavier_uniform_(embedding.weight)
    with torch.no_grad():
        embedding.weight[dictionary.pad()].zero_()
    return embedding


def build_embeddings(
    cfg: TranslationModelConfig, source: Dictionary, target: Dictionary
) -> tuple[nn.Embedding, nn.Embedding]:
    """Build the embedding tables of encoder and decoder; one with ``--share-all-embeddings``.

    Raises:
        ConfigError: one table was asked for, but the dictionaries or the sizes differ.
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
    """Initialize a layer: Xavier-uniform weight (Glorot & Bengio 2010), bias 0."""
    nn.init.xavier_uniform_(linear.weight)
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)
