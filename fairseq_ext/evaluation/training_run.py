"""Figures of a whole run from its ``fairseq-train`` log: model size, updates, speed.

:mod:`training_log` reads the same logs for their curves, and their lines for both.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from fairseq_ext.evaluation.training_log import line_stats, whole_lines
from fairseq_ext.utils.errors import DataError

PARAMETERS = re.compile(r"num\. shared model params: ([0-9][0-9,]{0,19})\b")
_NEEDED = {"epoch", "wpb", "num_updates", "train_wall"}
_LOADED = re.compile(r"Loaded checkpoint .* \(epoch \d+ @ (\d{1,18}) updates\)")
_SHORTEST = 1.0  # seconds; of less, fairseq's rounding leaves no speed


@dataclass(frozen=True)
class Training:
    """One run.

    Attributes:
        parameters: of the model.
        updates: at the end of the last epoch logged.
        tokens_per_second: target tokens over the seconds spent in updates (validation and
            checkpoints not counted), or None where the log is too short to tell.
        seconds: spent in updates.
        tokens: of the target side, without padding, in all updates.
    """

    parameters: int
    updates: int
    tokens_per_second: float | None
    seconds: float
    tokens: int


def read_training(log: str) -> Training:
    """Sum up a training log in fairseq's ``simple``, ``tqdm`` or ``json`` format.

    A run that was stopped may log an epoch twice; the later line counts. Of a run that goes on from
    a checkpoint, only what this log shows is counted.

    Args:
        log: the text of the log.

    Raises:
        DataError: the log holds no model size or no finished epoch.
    """
    parameters = PARAMETERS.search(log)
    epochs: dict[float, dict[str, float]] = {}
    before: float | None = None
    for line in whole_lines(log):
        if not epochs and (loaded := _LOADED.search(line)):
            before = float(loaded[1])
        kind, stats = line_stats(line)
        if kind == "train" and stats.keys() >= _NEEDED:
            epochs[stats["epoch"]] = stats
    if parameters is None or not epochs:
        raise DataError("the training log holds no finished epoch.")
    tokens = seconds = 0.0
    if before is None and min(epochs) == 1:
        before = 0.0
    for stats in (epochs[number] for number in sorted(epochs)):
        if before is not None:  # else the log begins later, and does not say where
            tokens += stats["wpb"] * (stats["num_updates"] - before)
            seconds += stats["train_wall"]
        before = stats["num_updates"]
    speed = tokens / seconds if seconds >= _SHORTEST else None
    return Training(int(parameters[1].replace(",", "")), int(before), speed, seconds, round(tokens))
