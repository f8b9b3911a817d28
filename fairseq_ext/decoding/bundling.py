"""Make a bundle of a checkpoint; :mod:`fairseq_ext.checkpoints.bundle` has the format."""

from __future__ import annotations

import dataclasses
import importlib
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from fairseq.models import BaseFairseqModel
from fairseq.tasks.translation import TranslationTask
from omegaconf import OmegaConf
from safetensors.torch import save
from torch import Tensor

from fairseq_ext.base import wings
from fairseq_ext.checkpoints import archived, bundle, layout, portable, storage
from fairseq_ext.decoding import models, packing
from fairseq_ext.decoding.model_card import Card
from fairseq_ext.engine import files as engine_files
from fairseq_ext.engine.weights import to_int8
from fairseq_ext.text import pipeline
from fairseq_ext.utils import extras, files
from fairseq_ext.utils.errors import CheckpointError, ConfigError
from fairseq_ext.version import __version__

CARD = "README.md"


def write(
    checkpoint: Path,
    data: Path,
    output: Path,
    *,
    numbers: str = "fp32",
    engine: str | None = None,
    search: Mapping[str, int | float] | None = None,
    card: Card | None = None,
) -> bundle.Bundle:
    """Write a bundle, whole or not at all, even if the process is killed.

    Args:
        checkpoint: of any architecture.
        data: folder with its dictionaries.
        output: the folder, which must be empty or not exist; or an archive that does not exist,
            its name ending as one of :data:`fairseq_ext.checkpoints.archived.SUFFIXES`.
        numbers: of the weights, of :data:`fairseq_ext.checkpoints.bundle.KINDS`.
        engine: numbers of a model for the engine, which is written too; None for that of the bundle
            that the checkpoint is, if it has one.
        search: its defaults.
        card: what the model card says besides.

    Raises:
        CheckpointError: the checkpoint cannot be used, or has nothing binary to store in bits.
        ConfigError: the folder has files, the archive is there, the model cannot be rounded, or the
            engine lacks it.
        DataError: there are no dictionaries, or a ``text.json`` that cannot be used.
        EnvironmentProblem: the bundle cannot be written.
    """
    search = dict(search or {})
    with _becoming(output) as folder:
        own = _own_engine(checkpoint)
        if engine:
            packed = packing.pack_file(checkpoint, data, engine, search)
            engine_files.write(packed, folder / bundle.ENGINE)
        elif own:
            model = engine_files.read(own)
            settings = dataclasses.replace(model.settings, search=search)
            text = model.text or packing.text_of((data,), settings.src, settings.tgt)
            model = dataclasses.replace(model, settings=settings, text=text)
            engine_files.write(model, folder / bundle.ENGINE)
        _write_files(checkpoint, data, folder, numbers, search, card or Card())
        written = bundle.read(folder)
    return dataclasses.replace(written, folder=output)


def copy(source: bundle.Bundle, output: Path) -> bundle.Bundle:
    """The same bundle as another folder or archive, its card and all; whole or not at all.

    Args:
        source: what is copied.
        output: as for :func:`write`.

    Raises:
        CheckpointError: a file is damaged.
        ConfigError, EnvironmentProblem: as for :func:`write`.
    """
    source.check()
    with _becoming(output) as folder:
        for name in (*source.files, bundle.MANIFEST, CARD):
            if (source.folder / name).is_file():  # a card may have been deleted
                shutil.copyfile(source.folder / name, folder / name)
    return dataclasses.replace(source, folder=output)


def _own_engine(checkpoint: Path) -> Path | None:
    """The model for the engine of a checkpoint that is a bundle with one."""
    if not bundle.is_bundle(checkpoint):
        return None
    found = bundle.read(checkpoint)
    return found.folder / bundle.ENGINE if bundle.ENGINE in found.files else None


def card_of(source: bundle.Bundle) -> Card:
    """The content of a bundle's model card; an empty card where that was deleted."""
    path = source.folder / CARD
    try:
        return Card.read(path.read_text(encoding="utf-8")) if path.is_file() else Card()
    except (OSError, UnicodeDecodeError):
        raise CheckpointError(f"{path} cannot be read as text; restore or delete it.") from None


