"""Write fairseq's Transformer as a model of Hugging Face's library transformers.

The library has classes for models from fairseq, which compute the same. Their weights have the same
names after ``model.``. Writing a model needs only its library of tokenizers.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fairseq.data import Dictionary
from safetensors.torch import save_file
from torch import Tensor

from fairseq_ext.utils import extras
from fairseq_ext.utils.errors import ConfigError

if TYPE_CHECKING:
    from fairseq_ext.model.other_tools import StockTransformer

TOOL = "Hugging Face's transformers"


class ModelClass(NamedTuple):
    """A class of the library, and where its tables of learned positions begin."""

    name: str
    kind: str
    first_position: int = 2


CLASSES = {
    (False, False, False): ModelClass("FSMTForConditionalGeneration", "fsmt"),
    (True, False, False): ModelClass("M2M100ForConditionalGeneration", "m2m_100"),
    (False, True, True): ModelClass("BartForConditionalGeneration", "bart"),
    (True, True, True): ModelClass("MBartForConditionalGeneration", "mbart"),
    (True, True, False): ModelClass("BlenderbotForConditionalGeneration", "blenderbot", 0),
}
"""Classes by whether layers normalize first, positions are learned, embeddings are normalized."""


def model_class(stock: StockTransformer) -> ModelClass:
    """Find the library's class whose computation equals the model's."""
    features = (stock.pre_norm, stock.learned_positions, stock.normalizes_embeddings)
    kind = CLASSES.get(features)
    words = (
        "norm before the sublayers" if stock.pre_norm else "norm after the sublayers",
        "learned positions" if stock.learned_positions else "sinusoidal positions",
        f"{'a' if stock.normalizes_embeddings else 'no'} norm of embeddings",
    )
    if kind is None:
        raise ConfigError(f"no class of {TOOL} has {', '.join(words)} together.")
    if kind.kind != "fsmt" and not stock.shares_all_embeddings:
        raise ConfigError(
            f"{kind.name}, which {TOOL} has for {words[0]} and {words[1]}, has one table for "
            "source, target and output (--share-all-embeddings); this model has several."
        )
    width = stock.model.encoder.embed_tokens.embedding_dim
    for side in (stock.model.encoder, stock.model.decoder):
        if not any(math.isclose(side.embed_scale, scale) for scale in (1.0, math.sqrt(width))):
            raise ConfigError(f"no class of {TOOL} scales embeddings by {side.embed_scale:g}.")
    return kind


def write(stock: StockTransformer, folder: Path) -> None:
    """Write weights, configuration, search defaults and tokenizers into an empty folder."""
    extras.need("tokenizers")
    kind = model_class(stock)
    save_file(_weights(stock, kind), folder / "model.safetensors", {"format": "pt"})
    special: dict[str, Any] = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2}
    special |= {"decoder_start_token_id": 2, "forced_eos_token_id": None}
    _write_json(folder / "config.json", {**_configuration(stock, kind), **special})
    longest = min(200, stock.longest[1] - 1)
    # Like fairseq, never write the padding, and end a search with as many translations as the beam
    # is wide.
    search: dict[str, Any] = {"num_beams": 5, "length_penalty": 1.0, "early_stopping": True}
    search |= {"max_length": longest, "bad_words_ids": [[1]]}
    _write_json(folder / "generation_config.json", {**special, **search})
    _write_tokenizer(stock.source, folder)
    if not stock.has_joined_dictionary:
        target = folder / "target"
        target.mkdir()
        _write_tokenizer(stock.target, target)


def _configuration(stock: StockTransformer, kind: ModelClass) -> dict[str, Any]:
    encoder, decoder = stock.model.encoder, stock.model.decoder
    width = encoder.embed_tokens.embedding_dim
    content = {
        **{"architectures": [kind.name], "model_type": kind.kind, "is_encoder_decoder": True},
        **{"d_model": width, "dropout": 0.0, "activation_function": stock.activation},
        **{"attention_dropout": 0.0, "activation_dropout": 0.0, "dtype": "float32"},
        "scale_embedding": not math.isclose(encoder.embed_scale, 1.0),
        "tie_word_embeddings": stock.ties_output,
        "max_position_embeddings": max(stock.longest),
    }
    for name, side, heads in zip(
        ("encoder", "decoder"), (encoder, decoder), stock.heads, strict=True
    ):
        content[f"{name}_layers"] = len(side.layers)
        content[f"{name}_attention_heads"] = heads
        content[f"{name}_ffn_dim"] = side.layers[0].fc1.out_features
        content[f"{name}_layerdrop"] = 0.0
    sizes = len(stock.source), len(stock.target)
    if kind.kind == "fsmt":
        content |= {"langs": [stock.src, stock.tgt]}
        content |= {"src_vocab_size": sizes[0], "tgt_vocab_size": sizes[1]}
    else:
        content |= {"vocab_size": sizes[1], "add_final_layer_norm": True}
    return content


def _weights(stock: StockTransformer, kind: ModelClass) -> dict[str, Tensor]:
    """Return the state dict for a class; no tensors share memory, as the file format demands."""
    weights: dict[str, Tensor] = {}
    longest = max(stock.longest)
    for name, tensor in stock.model.state_dict().items():
        if name.endswith(("version", "_float_tensor")):
            continue
        if name.endswith("embed_positions.weight"):
            learned = tensor[2:]  # fairseq's positions begin after the padding's index, 1
            tensor = tensor.new_zeros(longest + kind.first_position, tensor.shape[1])
            tensor[kind.first_position :][: len(learned)] = learned
        weights[f"model.{name}"] = tensor.clone().contiguous()
    if kind.kind != "fsmt":
        table = weights.pop("model.decoder.output_projection.weight")
        weights |= {"model.shared.weight": table, "lm_head.weight": table.clone()}
        weights["final_logits_bias"] = table.new_zeros(1, len(table))
    return weights


def _write_tokenizer(dictionary: Dictionary, folder: Path) -> None:
    """Write a tokenizer for text that consists of the model's own tokens, separated by blanks."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    numbers = {symbol: number for number, symbol in enumerate(dictionary.symbols)}
    tokenizer = Tokenizer(models.WordLevel(numbers, unk_token="<unk>"))
    tokenizer.add_special_tokens(dictionary.symbols[:4])
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    ending = [("</s>", numbers["</s>"])]
    tokenizer.post_processor = processors.TemplateProcessing("$A </s>", special_tokens=ending)
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    _write_json(
        folder / "tokenizer_config.json",
        {
            **{"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 1024, **names},
            **{"model_input_names": ["input_ids", "attention_mask"]},
            "clean_up_tokenization_spaces": False,
        },
    )


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
