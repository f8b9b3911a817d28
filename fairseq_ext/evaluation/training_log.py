"""Read learning curves, model size, updates and speed from the logs of ``fairseq-train``.

fairseq logs three kinds of lines: one every ``--log-interval`` updates, one per validation and one
per epoch. In JSON, the keys of the last two kinds have prefixes (``valid_loss``, ``train_loss``).
In the simple format, the lines are ``epoch 001:  2 / 4 loss=4.03, …``, ``epoch 001 | valid on
'valid' subset | loss 4 | …`` and ``epoch 001 | loss 4 | …``. Losses are in bits per target token,
because fairseq divides by log 2. Incomplete lines, which a killed run may leave, are skipped, and
so are numbers that are not finite or exceed 10^15.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fairseq_ext.text.reading import read_text
from fairseq_ext.utils.errors import DataError
from fairseq_ext.utils.json_files import parse_json

_METRICS = ("loss", "nll_loss", "ppl", "bleu")
_STEP = re.compile(r"epoch \d+:\s+\d+ / \d+ (.*)")
_VALID = re.compile(r"epoch \d+ \| valid on '(.*?)' subset \| (.*)")
_EPOCH = re.compile(r"(epoch \d+ \| \w+ .*)")
PARAMETERS = re.compile(r"num\. shared model params: ([0-9][0-9,]{0,19})\b")
_NEEDED = {"epoch", "wpb", "num_updates", "train_wall"}
_LOADED = re.compile(r"Loaded checkpoint .* \(epoch \d+ @ (\d{1,18}) updates\)")
_SHORTEST = 1.0  # seconds; shorter times are rounded too much to compute a speed
_MOST = 1e15  # above any number of a training, and still exact in a float

Points = dict[int, float]  # update → value


@dataclass
class Curves:
    """The learning curves of a run: ``{metric: {update: value}}`` in training and in validation."""

    # By metric: `loss`, `nll_loss`, `ppl` and `bleu`, as far as the log has them.
    train: dict[str, Points] = field(default_factory=dict)
    valid: dict[str, Points] = field(default_factory=dict)


def read_log(path: str | Path) -> Curves:
    """Read the learning curves in a log of ``fairseq-train`` (``--log-file`` or captured output).

    The formats ``--log-format json``, ``simple`` and ``tqdm`` are supported. A resumed run may log
    an update twice; the later line counts. Training values are read from the lines that are logged
    every ``--log-interval`` updates or, if a log lacks such lines, from the averages of epochs.
    Validation values are read for the subset ``valid``. Raise DataError if there is no loss.
    """
    kinds: defaultdict[str, dict[str, Points]] = defaultdict(dict)
    for line in complete_lines(read_text(path)):
        kind, stats = line_stats(line)
        for metric in _METRICS:
            if metric in stats and "num_updates" in stats:
                kinds[kind].setdefault(metric, {})[int(stats["num_updates"])] = stats[metric]
    curves = Curves(kinds["step"] or kinds["train"], kinds["valid"])
    if "loss" not in curves.train and "loss" not in curves.valid:
        raise DataError(
            f"`{path}` holds no loss; give the `--log-file` or the output of fairseq-train, with "
            "`--log-format json` or `simple` and a `--log-interval` shorter than the run."
        )
    return curves


def complete_lines(log: str) -> list[str]:
    """Return a log's lines; drop a last line that is cut off (no line feed, and no final ``}``)."""
    *lines, last = [line.removesuffix("\r") for line in log.split("\n")]
    return [*lines, last] if last.endswith("}") else lines


def line_stats(line: str) -> tuple[str, dict[str, float]]:
    """Return the kind of a log line, and its numbers by name.

    The kind is ``step`` for a line that is logged every ``--log-interval`` updates, and ``train``
    for a line about an epoch. For a validation, it is the name of the subset, such as ``valid``.
    All other lines have the kind "" and no numbers.
    """
    if line.endswith("}") and '"epoch"' in line and "{" in line:
        return _json_stats(line[line.index("{") :])
    if match := _STEP.search(line):
        return "step", _numbers(pair.partition("=")[::2] for pair in match[1].split(", "))
    if match := _VALID.search(line):
        return match[1], _numbers(pair.partition(" ")[::2] for pair in match[2].split(" | "))
    if match := _EPOCH.search(line):
        return "train", _numbers(pair.partition(" ")[::2] for pair in match[1].split(" | "))
    return "", {}


def _json_stats(text: str) -> tuple[str, dict[str, float]]:
    try:
        stats = parse_json(text, "the log")
    except DataError:
        return "", {}
    for kind, prefix in (("step", ""), ("train", "train_"), ("valid", "valid_")):
        if f"{prefix}num_updates" in stats:
            return kind, _numbers((key.removeprefix(prefix), stats[key]) for key in stats)
    return "", {}


def _numbers(pairs: Iterable[tuple[str, Any]]) -> dict[str, float]:
    numbers = {}
    for key, value in pairs:
        try:
            number = float(value)
        except (TypeError, ValueError):
            continue
        if math.isfinite(number) and abs(number) <= _MOST:
            numbers[key] = number
    return numbers


@dataclass(frozen=True)
class Training:
    """The size, length and speed of a training run."""

    parameters: int
    updates: int  # at the end of the last epoch logged
    tokens_per_second: float | None  # target tokens; None if the log is too short to tell
    seconds: float  # in updates, without validation and checkpoints
    tokens: int  # target tokens, without padding, in all updates


def read_training(path: str | Path) -> Training:
    """Summarize a log of a training in fairseq's ``simple``, ``tqdm`` or ``json`` format.

    A resumed run may log an epoch twice; the later line counts. If training began at a checkpoint,
    tokens and seconds cover only the updates in this log, but ``updates`` counts from the first. If
    the log does not say at which update it begins, tokens and seconds leave out its first epoch.

    Raise DataError if the log has no finished epoch, or lacks the number of parameters.
    """
    log = read_text(path)
    parameters = PARAMETERS.search(log)
    epochs: dict[float, dict[str, float]] = {}
    before: float | None = None
    for line in complete_lines(log):
        if not epochs and (loaded := _LOADED.search(line)):
            before = float(loaded[1])
        kind, stats = line_stats(line)
        if kind == "train" and stats.keys() >= _NEEDED:
            epochs[stats["epoch"]] = stats
    if parameters is None or not epochs:
        raise DataError(
            f"`{path}`: the training log holds no finished epoch. Give the `--log-file` of "
            "fairseq-train."
        )
    tokens = seconds = 0.0
    if before is None and min(epochs) == 1:
        before = 0.0
    for stats in (epochs[number] for number in sorted(epochs)):
        if before is not None:  # else the log does not say at which update it begins
            tokens += stats["wpb"] * (stats["num_updates"] - before)
            seconds += stats["train_wall"]
        before = stats["num_updates"]
    speed = tokens / seconds if seconds >= _SHORTEST else None
    updates = int(epochs[max(epochs)]["num_updates"])
    return Training(int(parameters[1].replace(",", "")), updates, speed, seconds, round(tokens))
