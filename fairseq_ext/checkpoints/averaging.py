"""The mean of several checkpoints' weights, summed in float64, one checkpoint in memory at a time.

The mean of the last checkpoints usually translates better than each of them (Vaswani et al.
2017, section 6.1 average 5 or 20). Parameters are averaged. Integer and boolean buffers, which
count or index something, are taken from the last checkpoint.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairseq_ext.checkpoints import layout, safe_load, storage
from fairseq_ext.checkpoints.dictionaries import SIDES, difference, recorded
from fairseq_ext.checkpoints.layout import memory
from fairseq_ext.utils import files
from fairseq_ext.utils.errors import CheckpointError, ConfigError

logger = logging.getLogger(__name__)
_SHOWN = 4  # names shown in a message


def last_epochs(folder: str | Path, count: int) -> list[Path]:
    """Return the ``count`` newest files ``checkpointN.pt``, oldest first.

    Raises:
        CheckpointError: the folder holds fewer.
    """
    return _pick(folder, r"checkpoint(\d+)\.pt", count, "checkpointEPOCH.pt")


def last_updates(folder: str | Path, count: int) -> list[Path]:
    """Return the ``count`` newest files ``checkpoint_EPOCH_UPDATE.pt``, oldest first.

    They come from ``--save-interval-updates``.

    Raises:
        CheckpointError: the folder holds fewer.
    """
    return _pick(folder, r"checkpoint_\d+_(\d+)\.pt", count, "checkpoint_EPOCH_UPDATE.pt")


def best(folder: str | Path, count: int) -> list[Path]:
    """Return the ``count`` best files ``checkpoint.best_METRIC_VALUE.pt``.

    They come from ``--keep-best-checkpoints``; ``--maximize-best-checkpoint-metric`` of the run
    decides whether higher is better.

    Raises:
        CheckpointError: the folder holds fewer.
    """
    pattern = r"checkpoint\.best_.+_(\d+\.?\d*)\.pt"
    paths = _matching(folder, pattern)
    run = layout.options(storage.peek(paths[0]), "checkpoint") if paths else {}
    largest = bool(run.get("maximize_best_checkpoint_metric"))
    return _pick(folder, pattern, count, "checkpoint.best_METRIC_VALUE.pt", largest=largest)


def average_checkpoints(
    paths: Sequence[str | Path],
    load: Callable[[str | Path], dict[str, Any]] = storage.load,
) -> dict[str, Any]:
    """Average checkpoints: return the last one with mean weights and without optimizer state.

    Every floating-point entry becomes the mean over all checkpoints, summed in float64 and
    rounded once to its own type. Entries that share memory in every checkpoint (tied
    embeddings) share it in the result.

    Args:
        paths: checkpoints of one model, oldest first.
        load: reads one of them.

    Raises:
        CheckpointError: checkpoints of different architectures, names, shapes, dictionaries or
            stages of a binarized training, a weight that is not finite, or a file that cannot
            be read.
        ConfigError: no checkpoint.
    """
    if not paths:
        raise ConfigError("There are no checkpoints to average; name at least one.")
    sum_types = torch.float64, torch.complex128
    sums: dict[str, Tensor] = {}
    ties: set[frozenset[str]] = set()
    architecture: str | None = None
    stage: Tensor | None = None
    words: dict[str, str] | None = None
    seeds: set[int] = set()
    if (repeated := files.twice(paths)) is not None:
        logger.warning(f"{repeated} is there twice, and counts twice in the mean")
    for number, path in enumerate(paths):
        with safe_load.about(path):
            checkpoint = load(path)
            model = _model(checkpoint, path)
            seeds.add(layout.options(checkpoint, "common").get("seed", 0))
            if number == 0:
                architecture = layout.architecture(checkpoint)
                sums = {
                    name: torch.zeros(weight.shape, dtype=sum_types[weight.is_complex()])
                    for name, weight in model.items()
                    if _is_averaged(weight)
                }
                shapes = {name: tuple(weight.shape) for name, weight in model.items()}
                ties = _ties(model)
                stage = model.get(layout.BINARY_STAGE)
                words = recorded(checkpoint, path)
            else:
                _check_stage(stage, model.get(layout.BINARY_STAGE), paths[0], path)
                _check_same(architecture, shapes, checkpoint, model, paths[0], path)
                _check_kinds(sums, model, paths[0], path)
                _check_dictionaries(words, recorded(checkpoint, path), paths[0], path)
                ties &= _ties(model)
            for name, total in sums.items():
                if not model[name].isfinite().all():
                    raise CheckpointError(
                        f"`{path}`: the weight `{name}` holds NaN or infinity; leave it out."
                    )
                total.add_(model[name])
    if len(seeds) > 1:
        names = ", ".join(map(str, sorted(seeds)))
        logger.warning(
            f"the checkpoints are of trainings with the seeds {names}: unless these began from the "
            "same weights, their mean translates nothing"
        )
    _set_means(model, sums, len(paths), ties)
    result = layout.without_training_state(checkpoint)
    extra = {**result["extra_state"], layout.AVERAGED: [Path(path).name for path in paths]}
    return {**result, "extra_state": extra}


def write_average(paths: Sequence[str | Path], output: str | Path) -> dict[str, Any]:
    """Average ``paths`` into the file ``output``, which appears whole or not at all.

    Raises:
        CheckpointError: as :func:`average_checkpoints`.
    """
    result = average_checkpoints(paths)
    storage.save(result, output)
    return result


def _is_averaged(weight: Tensor) -> bool:
    return weight.is_floating_point() or weight.is_complex()


def _set_means(
    model: dict[str, Tensor], sums: dict[str, Tensor], count: int, ties: set[frozenset[str]]
) -> None:
    for name in sums:
        model[name] = sums[name].div_(count).to(model[name].dtype)
    for names in ties:
        first, *tied = sorted(names)
        for name in tied:
            if name in sums:
                model[name] = model[first]


def _ties(model: Mapping[str, Tensor]) -> set[frozenset[str]]:
    """Return the groups of names whose tensors share their memory."""
    groups: dict[tuple[Any, ...], set[str]] = {}
    for name, weight in model.items():
        if weight.numel():
            groups.setdefault(memory(weight), set()).add(name)
    return {frozenset(names) for names in groups.values() if len(names) > 1}


def _model(checkpoint: Mapping[str, Any], path: str | Path) -> dict[str, Tensor]:
    model = checkpoint["model"]
    unfit = [name for name, weight in model.items() if not torch.is_tensor(weight)]
    if unfit:
        raise CheckpointError(
            f"`{path}`: `{unfit[0]}` under `model` is not a tensor; name a file that "
            "`fairseq-train` wrote."
        )
    return model


def _check_same(
    architecture: str | None,
    shapes: Mapping[str, tuple[int, ...]],
    checkpoint: Mapping[str, Any],
    model: Mapping[str, Tensor],
    first: str | Path,
    path: str | Path,
) -> None:
    other = layout.architecture(checkpoint)
    if other != architecture:
        raise CheckpointError(
            f"`{path}` is a `{other}`, but `{first}` a `{architecture}`; only checkpoints of one "
            "model can be averaged."
        )
    differing = [
        f"`{name}` {_shape(shapes.get(name))} and {_shape(_shape_of(model, name))}"
        for name in (*shapes, *(name for name in model if name not in shapes))
        if shapes.get(name) != _shape_of(model, name)
    ]
    if differing:
        rest = f" and {len(differing) - _SHOWN} more" if len(differing) > _SHOWN else ""
        raise CheckpointError(
            f"`{first}` and `{path}` hold different weights: {', '.join(differing[:_SHOWN])}"
            f"{rest}; only checkpoints of one model can be averaged."
        )


def _check_kinds(
    averaged: Mapping[str, Tensor], model: Mapping[str, Tensor], first: str | Path, path: str | Path
) -> None:
    for name, weight in model.items():
        if _is_averaged(weight) != (name in averaged):
            kinds = "whole numbers", "fractions"
            raise CheckpointError(
                f"`{path}` holds {kinds[_is_averaged(weight)]} as `{name}`, but `{first}` "
                f"{kinds[name in averaged]}; only checkpoints of one model can be averaged."
            )


def _check_stage(
    stage: Tensor | None, other: Tensor | None, first: str | Path, path: str | Path
) -> None:
    if stage is not None and other is not None and not stage.equal(other):
        raise CheckpointError(
            f"`{first}` is of stage {int(stage)} of its binarized training, but `{path}` of stage "
            f"{int(other)}; only checkpoints of one stage can be averaged."
        )


def _check_dictionaries(
    words: Mapping[str, str] | None,
    other: Mapping[str, str] | None,
    first: str | Path,
    path: str | Path,
) -> None:
    for side in SIDES if words and other else ():
        if differing := difference(other[side].split("\n"), words[side].split("\n")):
            raise CheckpointError(
                f"`{path}` was trained with another {side} dictionary than `{first}`: {differing}; "
                "only checkpoints of one model can be averaged."
            )


def _shape_of(model: Mapping[str, Tensor], name: str) -> tuple[int, ...] | None:
    return tuple(model[name].shape) if name in model else None


def _shape(shape: tuple[int, ...] | None) -> str:
    return "missing" if shape is None else "×".join(map(str, shape)) or "a single number"


def _matching(folder: str | Path, pattern: str) -> list[Path]:
    def keyed() -> Iterator[tuple[float, str, Path]]:
        for path in Path(folder).iterdir():
            match = re.fullmatch(pattern, path.name)
            if match:
                yield float(match[1]), path.name, path

    if not Path(folder).is_dir():
        raise CheckpointError(f"`{folder}` is not a folder; name the run's `--save-dir`.")
    return [path for _, _, path in sorted(keyed())]


def _pick(
    folder: str | Path, pattern: str, count: int, shape: str, *, largest: bool = True
) -> list[Path]:
    if count < 1:
        raise ConfigError(f"At least 1 checkpoint must be asked for, but {count} were.")
    paths = _matching(folder, pattern)
    if not paths:
        unmatched = len(list(Path(folder).glob("*.pt")))
        raise CheckpointError(
            f"`{folder}` holds no checkpoint named `{shape}` ({unmatched} other .pt files); name "
            "the run's `--save-dir`, choose another kind, or give the files with `--inputs`."
        )
    if len(paths) < count:
        raise CheckpointError(
            f"`{folder}` holds {len(paths)} of the {count} checkpoints `{shape}` asked for; ask "
            f"for at most {len(paths)}."
        )
    return paths[-count:] if largest else paths[:count][::-1]