@contextmanager
def _becoming(output: Path) -> Iterator[Path]:
    """A folder to fill, which then is ``output``, or the archive of that name."""
    kind = archived.suffix(output)
    if output.exists() and (kind or not output.is_dir() or any(output.iterdir())):
        raise ConfigError(f"{output} is there already; choose another name for the bundle.")
    if kind == ".tar.zst":
        extras.need("zstandard")
    with (files.scratch_folder if kind else files.whole_folder)(output) as folder:
        yield folder
        if kind:
            archived.write(folder, output, bundle.MANIFEST)


def _write_files(
    checkpoint: Path, data: Path, folder: Path, numbers: str, search: dict[str, Any], card: Card
) -> None:
    """All of a bundle but a model for the engine, which is there already if there is one."""
    (model,), cfg, task = models.load(data, [checkpoint])
    if numbers in ("bf16", "int8") and layout.BINARY_STAGE in model.state_dict():
        raise ConfigError(
            f"`--numbers {numbers}` would round what {checkpoint} binarizes; `--numbers "
            f"{bundle.BITS}` stores it in bits."
        )
    try:
        _write_model(model, cfg, task, folder, numbers)
    except CheckpointError as error:
        raise CheckpointError(f"{checkpoint} {error}") from None
    src, tgt = task.cfg.source_lang, task.cfg.target_lang
    for language, words in ((src, task.source_dictionary), (tgt, task.target_dictionary)):
        words.save(str(folder / f"dict.{language}.txt"))
    saved = pipeline.find((bundle.home(checkpoint), data))
    text = saved and saved.towards(src, tgt)
    if text:
        text.save(folder)
    name, updates = layout.architecture({"cfg": cfg}), _updates(checkpoint)
    content = {
        **{"format": bundle.FORMAT, "version": bundle.VERSION},
        **{"src": src, "tgt": tgt, "architecture": name, "numbers": numbers, "search": search},
        "origin": {"fairseq_ext": __version__, "updates": updates},
    }
    content["files"] = {path.name: files.sha256(path) for path in sorted(folder.iterdir())}
    (folder / bundle.MANIFEST).write_text(_as_json(content), encoding="utf-8")
    card_text = card.render(
        **{"src": src, "tgt": tgt, "architecture": name, "numbers": numbers, "updates": updates},
        parameters=sum(one.numel() for one in model.parameters()),
        text=text.describe() if text else "tokens, as they are",
    )
    (folder / CARD).write_text(card_text, encoding="utf-8")


def _updates(checkpoint: Path) -> int | None:
    if bundle.is_bundle(checkpoint):
        return bundle.read(checkpoint).updates
    return layout.num_updates(storage.peek(checkpoint))


def _write_model(
    model: BaseFairseqModel, cfg: Any, task: TranslationTask, folder: Path, numbers: str
) -> None:
    """Options and weights.

    Raises:
        CheckpointError: nothing in it is binary. The message is the end of a sentence.
    """
    legacy = not OmegaConf.is_config(cfg.model)
    options = portable.model_settings(cfg.model)
    if legacy:  # all options of the training are in them
        options = {name: one for name, one in options.items() if "/" not in str(one)}
    state = model.state_dict()
    tied = portable.ties(state)
    config = {
        "cfg": {"model": options, "task": portable.task_settings(cfg.task, task)},
        "namespace": legacy,
        "tied": tied,
    }
    (folder / bundle.CONFIG).write_text(_as_json(config), encoding="utf-8")
    if numbers in (bundle.BITS, bundle.BITS_INT8):
        for package, module in wings.declared("BITS"):
            wing = importlib.import_module(f"{package}.{module}")
            wing.save(model, cfg, task, folder / bundle.WEIGHTS, numbers == bundle.BITS_INT8)
        return
    stored: dict[str, Tensor] = {}
    for name in state.keys() - tied.keys():
        stored |= _rounded(name, state[name].detach().contiguous(), numbers)
    # save_file would make a file that nobody else may read.
    (folder / bundle.WEIGHTS).write_bytes(save(stored))


def _rounded(name: str, tensor: Tensor, numbers: str) -> dict[str, Tensor]:
    """A tensor as it is stored."""
    if not tensor.is_floating_point() or not tensor.numel():
        return {name: tensor}
    if numbers == "bf16":
        return {name: tensor.bfloat16()}
    if numbers == "int8" and tensor.dim() == 2:
        whole, units = map(torch.from_numpy, to_int8(tensor.float().numpy()))
        return {f"{name}.int8": whole, f"{name}.scale": units}
    return {name: tensor.float()}


def _as_json(content: Mapping[str, Any]) -> str:
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"
