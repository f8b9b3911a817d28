"""A learning rate that falls to zero in a given time: ``--user-dir recipes/timed_cosine``.

Nobody knows beforehand how many updates fit into some minutes, so a schedule in updates would end
too early or be cut off. The schedule ``timed_cosine`` follows the clock, and ``--stop-time-hours``
ends the training when the rate is zero.
"""

# No `from __future__ import annotations`, because fairseq reads the types of options as objects.
import math
import time
from dataclasses import dataclass, field
from typing import Any

from fairseq.dataclass import FairseqDataclass
from fairseq.optim.lr_scheduler import FairseqLRScheduler, register_lr_scheduler
from omegaconf import II

from fairseq_ext import register

register()

WARMUP_SHARE = 0.2  # share of the time after which the warm-up ends, whatever the updates


@dataclass
class TimedCosineConfig(FairseqDataclass):
    """The options of the schedule :class:`TimedCosine`."""

    timed_seconds: float = field(
        default=240.0, metadata={"help": "seconds until the learning rate is zero"}
    )
    timed_warmup: int = field(
        default=400, metadata={"help": "number of updates in which the rate rises to --lr"}
    )
    lr: list[float] = II("optimization.lr")  # noqa: RUF009


@register_lr_scheduler("timed_cosine", dataclass=TimedCosineConfig)
class TimedCosine(FairseqLRScheduler):
    """A learning rate that rises in a warm-up, and falls to zero with half a cosine over the time.

    The rate is ``lr · min(1, max((update + 1) / warmup, t / WARMUP_SHARE)) · (1 + cos(π t)) / 2``.
    Here ``t`` is the share of ``--timed-seconds`` that has passed since the scheduler was made, and
    ``warmup`` is ``--timed-warmup``. So the warm-up ends after ``warmup`` updates, or earlier, when
    ``t`` is :data:`WARMUP_SHARE`.
    """

    def __init__(self, cfg: TimedCosineConfig, optimizer: Any) -> None:
        super().__init__(cfg, optimizer)
        self._start = time.monotonic()
        self.step_update(0)

    def step_update(self, num_updates: int) -> float:
        """Set the learning rate after an update, and return it."""
        passed = min(1.0, (time.monotonic() - self._start) / self.cfg.timed_seconds)
        rise = max((num_updates + 1) / max(1, self.cfg.timed_warmup), passed / WARMUP_SHARE)
        fall = (1 + math.cos(math.pi * passed)) / 2
        self.optimizer.set_lr(self.cfg.lr[0] * min(1.0, rise) * fall)
        return self.optimizer.get_lr()
