"""Make a bundle of a checkpoint; :mod:`fairseq_ext.checkpoints.bundle` has the format."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from fairseq.models import BaseFairseqModel
from fairseq.tasks.translation import TranslationTask
from omegaconf import OmegaConf
from safetensors.torch import save_file
from torch import Tensor

from fairseq_ext import files
from fairseq_ext.checkpoints import bundle, layout, portable, storage
from fairseq_ext.decoding import models
from fairseq_ext.engine import files as engine_files
from fairseq_ext.engine import packing
from fairseq_ext.engine.weights import to_int8
from fairseq_ext.errors import ConfigError
from fairseq_ext.text import pipeline
from fairseq_ext.version import __version__

CARD = """---
language:
- {src}
- {tgt}
license: {licence}
library_name: fairseq-ext
pipeline_tag: translation
---

# {src} → {tgt}: {architecture}

{about}

- architecture: `{architecture}`, {parameters:,} parameters, stored in {numbers}
- training: {updates} updates
- text: {text}

It translates one sentence at a time, of text like that of its training.

```
fairseq-ext translate --path FOLDER --input text.{src}
```

```python
import fairseq_ext

fairseq_ext.load("FOLDER").translate("…").text
```
"""


def write(
    checkpoint: Path,
    data: Path,
    output: Path,
    *,
    numbers: str = "fp32",
    engine: str | None = None,
    search: Mapping[str, int | float] | None = None,
    about: str = "",
    licence: str = "unknown",
) -> bundle.Bundle:
    """Write a bundle, whole or not at all.

    Args:
        checkpoint: of any architecture.
        data: folder with its dictionaries.
        output: the folder; it must be empty, or not exist.
        numbers: of the weights: ``fp32``, ``bf16`` or ``int8``.
        engine: numbers of a model for the engine, which is written too; None for none.
        search: its defaults.
        about, licence: for the model card.

    Raises:
        CheckpointError: the checkpoint cannot be used.
        ConfigError: the folder has files, the model cannot be rounded, or the engine lacks it.
        DataError: there are no dictionaries, or a ``text.json`` that cannot be used.
        EnvironmentProblem: the folder cannot be written.
    """
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ConfigError(f"{output} is there already; choose another name for the bundle.")
    (model,), cfg, task = models.load(data, [checkpoint])
    state = model.state_dict()
    if numbers != "fp32" and layout.BINARY_STAGE in state:
        raise ConfigError(
            f"`--numbers {numbers}` would round what {checkpoint} binarizes; `fairseq-ext pack` "
            "stores it in bits."
        )
    src, tgt = task.cfg.source_lang, task.cfg.target_lang
    name, search = layout.architecture({"cfg": cfg}), dict(search or {})
    saved = pipeline.find((bundle.home(checkpoint), data))
    text = saved and saved.towards(src, tgt)
    with files.staged_folder(output, last=bundle.MANIFEST) as stage:
        _write_model(model, cfg, task, stage, numbers)
        for language, words in ((src, task.source_dictionary), (tgt, task.target_dictionary)):
            words.save(str(stage / f"dict.{language}.txt"))
        if text:
            text.save(stage)
        if engine:
            packed = packing.pack_file(checkpoint, data, engine, search)
            engine_files.write(packed, stage / bundle.ENGINE)
        content = {
            **{"format": bundle.FORMAT, "version": bundle.VERSION},
            **{"src": src, "tgt": tgt, "architecture": name},
            **{"numbers": numbers, "search": search},
            "origin": {
                "fairseq_ext": __version__,
                "updates": layout.num_updates(storage.load(checkpoint, checksums=False)),
            },
            "files": {path.name: files.sha256(path) for path in sorted(stage.iterdir())},
        }
        card = {
            **content,
            **{"about": about, "licence": licence, "updates": content["origin"]["updates"]},
            "parameters": sum(one.numel() for one in model.parameters()),
            "text": text.describe() if text else "tokens, as they are",
        }
        (stage / "README.md").write_text(CARD.format(**card), encoding="utf-8")
        (stage / bundle.MANIFEST).write_text(_as_json(content), encoding="utf-8")
    return bundle.read(output)


def _write_model(
    model: BaseFairseqModel, cfg: Any, task: TranslationTask, folder: Path, numbers: str
) -> None:
    """Options and weights."""
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
    stored: dict[str, Tensor] = {}
    for name in state.keys() - tied.keys():
        stored |= _rounded(name, state[name].detach().contiguous(), numbers)
    save_file(stored, folder / bundle.WEIGHTS)


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
