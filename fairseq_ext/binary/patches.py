"""This wing's changes to fairseq: packed models can be loaded like checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fairseq_ext.plugin.table import Layer, Patch


def load_packed(original: Callable) -> Callable:
    """Load packed files by this wing, all others by fairseq."""

    def load_model_ensemble_and_task(
        filenames: list[str],
        arg_overrides: dict[str, Any] | None = None,
        task: Any = None,
        *rest: Any,
        **options: Any,
    ) -> tuple[list[Any], Any, Any]:
        from fairseq_ext.binary.packed import model_file

        if not any(map(model_file.is_packed, filenames)):
            return original(filenames, arg_overrides, task, *rest, **options)
        from fairseq_ext.binary.packed import runtime

        models: list[Any] = []
        for name in filenames:
            if model_file.is_packed(name):
                model, cfg, task = runtime.load(name, arg_overrides, task)
                models.append(model)
            else:
                more, cfg, task = original([name], arg_overrides, task, *rest, **options)
                models.extend(more)
        return models, cfg, task

    return load_model_ensemble_and_task


PATCHES = (
    Patch(
        name="packed models",
        kind="feature",
        reason="fairseq-generate, -interactive and hubs do not know packed 1-bit files",
        layers=(Layer("fairseq.checkpoint_utils:load_model_ensemble_and_task", load_packed),),
    ),
)
