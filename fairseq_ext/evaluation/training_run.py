"""What a log of ``fairseq-train`` says about a run as a whole: model size, updates, speed.

:mod:`training_log` reads the same logs for their curves.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from fairseq_ext.errors import DataError

EPOCH = re.compile(r"epoch (\d+) \| (loss .*)")
PARAMETERS = re.compile(r"num\. shared model params: ([\d,]+)")
JSON_EPOCH = re.compile(r'\{"epoch".*"train_num_updates".*\}')
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
    """

    parameters: int
    updates: int
    tokens_per_second: float | None
    seconds: float


def read_training(log: str) -> Training:
    """Sum up a training log in fairseq's ``simple``, ``tqdm`` or ``json`` format.

    A run that was stopped may log an epoch twice; the later line counts.

    Args:
        log: the text of the log.

    Raises:
        DataError: the log holds no model size or no finished epoch.
    """
    found = PARAMETERS.search(log)
    epochs = {**_simple_epochs(log), **_json_epochs(log)}
    if found is None or not epochs:
        raise DataError("the training log holds no finished epoch.")
    tokens = seconds = before = 0.0
    for stats in (epochs[number] for number in sorted(epochs)):
        tokens += stats["wpb"] * (stats["num_updates"] - before)
        seconds += stats["train_wall"]
        before = stats["num_updates"]
    speed = tokens / seconds if seconds >= _SHORTEST else None
    return Training(int(found[1].replace(",", "")), int(before), speed, seconds)


def _simple_epochs(log: str) -> dict[int, dict[str, float]]:
    return {
        int(match[1]): _numbers(part.partition(" ")[::2] for part in match[2].split(" | "))
        for match in EPOCH.finditer(log)
    }


def _json_epochs(log: str) -> dict[int, dict[str, float]]:
    """The same figures, whose names begin with ``train_`` in this format."""
    epochs = {}
    for match in JSON_EPOCH.finditer(log):
        stats = json.loads(match[0])
        pairs = ((name.removeprefix("train_"), value) for name, value in stats.items())
        epochs[int(stats["epoch"])] = _numbers(pairs)
    return epochs


def _numbers(pairs: Iterable[tuple[str, Any]]) -> dict[str, float]:
    texts = ((name, str(value).strip()) for name, value in pairs)
    return {name: float(text) for name, text in texts if re.fullmatch(r"[\d.e+-]+", text)}
