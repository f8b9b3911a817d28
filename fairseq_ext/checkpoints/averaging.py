"""Average the weights of several checkpoints in float64, with one checkpoint in memory at a time.

The mean of the last checkpoints usually translates better than each of them (Vaswani et al.
2017, section 6.1 average 5 or 20).
"""

import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairseq_ext.checkpoints import layout, safe_load, storage
from fairseq_ext.checkpoints.dictionaries import SIDES, difference, recorded
from fairseq_ext.utils import files
from fairseq_ext.utils.errors import CheckpointError, ConfigError, wrong_value
from fairseq_ext.utils.option_fields import flag

logger = logging.getLogger(__name__)
KINDS = {
    "last_epochs": ("checkpointEPOCH.pt", r"checkpoint(\d+)\.pt"),
    "last_updates": ("checkpoint_EPOCH_UPDATE.pt", r"checkpoint_\d+_(\d+)\.pt"),
    "best": ("checkpoint.best_METRIC_VALUE.pt", r"checkpoint\.best_.+_(\d+\.?\d*)\.pt"),
}
"""The kinds of checkpoints for :func:`select`: the shape of their names for messages, and a pattern
whose group is the number by which they are sorted."""


def select(folder: str | Path, kind: str, count: int) -> list[Path]:
    """Return the paths of a run's ``count`` newest or ``count`` best checkpoints.

    The last path is the newest or best. ``folder`` is the run's ``--save-dir``. ``kind`` is
    ``last_epochs``, ``last_updates`` or ``best``. For ``best``, the run's option
    ``--maximize-best-checkpoint-metric`` decides whether higher is better.

    Raises:
        CheckpointError: ``folder`` is not a folder, has fewer than ``count`` checkpoints of this
            kind, or has best checkpoints by more than one metric.
        ConfigError: ``count`` is below 1.
    """
    shape, pattern = KINDS[kind]
    if count < 1:
        raise wrong_value(flag(kind), "at least 1", count)
    if not Path(folder).is_dir():
        raise CheckpointError(f"`{folder}` is not a folder; name the run's `--save-dir`.")
    matches = {path: re.fullmatch(pattern, path.name) for path in Path(folder).iterdir()}
    values = {path: (float(match[1]), path.name) for path, match in matches.items() if match}
    if len(values) < count:
        counts = (
            f"`{flag(name)}` finds {sum(bool(re.fullmatch(other, path.name)) for path in matches)}"
            for name, (_, other) in KINDS.items()
        )
        raise CheckpointError(
            f"`{folder}` holds {len(values)} of {count} checkpoints named `{shape}`: "
            f"{', '.join(counts)}."
        )
    if kind == "best" and len(metrics := {path.name.rpartition("_")[0] for path in values}) > 1:
        names = ", ".join(sorted(name.removeprefix("checkpoint.best_") for name in metrics))
        raise CheckpointError(
            f"`{folder}` holds the best checkpoints by several metrics ({names}), which cannot be "
            "ranked together; name the checkpoints, with `--inputs`."
        )
    paths = sorted(values, key=values.__getitem__)
    run = layout.options(storage.peek(paths[0]), "checkpoint") if kind == "best" else {}
    lowest = kind == "best" and not run.get("maximize_best_checkpoint_metric")
    return paths[:count][::-1] if lowest else paths[-count:]


def average_checkpoints(paths: Sequence[str | Path]) -> dict[str, Any]:
    """Average the weights of checkpoints of one model, and return the result as a checkpoint.

    Every floating-point weight becomes the mean over all checkpoints, summed in float64 and rounded
    once to the weight's own type. Tied embeddings stay tied if every checkpoint ties them. The
    state of the optimizer and the weights of ``--store-ema`` are left out. Everything else, such as
    an integer buffer, is taken from the last checkpoint.

    ``paths`` are checkpoints of one model, oldest first.

    Raises:
        CheckpointError: the checkpoints differ in architecture, in names or shapes of weights, in
            dictionaries, or in the stage of a binarized training; a weight is not finite; or a
            file cannot be read.
        ConfigError: ``paths`` is empty.
    """
    if not paths:
        raise ConfigError("There are no checkpoints to average; name at least one.")
    sums: dict[str, Tensor] = {}
    ties: set[tuple[str, str]] = set()
    words: dict[str, str] | None = None
    seeds: set[int] = set()
    if (repeated := files.twice(paths)) is not None:
        logger.warning(f"{repeated} is given twice, and counts twice in the mean")
    for number, path in enumerate(paths):
        with safe_load.about(path):
            checkpoint = storage.load(path)
            model = checkpoint["model"]
            seeds.add(layout.options(checkpoint, "common").get("seed", 0))
            if number == 0:
                facts, words = _facts(checkpoint), recorded(checkpoint, path)
                ties = set(layout.ties(model).items())
                sums = {
                    name: torch.zeros(weight.shape, dtype=torch.float64)
                    for name, weight in model.items()
                    if weight.is_floating_point()
                }
            else:
                _require_alike(facts, _facts(checkpoint), paths[0], path)
                _require_dictionaries(words, recorded(checkpoint, path), paths[0], path)
                ties &= layout.ties(model).items()
            for name, total in sums.items():
                if not model[name].isfinite().all():
                    raise CheckpointError(
                        f"`{path}`: the weight `{name}` holds NaN or infinity; leave it out."
                    )
                total.add_(model[name])
    if len(seeds) > 1:
        names = ", ".join(map(str, sorted(seeds)))
        logger.warning(
            f"the checkpoints come from trainings with the seeds {names}: unless these began from "
            "the same weights, the mean of their weights is useless"
        )
    for name, total in sums.items():
        model[name] = total.div_(len(paths)).to(model[name].dtype)
    for name, first in ties:
        if name in sums:
            model[name] = model[first]
    result = layout.without_training_state(checkpoint)
    extra = {**result["extra_state"], layout.AVERAGED: [Path(path).name for path in paths]}
    return {**result, "extra_state": extra}


def _facts(checkpoint: Mapping[str, Any]) -> dict[str, str]:
    """Return properties that averaged checkpoints must share: ``{"the architecture": "gru" …}``."""
    facts = {"the architecture": layout.architecture(checkpoint)}
    for name, weight in checkpoint["model"].items():
        shape = "×".join(map(str, weight.shape)) or "a single number"
        facts[f"`{name}`"] = shape if weight.is_floating_point() else f"{shape} of whole numbers"
        if name == layout.BINARY_STAGE:
            facts["the stage of the binarized training"] = str(int(weight))
    return facts


def _require_alike(
    facts: Mapping[str, str], other: Mapping[str, str], first: str | Path, path: str | Path
) -> None:
    for name in {**facts, **other}:
        if facts.get(name) != other.get(name):
            raise CheckpointError(
                f"`{first}` and `{path}` differ: {name} is {facts.get(name, 'missing')} and "
                f"{other.get(name, 'missing')}; only checkpoints of one model can be averaged."
            )


def _require_dictionaries(
    words: Mapping[str, str] | None,
    other: Mapping[str, str] | None,
    first: str | Path,
    path: str | Path,
) -> None:
    if words is None or other is None:
        return
    for side in SIDES:
        if differing := difference(other[side].split("\n"), words[side].split("\n")):
            raise CheckpointError(
                f"`{path}` was trained with another {side} dictionary than `{first}`: {differing}; "
                "only checkpoints of one model can be averaged."
            )
