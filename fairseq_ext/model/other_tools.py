"""Export fairseq's own Transformer to CTranslate2 or Hugging Face's transformers.

Models that these tools cannot compute are refused. CTranslate2's own writer writes its files. Some
classes of Hugging Face's transformers compute exactly what fairseq's models compute. In these
classes, most weights have the names of fairseq's weights after the prefix ``model.``.
"""

import math
import re
from pathlib import Path
from typing import Any, NamedTuple

from fairseq.data import Dictionary
from fairseq.models import BaseFairseqModel
from fairseq.models.transformer import TransformerDecoderBase, TransformerEncoderBase
from fairseq.modules import LearnedPositionalEmbedding, SinusoidalPositionalEmbedding
from fairseq.tasks.translation import TranslationTask
from safetensors.torch import save_file
from torch import Tensor

from fairseq_ext.checkpoints import bundle, layout
from fairseq_ext.checkpoints.size import BOOKKEEPING
from fairseq_ext.engine import compilers
from fairseq_ext.generation.translation_ext import Affixes
from fairseq_ext.model import trained
from fairseq_ext.text import pipeline
from fairseq_ext.utils import extras, files
from fairseq_ext.utils.errors import ConfigError
from fairseq_ext.utils.json_files import write_json
from fairseq_ext.utils.option_fields import flag

TRANSFORMERS = "Hugging Face's transformers"
TOOLS = {"ctranslate2": "CTranslate2", "huggingface": TRANSFORMERS}
ACTIVATIONS = ("relu", "gelu")
POSITIONS = (LearnedPositionalEmbedding, SinusoidalPositionalEmbedding)
_AFFINE = r"\.(weight|bias)"
_LAYER = (
    r"layers\.\d+\.((self|encoder)_attn\.([qkv]|out)_proj|fc[12]|"
    rf"(self_attn_|encoder_attn_|final_)layer_norm){_AFFINE}"
)
STATE = re.compile(
    rf"(encoder|decoder)\.(version|embed_tokens\.weight|output_projection\.weight|{_LAYER}|"
    rf"embed_positions\.(weight|_float_tensor)|(layer_norm|layernorm_embedding){_AFFINE})"
)
"""The names of a Transformer's weights. A model with any other weight computes something else."""


def export_to(tool: str, path: Path, data: Path, output: Path) -> str:
    """Write a model in the format of another tool, ``ctranslate2`` or ``huggingface``.

    ``path`` is a checkpoint or bundle, and ``data`` the folder with the model's dictionaries.
    Return the name of the model's architecture in fairseq. Raise ConfigError if the other tool
    cannot compute the model, or ``output`` is not empty. After an error, ``output`` stays empty.
    """
    files.require_new(output)
    (model,), cfg, task = trained.load(data, [path])
    model.eval().requires_grad_(False)
    architecture = layout.architecture({"cfg": cfg})
    feature = _foreign_feature(model, task, architecture)
    if feature is not None:
        raise ConfigError(f"{path} cannot be expressed in {TOOLS[tool]}, which has no {feature}.")
    with files.atomic_folder(output) as folder:
        write = write_ctranslate2 if tool == "ctranslate2" else write_huggingface
        write(StockTransformer(model, task), folder)
        languages = task.cfg.source_lang, task.cfg.target_lang
        if text := pipeline.find_towards((bundle.home(path), data), *languages):
            text.save(folder)
    return architecture


class StockTransformer:
    """A trained Transformer of fairseq, with the options that decide what it computes."""

    def __init__(self, model: BaseFairseqModel, task: TranslationTask) -> None:
        encoder, decoder = self.sides = (model.encoder, model.decoder)
        self.model, self.src, self.tgt = model, task.cfg.source_lang, task.cfg.target_lang
        self.source, self.target = task.source_dictionary, task.target_dictionary
        self.activation = decoder.cfg.activation_fn
        self.heads = tuple(side.layers[0].self_attn.num_heads for side in self.sides)
        self.pre_norm = bool(encoder.cfg.encoder.normalize_before)
        self.learned_positions = isinstance(encoder.embed_positions, LearnedPositionalEmbedding)
        self.normalizes_embeddings = encoder.layernorm_embedding is not None
        self.longest = (int(encoder.max_source_positions), int(decoder.max_target_positions))
        table = decoder.embed_tokens.weight
        self.ties_output = table is decoder.output_projection.weight
        self.shares_all_embeddings = table is encoder.embed_tokens.weight and self.ties_output


