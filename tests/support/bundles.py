"""Models for the engine, made of small models in memory."""

from __future__ import annotations

import json
from pathlib import Path

from fairseq.models import BaseFairseqModel
from fairseq.tasks.translation import TranslationTask

from fairseq_ext.engine.engine_model import EngineModel, Settings
from fairseq_ext.engine.weights import pack
from fairseq_ext.model.write import compiled
from fairseq_ext.utils import files


def engine_model(
    model: BaseFairseqModel, task: TranslationTask, numbers: str, name: str
) -> EngineModel:
    """A trained model, laid out, without text and defaults."""
    program, begins, cut = compiled(model, task)
    return EngineModel(
        program,
        [pack(matrix, numbers) for matrix in program.matrices],
        Settings(name, numbers, task.cfg.source_lang, task.cfg.target_lang, begins, cut),
        task.source_dictionary.symbols,
        task.target_dictionary.symbols,
    )


def sign_again(folder: Path) -> None:
    """Give a changed bundle the right checksums, as whoever changes it could."""
    content = json.loads((folder / "bundle.json").read_text())
    content["files"] = {name: files.sha256(folder / name) for name in content["files"]}
    (folder / "bundle.json").write_text(json.dumps(content))
