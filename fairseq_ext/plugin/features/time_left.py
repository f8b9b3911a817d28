"""Add ``left`` to the progress bar and the log of fairseq-train: the time until training ends."""

import math
import time
from collections.abc import Callable
from typing import Any

from fairseq_ext.plugin.patching import around

PRIORITY = 2000  # higher than fairseq's priorities, so that it is printed last


def updates_left(cfg: Any, epoch_itr: Any, done: int) -> float:
    """Return how many updates remain after ``done`` updates; infinity if no option limits them."""
    max_update, epochs = cfg.optimization.max_update, cfg.optimization.max_epoch
    left = max_update - done if max_update else math.inf
    if epochs:
        # `--update-freq` has a value for each epoch; the last value is also for all later epochs.
        frequencies = cfg.optimization.update_freq
        freq = frequencies[min(epoch_itr.next_epoch_idx, len(frequencies)) - 1]
        per_epoch = math.ceil(len(epoch_itr) / freq)
        before = math.ceil(epoch_itr.iterations_in_epoch / freq) % per_epoch
        left = min(left, per_epoch * (epochs + 1 - epoch_itr.next_epoch_idx) - before)
    return left


def clock(seconds: float) -> str:
    """Format a time as hours, minutes and seconds, such as ``2:05:30``."""
    minutes, rest = divmod(max(0, round(seconds)), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


@around("fairseq_cli.train:train", patch="time left")
def _train(original: Callable, cfg: Any, trainer: Any, task: Any, epoch_itr: Any) -> Any:
    """Train an epoch; before it, compute the number of the training's last update.

    Problem: The progress bar shows the time left in the epoch, but not in the training.
    """
    done = trainer.get_num_updates()
    trainer.last_update = done + updates_left(cfg, epoch_itr, done)
    if not hasattr(trainer, "began"):
        trainer.began = time.monotonic(), done
    return original(cfg, trainer, task, epoch_itr)


@around("fairseq.trainer:Trainer.train_step", patch="time left")
def _train_step(original: Callable, self: Any, *args: Any, **options: Any) -> Any:
    from fairseq.logging import metrics

    output = original(self, *args, **options)
    if math.isfinite(getattr(self, "last_update", math.inf)):
        metrics.log_derived("left", lambda meters: _left(self), priority=PRIORITY)
    return output


def _left(trainer: Any) -> str:
    """Estimate the time left from the pace so far, which includes validation and saving."""
    (began, first), done = trainer.began, trainer.get_num_updates()
    seconds = (time.monotonic() - began) / max(1, done - first)
    return clock(seconds * (trainer.last_update - done))