def _foreign_feature(model: Any, task: TranslationTask, architecture: str) -> str | None:
    """Return a phrase for a feature of the model that the other tools lack, or None."""
    encoder, decoder = getattr(model, "encoder", None), getattr(model, "decoder", None)
    like = f"architecture like `{architecture}`"
    packages = {type(module).__module__.partition(".")[0] for module in model.modules()}
    if not isinstance(encoder, TransformerEncoderBase) or not packages <= {"torch", "fairseq"}:
        return like
    if not isinstance(decoder, TransformerDecoderBase):
        return like
    compilers.require_no_additions(model)
    for name in model.state_dict():
        if not STATE.fullmatch(name):
            return f"weight like `{name}`"
    cfg, sides = decoder.cfg, (encoder, decoder)
    positions = {type(side.embed_positions) for side in sides}
    if len(positions) > 1 or not positions <= {*POSITIONS}:
        return "model without positions, or with other positions on each side"
    norms = {bool(options.normalize_before) for options in (cfg.encoder, cfg.decoder)}
    if len(norms | {side.layer_norm is not None for side in sides}) > 1:
        return "norm before the sublayers of one side alone, or without a final norm"
    for option in ("cross_self_attention", "no_cross_attention"):
        if getattr(cfg, option, False):
            return f"`{flag(option)}`"
    if cfg.activation_fn not in ACTIVATIONS:
        return f"activation `{cfg.activation_fn}`"
    if getattr(task.cfg, "source_bos", False):
        return "`<s>` before each source (--source-bos)"
    for option in Affixes._fields:  # both tools would translate without these symbols, and not warn
        if getattr(task.cfg, option, ""):
            return f"`{getattr(task.cfg, option)}` at each sentence ({flag(option)})"
    return None


# ---- CTranslate2 ---------------------------------------------------------------------------------


def write_ctranslate2(stock: StockTransformer, folder: Path) -> None:
    """Write ``model.bin`` and the files that belong to it with CTranslate2's own writer."""
    extras.need("ctranslate2")
    from ctranslate2.converters.fairseq import set_transformer_decoder, set_transformer_encoder
    from ctranslate2.specs import common_spec, transformer_spec

    heads = stock.heads
    if heads[0] != heads[1]:
        raise ConfigError(
            f"CTranslate2 needs as many heads in the encoder as in the decoder, but the model has "
            f"{heads[0]} and {heads[1]}."
        )
    encoder, decoder = stock.sides
    spec = transformer_spec.TransformerSpec.from_config(
        (len(encoder.layers), len(decoder.layers)),
        heads[0],
        pre_norm=stock.pre_norm,
        activation=common_spec.Activation[stock.activation.upper()],
        layernorm_embedding=stock.normalizes_embeddings,
    )
    set_transformer_encoder(spec.encoder, encoder)
    set_transformer_decoder(spec.decoder, decoder)
    for side, register in (
        (stock.source, spec.register_source_vocabulary),
        (stock.target, spec.register_target_vocabulary),
    ):  # CTranslate2 has its own name for the symbol of padding
        register(["<blank>" if symbol == "<pad>" else symbol for symbol in side.symbols])
    spec.config.decoder_start_token = spec.config.eos_token
    spec.config.add_source_eos = True
    spec.validate()
    spec.optimize()
    spec.save(str(folder))


# ---- Hugging Face --------------------------------------------------------------------------------


class ModelClass(NamedTuple):
    """A model class of Hugging Face's transformers."""

    name: str
    kind: str  # the `model_type` of its models
    first_position: int = 2  # row of position 0 in its table of positions


CLASSES = {
    (False, False, False): ModelClass("FSMTForConditionalGeneration", "fsmt"),
    (True, False, False): ModelClass("M2M100ForConditionalGeneration", "m2m_100"),
    (False, True, True): ModelClass("BartForConditionalGeneration", "bart"),
    (True, True, True): ModelClass("MBartForConditionalGeneration", "mbart"),
    (True, True, False): ModelClass("BlenderbotForConditionalGeneration", "blenderbot", 0),
}
"""Classes by three features: pre-norm, learned positions, layer norm of the embeddings."""


