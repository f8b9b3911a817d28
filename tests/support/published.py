"""Write small models with random weights in the layouts of fairseq's published models."""

import json
import re
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from fairseq.data import Dictionary
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from omegaconf import OmegaConf
from tokenizers import pre_tokenizers

from fairseq_ext.checkpoints import published
from fairseq_ext.text import subwords
from tests.support.harness import write_lines

LINES = [
    "Hello , world !",
    "the small dog sleeps near the old house",
    "a large house and a small dog",
    "we saw the dog in the house yesterday",
    "hello world , the house is old",
]
SIDES = ("encoder", "decoder")
SHAPE = {"embed_dim": 16, "ffn_embed_dim": 24, "attention_heads": 2, "layers": 2}
SIZES = {f"{side}_{name}": size for side in SIDES for name, size in SHAPE.items()}
MERGES = ["t h", "th e</w>", "o u", "h ou", "l d</w>", "l l", "o g</w>", "d og</w>", "h e"]


def model_of(
    arch: str, sizes: dict[str, Any], source: Dictionary, target: Dictionary
) -> tuple[torch.nn.Module, Namespace]:
    """Build a model, and the options that a checkpoint of 2019 would have."""
    parsed = {"max_source_positions": 1024, "max_target_positions": 1024, "weight_softmax": True}
    sizes = {**parsed, **sizes}  # only the parser sets these
    args = Namespace(arch=arch, task="translation", criterion="cross_entropy", **sizes)
    ARCH_CONFIG_REGISTRY[arch](args)
    torch.manual_seed(sizes.get("seed", 1))
    task = Namespace(source_dictionary=source, target_dictionary=target)
    model = ARCH_MODEL_REGISTRY[arch].build_model(args, task)
    return model, args


def write_tokens(folder: Path, kind: str) -> list[str]:
    """Write the files of a kind of subwords; return the pieces of :data:`LINES`."""
    folder.mkdir(parents=True, exist_ok=True)
    text = write_lines(folder.parent / f"{folder.name}.txt", LINES * 5)
    if kind == "fastbpe":
        counted = [f"{merge} {100 - number}" for number, merge in enumerate(MERGES)]
        paths = [write_lines(folder / "bpecodes", counted)]
    elif kind == "subword-nmt":
        paths = [write_lines(folder / "bpecodes", ["#version: 0.2", *MERGES])]
    elif kind == "sentencepiece":
        _, (learnt,) = subwords.learn("sentencepiece-bpe", [text], 60, folder)
        paths = [learnt.rename(folder / "sentencepiece.bpe.model")]
    else:
        letters = sorted(pre_tokenizers.ByteLevel.alphabet())
        encoder = {letter: number for number, letter in enumerate(letters)}
        (folder / "encoder.json").write_text(json.dumps(encoder), encoding="utf-8")
        (folder / "vocab.bpe").write_text("#version: 0.2\n", encoding="utf-8")
        paths = [folder / "encoder.json", folder / "vocab.bpe"]
    pieces = subwords.load(kind, paths).encode
    return sorted({piece for line in LINES for piece in pieces(line).split()})


LAYER_NORMS = {"encoder": ["self_attn", "final"], "decoder": ["self_attn", "encoder_attn", "final"]}
NEWER = re.compile(
    r"quant_noise_.*|checkpoint_activations|offload_activations|(en|de)coder_layer(drop|s_to_keep)|"
    r"tie_adaptive_.*|adaptive_input|no_cross_attention|cross_self_attention|layernorm_embedding|"
    r"no_scale_embedding|activation_(fn|dropout)|base_\w+|export|no_decoder_final_norm|"
    r"min_params_to_wrap"
)
"""Options of Transformers that came after 2018."""


def as_in_2018(arch: str, weights: dict[str, Any], args: Namespace) -> dict[str, Any]:
    """Rename weights as in models published in 2018 and 2019."""
    if arch == "fconv":
        return weights
    older = {name: w for name, w in weights.items() if not name.endswith("conv.conv_bias")}
    for name in [name for name in older if ".q_proj." in name]:
        parts = [name.replace(".q_proj.", f".{letter}_proj.") for letter in "qkv"]
        if len({weights[part.replace("bias", "weight")].shape for part in parts}) == 1:
            joined = torch.cat([older.pop(part) for part in parts])
            older[name.replace(".q_proj.", ".in_proj_")] = joined
    for side, kinds in LAYER_NORMS.items():
        for number, kind in enumerate(kinds if arch.startswith("transformer") else []):
            for name in [n for n in older if n.startswith(side) and f".{kind}_layer_norm." in n]:
                new = name.replace(f"{kind}_layer_norm", f"layer_norms.{number}")
                older[new] = older.pop(name)
    output = older.pop("decoder.output_projection.weight", None)
    if output is not None and not args.share_decoder_input_output_embed:
        older["decoder.embed_out"] = output
    return older


def state_of(args: Namespace, weights: dict[str, Any], cfg: bool = False) -> dict[str, Any]:
    """Return the content of a checkpoint after a training."""
    state = {
        "args": args,
        "model": weights,
        "optimizer_history": [{"criterion_name": "X", "best_loss": 1.0, "num_updates": 7}],
        "extra_state": {"train_iterator": {"epoch": 3, "iterations_in_epoch": 0}},
        "last_optimizer_state": None,
    }
    if cfg:
        settings = convert_namespace_to_omegaconf(args)
        values = {**OmegaConf.to_container(settings, enum_to_str=True), "model": args}
        # Pickled with OmegaConf's classes, as fairseq did in 2020 and 2021.
        nodes = OmegaConf.create(values, flags={"allow_objects": True})
        state |= {"args": None, "cfg": nodes}
    return state


