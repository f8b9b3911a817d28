"""Write small models with random weights in the layouts of fairseq's published models."""

import json
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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


def model_of(arch: str, sizes: dict[str, Any], task: Any) -> tuple[torch.nn.Module, Namespace]:
    """Build a model, and the options that a checkpoint of 2019 would have."""
    parsed = {"max_source_positions": 1024, "max_target_positions": 1024, "weight_softmax": True}
    sizes = {**parsed, **sizes}  # only the parser sets these
    args = Namespace(arch=arch, task="translation", criterion="cross_entropy", **sizes)
    ARCH_CONFIG_REGISTRY[arch](args)
    torch.manual_seed(sizes.get("seed", 1))
    model = ARCH_MODEL_REGISTRY[arch].build_model(args, task)
    return model, args


class Words:
    """A task with only the attributes that building a model needs."""

    def __init__(self, source: Dictionary, target: Dictionary) -> None:
        self.source_dictionary, self.target_dictionary = source, target


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


def as_in_2019(arch: str, weights: dict[str, Any], args: Namespace) -> dict[str, Any]:
    """Rename weights as in published LightConv models."""
    if not arch.startswith("lightconv"):
        return weights
    older = {name: w for name, w in weights.items() if not name.endswith("conv.conv_bias")}
    output = older.pop("decoder.output_projection.weight")
    if not args.share_decoder_input_output_embed:
        older["decoder.embed_out"] = output
    return older


def state_of(args: Namespace, weights: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a checkpoint after a training."""
    return {
        "args": args,
        "model": weights,
        "optimizer_history": [{"criterion_name": "X", "best_loss": 1.0, "num_updates": 7}],
        "extra_state": {"train_iterator": {"epoch": 3, "iterations_in_epoch": 0}},
        "last_optimizer_state": None,
    }


def publish(
    folder: Path,
    arch: str = "transformer",
    *,
    kind: str = "fastbpe",
    languages: Sequence[str] = ("en", "de"),
    models: int = 1,
    legacy: bool = True,
    cfg: bool = False,
    **sizes: Any,
) -> Path:
    """Write a published model of two languages.

    Args:
        folder: folder of the model.
        arch: architecture.
        kind: kind of subwords.
        languages: source and target.
        models: number of models in the ensemble.
        legacy: whether to write torch's format from before 1.6.
        cfg: whether to write the newer kind of configuration instead of ``args``.
        sizes: options of the architecture.
    """
    words = Dictionary()
    for piece in write_tokens(folder, kind):
        words.add_symbol(piece)
    for language in languages:
        words.save(str(folder / f"dict.{language}.txt"))
    names = [f"model{n}.pt" for n in range(1, models + 1)] if models > 1 else ["model.pt"]
    for seed, name in enumerate(names):
        model, args = model_of(arch, {**SIZES, "seed": seed, **sizes}, Words(words, words))
        args.source_lang, args.target_lang, args.data = *languages, "/private/data"
        args.left_pad_source, args.left_pad_target = "True", "False"
        state = state_of(args, as_in_2019(arch, model.state_dict(), args))
        if cfg:
            settings = convert_namespace_to_omegaconf(args)
            values = {**OmegaConf.to_container(settings, enum_to_str=True), "model": args}
            # Pickled with OmegaConf's classes, as fairseq did in 2020 and 2021.
            nodes = OmegaConf.create(values, flags={"allow_objects": True})
            state |= {"args": None, "cfg": nodes}
        torch.save(state, folder / name, _use_new_zipfile_serialization=not legacy)
    return folder


CODES = ["cs", "de", "en", "fr"]
TOKENS = {"multilingual": "__{}__", "mbart": "[{}]"}


def publish_many(
    folder: Path, task: str, arch: str = "transformer", style: str = "multilingual", **options: Any
) -> tuple[Path, Dictionary, torch.nn.Module]:
    """Write a published model of :data:`CODES`; return folder, dictionary and model."""
    words = Dictionary()
    for piece in write_tokens(folder, "sentencepiece"):
        words.add_symbol(piece)
    if style == "mbart":
        for code in CODES:
            words.save(str(folder / f"dict.{code}.txt"))
    else:
        words.save(str(folder / "dict.txt"))
    for code in CODES:
        words.add_symbol(TOKENS[style].format(code))
    if style == "mbart":
        words.add_symbol("<mask>")
    if options.get("add_data_source_prefix_tags"):
        for tag in published.DATA_TAGS:
            words.add_symbol(tag)
    sizes = {**SIZES, "share_all_embeddings": True, "seed": 3}
    model, args = model_of(arch, sizes, Words(words, words))
    if style == "mbart" and task == "translation_multi_simple_epoch":
        args.arch = "denoising_large"  # as mBART-50 is published
    values = {"left_pad_source": "True", "left_pad_target": "False", "data": "/private/data"}
    for name, value in {**values, "task": task, **options}.items():
        setattr(args, name, value)
    torch.save(state_of(args, model.state_dict()), folder / "model.pt")
    return folder, words, model.eval()