def model_class(stock: StockTransformer) -> ModelClass:
    """Return the class of Hugging Face's transformers for a model, or raise ConfigError."""
    shared = stock.shares_all_embeddings
    width, of_decoder = (side.embed_tokens.embedding_dim for side in stock.sides)
    scales = [side.embed_scale for side in stock.sides]
    kind = CLASSES.get((stock.pre_norm, stock.learned_positions, stock.normalizes_embeddings))
    if (
        kind is None
        or (kind.kind != "fsmt" and not shared)
        or width != of_decoder
        or not all(min(abs(scale - 1), abs(scale - math.sqrt(width))) < 1e-6 for scale in scales)
    ):
        raise ConfigError(
            f"no class of {TRANSFORMERS} has norm {'before' if stock.pre_norm else 'after'} the "
            f"sublayers, {'learned' if stock.learned_positions else 'sinusoidal'} positions, "
            f"{'a' if stock.normalizes_embeddings else 'no'} norm of embeddings, and embeddings of "
            f"{width} and {of_decoder} channels {'in one table' if shared else 'in several tables'}"
            f" times {scales[0]:g} and {scales[1]:g}; see docs/howto/ship.md."
        )
    return kind


def write_huggingface(stock: StockTransformer, folder: Path) -> None:
    """Write a model for Hugging Face's transformers: weights, options, tokenizers."""
    extras.need("tokenizers")
    kind = model_class(stock)
    save_file(_weights(stock, kind), folder / "model.safetensors", {"format": "pt"})
    special: dict[str, Any] = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2}
    special |= {"decoder_start_token_id": 2, "forced_eos_token_id": None}
    write_json(folder / "config.json", {**_configuration(stock, kind), **special})
    longest = min(200, stock.longest[1] - 1)
    # As in fairseq, translations never have padding, and a search ends once it has `num_beams`
    # translations.
    search: dict[str, Any] = {"num_beams": 5, "length_penalty": 1.0, "early_stopping": True}
    search |= {"max_length": longest, "bad_words_ids": [[1]]}
    write_json(folder / "generation_config.json", {**special, **search})
    _write_tokenizer(stock.source, folder)
    if stock.source != stock.target:
        target = folder / "target"
        target.mkdir()
        _write_tokenizer(stock.target, target)


def _configuration(stock: StockTransformer, kind: ModelClass) -> dict[str, Any]:
    width = stock.sides[0].embed_tokens.embedding_dim
    content = {
        **{"architectures": [kind.name], "model_type": kind.kind, "is_encoder_decoder": True},
        **{"d_model": width, "dropout": 0.0, "activation_function": stock.activation},
        **{"attention_dropout": 0.0, "activation_dropout": 0.0, "dtype": "float32"},
        "scale_embedding": not math.isclose(stock.sides[0].embed_scale, 1.0),
        "tie_word_embeddings": stock.ties_output,
        "max_position_embeddings": max(stock.longest),
    }
    for name, side, heads in zip(("encoder", "decoder"), stock.sides, stock.heads, strict=True):
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
    """Return a model's weights under the names that ``kind`` gives them."""
    weights: dict[str, Tensor] = {}
    longest = max(stock.longest)
    for name, tensor in stock.model.state_dict().items():
        if name.endswith(BOOKKEEPING):
            continue
        if name.endswith("embed_positions.weight"):
            learned = tensor[2:]  # fairseq's positions begin after the padding's index, 1
            tensor = tensor.new_zeros(longest + kind.first_position, tensor.shape[1])
            tensor[kind.first_position :][: len(learned)] = learned
        weights[f"model.{name}"] = tensor.clone().contiguous()  # safetensors refuses tied tensors
    if kind.kind != "fsmt":
        table = weights.pop("model.decoder.output_projection.weight")
        weights |= {"model.shared.weight": table, "lm_head.weight": table.clone()}
        weights["final_logits_bias"] = table.new_zeros(1, len(table))
    return weights


def _write_tokenizer(dictionary: Dictionary, folder: Path) -> None:
    """Write a tokenizer for text in which blanks already separate the model's tokens."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    numbers = {symbol: number for number, symbol in enumerate(dictionary.symbols)}
    tokenizer = Tokenizer(models.WordLevel(numbers, unk_token="<unk>"))
    tokenizer.add_special_tokens(dictionary.symbols[:4])
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    ending = [("</s>", numbers["</s>"])]
    tokenizer.post_processor = processors.TemplateProcessing("$A </s>", special_tokens=ending)
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"}
    config |= {"model_max_length": 1024, **names}
    config |= {"model_input_names": ["input_ids", "attention_mask"]}
    config |= {"clean_up_tokenization_spaces": False}
    write_json(folder / "tokenizer_config.json", config)
