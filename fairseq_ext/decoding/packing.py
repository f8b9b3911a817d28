"""Make an engine model of a checkpoint; here torch and fairseq are needed."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from fairseq import utils
from fairseq.models import BaseFairseqModel
from fairseq.tasks.translation import TranslationTask

from fairseq_ext.checkpoints import bundle
from fairseq_ext.checkpoints.layout import architecture
from fairseq_ext.decoding import models
from fairseq_ext.engine import BEGIN, END, PAD, UNKNOWN
from fairseq_ext.engine import shortlist as shortlists
from fairseq_ext.engine.compilers import compile_model
from fairseq_ext.engine.files import EngineModel, Settings
from fairseq_ext.engine.weights import pack
from fairseq_ext.generation.translation_ext import TranslationExtTask
from fairseq_ext.text import pipeline
from fairseq_ext.utils.errors import CheckpointError, ConfigError


def pack_file(
    path: str | Path,
    data: str | Path,
    numbers: str = "fp32",
    search: Mapping[str, int | float] | None = None,
    shortlist: str | Path | None = None,
) -> EngineModel:
    """Load a checkpoint and lay it out for the engine.

    The ``text.json`` beside the checkpoint, or in the data, becomes part of the model.

    Args:
        path: the checkpoint.
        data: folder with the dictionaries it was trained with.
        numbers: of the weights: ``fp32``, ``bf16`` or ``int8``.
        search: the model's defaults, of :data:`fairseq_ext.engine.files.SEARCH`.
        shortlist: file of `fairseq-ext shortlist`, which becomes part of the model.

    Raises:
        CheckpointError: it cannot be read, does not translate, or has weights that are not finite.
        ConfigError: the engine does not have this model, or not its task.
        DataError: there are no dictionaries, or a ``text.json`` or shortlist that cannot be used.
    """
    (trained,), cfg, task = models.load(data, [path])
    try:
        model = engine_model(trained, task, numbers, architecture({"cfg": cfg}))
    except ConfigError as error:
        raise ConfigError(f"{path} cannot be an engine model: {error}") from None
    except CheckpointError as error:
        raise CheckpointError(f"{path} cannot be an engine model: {error}") from None
    settings = replace(model.settings, search=dict(search or {}))
    text = text_of((bundle.home(path), Path(data)), settings.src, settings.tgt)
    listed = shortlist and shortlists.read(shortlist, model.source, model.target)
    return replace(model, settings=settings, text=text, shortlist=listed or None)


@torch.no_grad()
def engine_model(
    model: BaseFairseqModel, task: TranslationTask, numbers: str, name: str
) -> EngineModel:
    """A trained model, laid out, without text and defaults.

    Args:
        model: in any state.
        task: that it was trained for.
        numbers: of the weights.
        name: of the architecture.

    Raises:
        CheckpointError: weights that are not finite.
        ConfigError: the engine does not have it.
    """
    if type(task) not in (TranslationTask, TranslationExtTask):
        raise ConfigError(f"the engine has no task of type {type(task).__name__}.")
    source, target = task.source_dictionary, task.target_dictionary
    for words in (source, target):
        if (words.bos(), words.pad(), words.eos(), words.unk()) != (BEGIN, PAD, END, UNKNOWN):
            raise ConfigError("the engine needs fairseq's own symbols first in a dictionary.")
    program = compile_model(model, target)
    limits = utils.resolve_max_positions(task.max_positions(), model.max_positions())
    program.longest_source = limits[0]
    cfg: Any = task.cfg
    own = isinstance(task, TranslationExtTask)
    begins = own and cfg.source_bos
    cut = cfg.max_source_positions - begins if own and cfg.truncate_source else 0
    return EngineModel(
        program,
        [pack(matrix, numbers) for matrix in program.matrices],
        Settings(name, numbers, cfg.source_lang, cfg.target_lang, begins, cut),
        source.symbols,
        target.symbols,
        {},
    )


def text_of(folders: tuple[Path, ...], src: str, tgt: str) -> dict[str, bytes]:
    """The ``text.json`` of the first folder that has one for these languages, and its files."""
    saved = pipeline.find(folders)
    made = saved and saved.towards(src, tgt)
    if made is None:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        made.save(Path(folder))
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}
