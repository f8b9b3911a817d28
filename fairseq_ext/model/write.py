"""Make a bundle from a checkpoint; :mod:`fairseq_ext.checkpoints.bundle` defines the format."""

import dataclasses
import importlib
import logging
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from fairseq import models, utils
from fairseq.tasks import TASK_DATACLASS_REGISTRY
from fairseq.tasks.translation import TranslationTask
from omegaconf import OmegaConf
from safetensors.torch import save
from torch import Tensor

from fairseq_ext.base import wings
from fairseq_ext.base.configuration import namespace
from fairseq_ext.checkpoints import bundle, layout, storage
from fairseq_ext.engine import BEGIN, END, NUMBERS, PAD, UNKNOWN
from fairseq_ext.engine.compilers import compile_model
from fairseq_ext.engine.engine_model import NO_AFFIXES
from fairseq_ext.engine.program import Program
from fairseq_ext.engine.shortlist import read as read_shortlist
from fairseq_ext.engine.tensors import INT8, SCALE, Tensors
from fairseq_ext.engine.weights import to_int8
from fairseq_ext.generation.translation_ext import TranslationExtTask
from fairseq_ext.model import program_file, trained
from fairseq_ext.model.card import Card
from fairseq_ext.text import pipeline
from fairseq_ext.utils import extras, files
from fairseq_ext.utils.errors import CheckpointError, ConfigError
from fairseq_ext.utils.json_files import write_json
from fairseq_ext.version import __version__

CARD = "README.md"
TABLES = ("embed_tokens.weight", "output_projection.weight")
"""Endings of the names of weights that ``bits-int8`` stores in int8."""

logger = logging.getLogger(__name__)


def write(
    checkpoint: Path,
    data: Path,
    output: Path,
    *,
    numbers: str = "fp32",
    search: Mapping[str, object] | None = None,
    shortlist: Path | None = None,
    card: Card | None = None,
    change: Callable[..., tuple[models.BaseFairseqModel, TranslationTask]] | None = None,
) -> bundle.Bundle:
    """Write a checkpoint as a bundle, completely or not at all, and return the bundle.

    Args:
        checkpoint: a checkpoint or bundle of any architecture.
        data: folder with the model's dictionaries.
        output: a new or empty folder, or a new archive with the ending ``.zip`` or ``.tar.zst``.
        numbers: format of the weights, one of :data:`bundle.KINDS`.
        search: search options that become the bundle's defaults, such as ``{"beam": 4}``.
        shortlist: file that `fairseq-ext shortlist` wrote. If it is None and ``checkpoint`` is a
            bundle, the shortlist of this bundle is copied.
        card: the part of the model card that only the model's maker can write.
        change: function from the model, its configuration and its task to the model and the task
            that are written instead.

    Raises:
        CheckpointError: the checkpoint cannot be read, or ``numbers`` is ``bits`` or
            ``bits-int8``, but no weights are binary or ternary.
        ConfigError: ``output`` is neither new nor empty, or ``numbers`` would round binary weights.
    """
    with _output_folder(output) as folder:
        if shortlist is None and bundle.is_bundle(checkpoint):
            shortlist = bundle.home(checkpoint) / bundle.SHORTLIST
            shortlist = shortlist if shortlist.is_file() else None
        if shortlist is not None:
            shutil.copyfile(files.require_file(shortlist, "shortlist"), folder / bundle.SHORTLIST)
        (model,), cfg, task = trained.load(data, [checkpoint])
        if change is not None:
            model, task = change(model, cfg, task)
        if numbers in ("bf16", "int8") and layout.BINARY_STAGE in model.state_dict():
            raise ConfigError(
                f"`--numbers {numbers}` would round weights that {checkpoint} binarizes; "
                f"`--numbers {bundle.BITS}` stores them in bits."
            )
        try:
            _write_model(model, cfg, task, folder, numbers)
        except CheckpointError as error:
            raise CheckpointError(f"{checkpoint} {error}") from None
        src, tgt = task.cfg.source_lang, task.cfg.target_lang
        for language, words in ((src, task.source_dictionary), (tgt, task.target_dictionary)):
            words.save(str(folder / f"dict.{language}.txt"))
        if (folder / bundle.SHORTLIST).exists():
            sides = (task.source_dictionary.symbols, task.target_dictionary.symbols)
            read_shortlist(folder / bundle.SHORTLIST, *sides)
        text = pipeline.find_towards((bundle.home(checkpoint), data), src, tgt)
        if text:
            text.save(folder)
        name = layout.architecture({"cfg": cfg})
        if bundle.is_bundle(checkpoint):
            updates = bundle.read(checkpoint).updates
        else:
            updates = layout.num_updates(storage.peek(checkpoint))
        facts = {"src": src, "tgt": tgt, "architecture": name, "numbers": numbers}
        content = {
            **{"format": bundle.FORMAT, "version": bundle.VERSION, **facts},
            "search": dict(search or {}),
            "origin": {"fairseq_ext": __version__, "updates": updates},
        }
        content["files"] = {path.name: files.sha256(path) for path in sorted(folder.iterdir())}
        write_json(folder / bundle.MANIFEST, content)
        card_text = (card or Card()).render(
            **facts,
            updates=updates,
            parameters=sum(parameter.numel() for parameter in model.parameters()),
            text=text.describe() if text else "tokens, as they are",
        )
        (folder / CARD).write_text(card_text, encoding="utf-8")
        written = bundle.read(folder)
    return dataclasses.replace(written, folder=output)


