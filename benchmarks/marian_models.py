"""Write a fairseq transformer in Marian's format: its weights under Marian's names.

Unlike fairseq, Marian begins a translation with an embedding of zeros instead of the embedding of
``</s>``, and counts positions from 0. So call :func:`like_marian` before :func:`export`. Otherwise
the two models give different translations.
"""

import json
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
import yaml
from fairseq.data import Dictionary
from fairseq.models.transformer import TransformerModel
from torch import Tensor, nn

MODEL, VOCABULARY = "model.npz", "vocabulary.yml"
LAYER_NORMS = {"self_attn_layer_norm": "self_Wo", "encoder_attn_layer_norm": "context_Wo"}
LAYER_NORMS["final_layer_norm"] = "ffn_ffn"
ATTENTIONS = {"self_attn": "self", "encoder_attn": "context"}
PROJECTIONS = {"q_proj": "q", "k_proj": "k", "v_proj": "v", "out_proj": "o"}


@torch.no_grad()
def like_marian(model: TransformerModel, words: Dictionary) -> TransformerModel:
    """Set a model's position embeddings to Marian's sinusoids, and that of ``</s>`` to zeros.

    The model must have tables of positions (``--encoder-learned-pos``, ``--decoder-learned-pos``).
    Return the model.
    """
    for coder in (model.encoder, model.decoder):
        table = coder.embed_positions.weight
        count, half = len(table) - words.pad() - 1, table.size(1) // 2
        frequencies = torch.exp(torch.arange(half) * -(math.log(10000) / (half - 1)))
        angles = torch.arange(count)[:, None] * frequencies
        table.zero_()
        table[words.pad() + 1 :] = torch.cat((angles.sin(), angles.cos()), dim=1)
        coder.embed_tokens.weight[words.eos()] = 0
    return model


def export(model: TransformerModel, words: Dictionary, folder: Path) -> list[str]:
    """Write a model, which must share all embeddings; return Marian's options to load it."""
    table, layer = model.encoder.embed_tokens.weight, model.encoder.layers[0]
    settings = {
        "type": "transformer",
        "version": "v1.12.0",
        "dim-vocabs": [len(words)] * 2,
        "dim-emb": table.size(1),
        "enc-depth": len(model.encoder.layers),
        "dec-depth": len(model.decoder.layers),
        "transformer-heads": layer.self_attn.num_heads,
        "transformer-dim-ffn": layer.fc1.out_features,
        "transformer-decoder-dim-ffn": layer.fc1.out_features,
        "transformer-ffn-depth": 2,
        "transformer-decoder-ffn-depth": 2,
        "transformer-ffn-activation": "relu",
        "transformer-preprocess": "",
        "transformer-postprocess": "dan",
        "transformer-postprocess-emb": "d",
        "transformer-postprocess-top": "",
        "tied-embeddings-all": True,
        "tied-embeddings": False,
        "tied-embeddings-src": False,
    }
    arrays = {"Wemb": table, "decoder_ff_logit_out_b": torch.zeros(1, len(words))}
    for side, coder in (("encoder", model.encoder), ("decoder", model.decoder)):
        for number, module in enumerate(coder.layers, 1):
            arrays |= {f"{side}_l{number}_{name}": array for name, array in of_layer(module)}
    written = {name: array.detach().float().numpy() for name, array in arrays.items()}
    header = np.frombuffer(f"{yaml.dump(settings)}\0".encode(), np.int8)
    np.savez(folder / MODEL, **{"special:model.yml": header}, **written)
    entries = {symbol: number for number, symbol in enumerate(words.symbols)}
    (folder / VOCABULARY).write_text(
        "".join(f"{json.dumps(symbol)}: {number}\n" for symbol, number in entries.items())
    )
    return [
        *("--models", str(folder / MODEL), "--vocabs", *[str(folder / VOCABULARY)] * 2),
        *("--allow-unk", "--normalize", "1", "--quiet"),
    ]


def of_layer(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield a layer's weights with Marian's names, with matrices transposed and vectors as rows."""
    for name, short in ATTENTIONS.items():
        for projection, letter in PROJECTIONS.items():
            if hasattr(module, name):
                yield from product(getattr(getattr(module, name), projection), short, letter)
    yield from product(module.fc1, "ffn", "1")
    yield from product(module.fc2, "ffn", "2")
    for name, short in LAYER_NORMS.items():
        if hasattr(module, name):
            norm = getattr(module, name)
            yield f"{short}_ln_scale", norm.weight[None]
            yield f"{short}_ln_bias", norm.bias[None]


def product(layer: nn.Linear, name: str, letter: str) -> Iterator[tuple[str, Tensor]]:
    yield f"{name}_W{letter}", layer.weight.t().contiguous()
    yield f"{name}_b{letter}", layer.bias[None]