def fill(words: Dictionary, vocabulary: int) -> None:
    """Add symbols that no text has, up to ``vocabulary`` symbols, as in published models."""
    for number in range(vocabulary - len(words)):
        words.add_symbol(f"madeupword{number:04}")


def publish(
    folder: Path,
    arch: str = "transformer",
    *,
    kind: str = "fastbpe",
    models: int = 1,
    legacy: bool = True,
    vocabulary: int = 0,
    options: dict[str, Any] | None = None,
    **sizes: Any,
) -> Path:
    """Write a small random model, English to German, in the form of fairseq's published models.

    Args:
        kind: kind of subwords.
        models: number of models in the ensemble.
        legacy: whether to write torch's format from before 1.6, with the weights and options named
            as in fairseq of 2018; if false, the newer kind of configuration instead of ``args``.
        vocabulary: minimum number of symbols of the source dictionary. The target dictionary has
            as many symbols, or three more without ``share_all_embeddings``.
        options: further options of the checkpoint.
        sizes: options of the architecture.
    """
    words, others = Dictionary(), Dictionary()
    for piece in write_tokens(folder, kind):
        words.add_symbol(piece)
        others.add_symbol(piece)
    fill(words, vocabulary)
    fill(others, len(words) if sizes.get("share_all_embeddings") else len(words) + 3)
    words.save(str(folder / "dict.en.txt"))
    others.save(str(folder / "dict.de.txt"))
    names = [f"model{n}.pt" for n in range(1, models + 1)] if models > 1 else ["model.pt"]
    for seed, name in enumerate(names):
        model, args = model_of(arch, {**SIZES, "seed": seed, **sizes}, words, others)
        args.source_lang, args.target_lang, args.data = "en", "de", "/private/data"
        args.left_pad_source, args.left_pad_target = "True", "False"
        weights = model.state_dict()
        if legacy:
            weights = as_in_2018(arch, weights, args)
            for option in [o for o in vars(args) if NEWER.fullmatch(o) and o not in sizes]:
                delattr(args, option)
        vars(args).update(options or {})
        state = state_of(args, weights, cfg=not legacy)
        torch.save(state, folder / name, _use_new_zipfile_serialization=not legacy)
    return folder


CODES = ["cs", "de", "en", "fr"]
TOKENS = {"multilingual": "__{}__", "mbart": "[{}]"}


class Layout(NamedTuple):
    """The files of a published model of many languages."""

    checkpoint: str = "model.pt"
    subwords: str = "sentencepiece.bpe.model"
    dictionary: str = "dict.txt"  # with {} for the language if there are several
    with_tokens: bool = False  # whether the dictionary has language tokens and filling
    lists: str = ""  # name of a file with the languages, or with their pairs
    cfg: bool = False  # whether its options are in the newer kind of configuration
    others: Sequence[str] = ()  # checkpoints of other models beside it


PLAIN = Layout()


def publish_many(
    folder: Path,
    task: str,
    arch: str = "transformer",
    style: str = "multilingual",
    *,
    layout: Layout = PLAIN,
    vocabulary: int = 0,
    sizes: dict[str, Any] | None = None,
    **options: Any,
) -> tuple[Path, Dictionary, torch.nn.Module]:
    """Write a small random model of many languages in the form of fairseq's published models.

    Return folder, dictionary and model.
    """
    words = Dictionary()
    for piece in write_tokens(folder, "sentencepiece"):
        words.add_symbol(piece)
    (folder / "sentencepiece.bpe.model").rename(folder / layout.subwords)
    codes = options["langs"] if isinstance(options.get("langs"), list) else CODES
    symbols = [TOKENS[style].format(code) for code in codes]
    symbols += ["<mask>"] if style == "mbart" else []
    if options.get("add_data_source_prefix_tags"):
        symbols += published.DATA_TAGS
    if not layout.with_tokens:
        fill(words, vocabulary - len(symbols))
        save_dictionary(words, folder, layout)
    for symbol in symbols:
        words.add_symbol(symbol)
    if layout.with_tokens:
        fill(words, vocabulary)
        save_dictionary(words, folder, layout)
    if layout.lists:
        pairs = [f"{src}-{tgt}" for src in CODES for tgt in CODES if src != tgt]
        content = ",".join(pairs) if "pairs" in layout.lists else "\n".join(CODES)
        (folder / layout.lists).write_text(f"{content}\n", encoding="utf-8")
    sizes = {**SIZES, "share_all_embeddings": True, "seed": 3, **(sizes or {})}
    model, args = model_of(arch, sizes, words, words)
    if style == "mbart" and task == "translation_multi_simple_epoch":
        args.arch = "denoising_large"  # as mBART-50 is published
    values = {"left_pad_source": "True", "left_pad_target": "False", "data": "/private/data"}
    for name, value in {**values, "task": task, **options}.items():
        setattr(args, name, value)
    torch.save(state_of(args, model.state_dict(), layout.cfg), folder / layout.checkpoint)
    for other in layout.others:
        (folder / other).write_bytes(b"of another model")
    return folder, words, model.eval()


def save_dictionary(words: Dictionary, folder: Path, layout: Layout) -> None:
    """Write one dictionary for all languages, or one for each."""
    for name in {layout.dictionary.format(code) for code in CODES}:
        words.save(str(folder / name))