def copy(source: bundle.Bundle, output: Path) -> bundle.Bundle:
    """Copy a bundle, with its model card, to another folder or archive, atomically."""
    source.check()
    with _output_folder(output) as folder:
        for name in (*source.files, bundle.MANIFEST, CARD):
            if (source.folder / name).is_file():  # the card may have been deleted
                shutil.copyfile(source.folder / name, folder / name)
    return dataclasses.replace(source, folder=output)


def card_of(source: bundle.Bundle) -> Card:
    """Read a bundle's model card; return an empty card if the bundle has none."""
    path = source.folder / CARD
    try:
        return Card.read(path.read_text(encoding="utf-8")) if path.is_file() else Card()
    except (OSError, UnicodeDecodeError):
        raise CheckpointError(f"{path} cannot be read as text; restore or delete it.") from None


@contextmanager
def _output_folder(output: Path) -> Iterator[Path]:
    """Yield a folder to fill; at the end of the ``with`` block, move or pack it to ``output``."""
    kind = bundle.suffix(output)
    files.require_new(output)
    if kind == ".tar.zst":
        extras.need("zstandard")
    with (files.scratch_folder if kind else files.atomic_folder)(output) as folder:
        yield folder
        if kind:
            bundle.archive(folder, output)


def _model_settings(cfg: Any) -> dict[str, Any]:
    """Return the options in ``cfg`` that the model's architecture declares."""
    values = vars(namespace(cfg))
    name = values.get("arch") or values["_name"]
    model = models.ARCH_MODEL_REGISTRY.get(name) or models.MODEL_REGISTRY.get(name)
    fields = next(
        (config.__dataclass_fields__ for key, config in models.MODEL_DATACLASS_REGISTRY.items()
         if models.MODEL_REGISTRY[key] is model),
        values,
    )  # fmt: skip
    return _only(values, ("arch", "_name", *fields))


def _task_settings(cfg: Any, task: TranslationTask) -> dict[str, Any]:
    """Return the options of a translation task, without its data folder and validation options."""
    values = vars(namespace(cfg))
    fields = TASK_DATACLASS_REGISTRY[values["_name"]].__dataclass_fields__
    of_training = {name for name in fields if name == "data" or name.startswith("eval_")}
    return {
        **_only(values, ("_name", *(fields.keys() - of_training))),
        **{"data": None, "eval_bleu": False},
        **{"source_lang": task.cfg.source_lang, "target_lang": task.cfg.target_lang},
    }


