"""Extract the options of a trained model that a bundle keeps, without paths."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_DATACLASS_REGISTRY, MODEL_REGISTRY
from fairseq.tasks import TASK_DATACLASS_REGISTRY
from fairseq.tasks.translation import TranslationTask
from omegaconf import OmegaConf


def model_settings(cfg: Any) -> dict[str, Any]:
    """Return the options of a model that belong to its architecture."""
    values = _plain(cfg)
    name = values.get("arch") or values["_name"]
    model = ARCH_MODEL_REGISTRY.get(name) or MODEL_REGISTRY.get(name)
    fields = next(
        (config.__dataclass_fields__ for key, config in MODEL_DATACLASS_REGISTRY.items()
         if MODEL_REGISTRY[key] is model),
        values,
    )  # fmt: skip
    return _only(values, ("arch", "_name", *fields))


def task_settings(cfg: Any, task: TranslationTask) -> dict[str, Any]:
    """Return the options of a translation task, without those for training."""
    values = _plain(cfg)
    fields = TASK_DATACLASS_REGISTRY[values["_name"]].__dataclass_fields__
    of_training = {name for name in fields if name == "data" or name.startswith("eval_")}
    return {
        **_only(values, ("_name", *(fields.keys() - of_training))),
        **{"data": None, "eval_bleu": False},
        **{"source_lang": task.cfg.source_lang, "target_lang": task.cfg.target_lang},
    }


def _plain(cfg: Any) -> dict[str, Any]:
    if OmegaConf.is_config(cfg):
        return OmegaConf.to_container(cfg, resolve=True, enum_to_str=True)
    return dict(vars(cfg))


def _only(values: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Keep only the named options; this drops paths and names of the training machine."""
    return {name: values[name] for name in sorted(set(names) & values.keys())}
