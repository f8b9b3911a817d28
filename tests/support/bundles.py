"""Make folders of trainings ("runs"), bundles and engine models from small models in memory."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fairseq.models import BaseFairseqModel
from fairseq.tasks.translation import TranslationTask
from omegaconf import OmegaConf

from fairseq_ext.checkpoints import layout, storage
from fairseq_ext.engine.engine_model import EngineModel
from fairseq_ext.engine.weights import pack
from fairseq_ext.model import write
from fairseq_ext.text.pipeline import Pipeline
from fairseq_ext.utils import files
from tests.support import models
from tests.support.engine import ALL, sharpened


def save_run(
    folder: Path,
    flags: list[str],
    model: BaseFairseqModel,
    task: TranslationTask,
    text: Pipeline | None = None,
) -> Path:
    """Write a run's folder: checkpoint, dictionaries, and text.json (default: lower-casing)."""
    cfg = models.configuration([*flags, "--source-lang", "de", "--target-lang", "en"])
    folder.mkdir()
    for language, words in (("de", task.source_dictionary), ("en", task.target_dictionary)):
        words.save(str(folder / f"dict.{language}.txt"))
    (text or Pipeline("de", "en", lowercase=True)).save(folder)
    content = OmegaConf.to_container(OmegaConf.create(cfg))
    state = {**layout.before_training(), "cfg": content, "model": model.state_dict()}
    storage.save(state, folder / "checkpoint_best.pt")
    return folder


def saved(folder: Path, name: str, target_size: int | None = None) -> Path:
    """Write the run of a small model of the architecture ``name``."""
    return save_run(folder, ALL[name], *sharpened(name, target_size=target_size))


def bundled(folder: Path, name: str, numbers: str = "fp32", target_size: int | None = None) -> Path:
    """Write a bundle of a small model, made from a run in the same folder."""
    run = saved(folder / "run", name, target_size)
    write.write(run / "checkpoint_best.pt", run, folder / numbers, numbers=numbers)
    return folder / numbers


def engine_model(
    model: BaseFairseqModel, task: TranslationTask, numbers: str, name: str
) -> EngineModel:
    """Compile a model for the engine, with the engine's defaults for all options of search."""
    program, begins, cut = write.compiled(model, task)
    return EngineModel(
        program,
        [pack(matrix, numbers) for matrix in program.matrices],
        *(name, task.cfg.source_lang, task.cfg.target_lang),
        *(task.source_dictionary.symbols, task.target_dictionary.symbols),
        *(begins, cut),
    )


def sign_again(folder: Path) -> None:
    """Give a changed bundle the right checksums, as an attacker could."""
    content = json.loads((folder / "bundle.json").read_text())
    content["files"] = {name: files.sha256(folder / name) for name in content["files"]}
    (folder / "bundle.json").write_text(json.dumps(content))


def edit(folder: Path, name: str, change: Callable[[Any], object]) -> None:
    """Change a JSON file of a bundle in place, and update the checksums in the manifest."""
    content = json.loads((folder / name).read_text())
    change(content)
    (folder / name).write_text(json.dumps(content))
    if name != "bundle.json":
        sign_again(folder)