def _only(values: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Return the options with these names; leave out others, which may hold paths of a machine."""
    return {name: values[name] for name in sorted(set(names) & values.keys())}


@torch.no_grad()
def _write_model(
    model: models.BaseFairseqModel, cfg: Any, task: TranslationTask, folder: Path, numbers: str
) -> None:
    """Write a bundle's options and weights, and a program if the engine supports the model."""
    legacy = not OmegaConf.is_config(cfg.model)
    options = _model_settings(cfg.model)
    if legacy:  # a legacy model's options are those of its whole training, paths included
        options = {name: value for name, value in options.items() if "/" not in str(value)}
    state = model.state_dict()
    tied = layout.ties(state)
    config = {
        "cfg": {"model": options, "task": _task_settings(cfg.task, task)},
        "namespace": legacy,
        "tied": tied,
    }
    stored: dict[str, Tensor] = {}
    in_bits: dict[str, dict[str, Tensor]] = {}
    if numbers in bundle.PACKED:
        for package, module in wings.declared("BITS"):
            wing = importlib.import_module(f"{package}.{module}")
            config["binary"], in_bits = wing.binary_weights(model)
    for name in state.keys() - tied.keys():
        if name in in_bits:
            stored |= {name + ending: tensor for ending, tensor in in_bits[name].items()}
        else:
            stored |= _rounded(name, state[name].detach().contiguous(), numbers)
    write_json(folder / bundle.CONFIG, config)
    # `save_file` would make a file that only its owner can read.
    (folder / bundle.WEIGHTS).write_bytes(save(stored))
    if numbers in NUMBERS[1:]:  # the program's constants are computed from the rounded weights
        tensors = Tensors(folder / bundle.WEIGHTS)
        for name, tensor in state.items():
            tensor.copy_(torch.from_numpy(tensors.array(tied.get(name, name))))
    try:
        program, begins, cut = compiled(model, task)
    except ConfigError as error:
        logger.warning("The bundle has no program, and needs fairseq to translate: %s", error)
        return
    content, constants = program_file.encode(program, begins, cut, in_bits, affixes_of(task))
    (folder / bundle.PROGRAM).write_text(content, encoding="utf-8")
    if constants:
        stored |= {name: torch.tensor(array) for name, array in constants.items()}
        (folder / bundle.WEIGHTS).write_bytes(save(stored))


def compiled(model: models.BaseFairseqModel, task: TranslationTask) -> tuple[Program, bool, int]:
    """Compile a model for the engine; raise ConfigError if the engine does not support it.

    Return the program; whether sources begin with ``<s>``; and the length in tokens to which longer
    sources are cut, or 0 if they are not cut.
    """
    if type(task) not in (TranslationTask, TranslationExtTask):
        raise ConfigError(f"the engine has no task of type {type(task).__name__}.")
    for words in (task.source_dictionary, task.target_dictionary):
        if (words.bos(), words.pad(), words.eos(), words.unk()) != (BEGIN, PAD, END, UNKNOWN):
            raise ConfigError("the engine needs dictionaries with fairseq's own symbols first.")
    end = task.affixes.target_suffix if isinstance(task, TranslationExtTask) else None
    program = compile_model(model, task.target_dictionary, end)
    limits = utils.resolve_max_positions(task.max_positions(), model.max_positions())
    program.longest_source = limits[0]
    if not isinstance(task, TranslationExtTask):
        return program, False, 0
    begins = bool(task.cfg.source_bos)
    around = begins + sum(map(len, affixes_of(task)[:2]))
    cut = task.cfg.max_source_positions - around if task.cfg.truncate_source else 0
    return program, begins, cut


def affixes_of(task: TranslationTask) -> tuple[tuple[int, ...], ...]:
    """Return the ids of the symbols that a task puts around sentences (``EngineModel.affixes``)."""
    if not isinstance(task, TranslationExtTask):
        return NO_AFFIXES
    return tuple(() if number is None else (number,) for number in task.affixes[:3])


def _rounded(name: str, tensor: Tensor, numbers: str) -> dict[str, Tensor]:
    """Convert a weight to a bundle's number format; return the tensors to store, by name."""
    if not tensor.is_floating_point() or not tensor.numel():
        return {name: tensor}
    if numbers == "bf16":
        return {name: tensor.bfloat16()}
    in_int8 = numbers == "int8" or (numbers == bundle.BITS_INT8 and name.endswith(TABLES))
    if in_int8 and tensor.dim() == 2:
        rounded, units = map(torch.from_numpy, to_int8(tensor.float().numpy()))
        return {name + INT8: rounded, name + SCALE: units}
    return {name: tensor.float()}
