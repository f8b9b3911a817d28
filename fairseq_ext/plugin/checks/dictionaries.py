"""Require that a model is used with the dictionaries that it was trained with.

Checkpoints record them, see :mod:`fairseq_ext.checkpoints.dictionaries`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from fairseq_ext.checkpoints import dictionaries
from fairseq_ext.checkpoints.dictionaries import SIDES
from fairseq_ext.checkpoints.layout import DICTIONARIES
from fairseq_ext.plugin.table import Layer, Patch, around
from fairseq_ext.utils.errors import CheckpointError

logger = logging.getLogger(__name__)


@around
def _save_checkpoint(
    original: Callable, self: Any, filename: str, extra_state: dict[str, Any]
) -> Any:
    if words := _task_symbols(self.task):
        extra_state = {**extra_state, DICTIONARIES: dictionaries.record(*words)}
    return original(self, filename, extra_state)


@around
def _trainer_load_checkpoint(
    original: Callable, self: Any, filename: str, *rest: Any, **options: Any
) -> Any:
    """Check `fairseq-train` when it resumes or starts from another model."""
    extra_state = original(self, filename, *rest, **options)
    if extra_state is not None:
        record = dictionaries.recorded({"extra_state": extra_state}, filename)
        compare(self.task, record, filename, warn=self.data_parallel_rank == 0)
    return extra_state


@around
def _load_checkpoint_to_cpu(original: Callable, path: str, *rest: Any, **options: Any) -> Any:
    """Copy the record into `task_state`, the only part of a checkpoint that a task can see."""
    state = original(path, *rest, **options)
    entry = {"file": path, "record": dictionaries.recorded(state, path)}
    return {**state, "task_state": {**(state.get("task_state") or {}), DICTIONARIES: entry}}


@around
def _load_state_dict(original: Callable, self: Any, state_dict: dict[str, Any]) -> None:
    """Check wherever a model is loaded for a task: generation, validation, hubs, a teacher."""
    rest = dict(state_dict)
    if entry := rest.pop(DICTIONARIES, None):
        compare(self, entry["record"], entry["file"])
    original(self, rest)


def compare(task: Any, record: dict[str, str] | None, path: str, *, warn: bool = True) -> None:
    """Require that a translation task has the dictionaries of a checkpoint.

    Args:
        task: any task; tasks other than translation are not checked.
        record: of the checkpoint; without one (None) there is a warning if ``warn``.
        path: the checkpoint's name.

    Raises:
        CheckpointError: a dictionary differs.
    """
    pair = _task_symbols(task)
    if not pair:
        return
    if record is None:
        if warn:
            logger.warning(
                f"{path} does not say with which dictionaries it was trained, so that they are "
                "not compared with those of the data"
            )
        return
    for side, symbols in zip(SIDES, pair, strict=True):
        if differing := dictionaries.difference(symbols, record[side].split("\n")):
            language = getattr(task.cfg, f"{side}_lang", None)
            raise CheckpointError(
                f"{path} was trained with another {side} dictionary: in dict.{language}.txt of "
                f"the data, {differing}. Use the dictionaries it was trained with."
            )


def _task_symbols(task: Any) -> tuple[list[str], list[str]] | None:
    """The symbols of a translation task's dictionaries; None for another task."""
    from fairseq.tasks.translation import TranslationTask

    if not isinstance(task, TranslationTask):
        return None
    return task.source_dictionary.symbols, task.target_dictionary.symbols


PATCHES = (
    Patch(
        name="dictionaries of a model",
        kind="check",
        reason="a dictionary of the same size in another order is accepted, and the model's output "
        "read as other words",
        layers=(
            Layer("fairseq.trainer:Trainer.save_checkpoint", _save_checkpoint),
            Layer("fairseq.trainer:Trainer.load_checkpoint", _trainer_load_checkpoint),
            Layer("fairseq.checkpoint_utils:load_checkpoint_to_cpu", _load_checkpoint_to_cpu),
            Layer("fairseq.tasks.fairseq_task:FairseqTask.load_state_dict", _load_state_dict),
        ),
    ),
)
