"""The learning rate of section 4.1: each stage has a warm-up and a cosine that ends at 0."""

# fairseq reads the types of a configuration's fields, so their evaluation is not postponed here.

import math
from dataclasses import dataclass
from itertools import accumulate

from fairseq.dataclass import FairseqDataclass
from fairseq.optim import FairseqOptimizer
from fairseq.optim.lr_scheduler import FairseqLRScheduler, register_lr_scheduler
from omegaconf import II

from fairseq_ext.base.configuration import option
from fairseq_ext.binary import stages
from fairseq_ext.utils.errors import ConfigError


@dataclass
class StagedCosineConfig(FairseqDataclass):
    """Options of ``staged_cosine``."""

    stage_updates: str = option(
        "",
        "number of updates of each stage: float, binary weights, binary weights and "
        "activations (such as 50000,88339,88339; default: one stage of --max-update)",
    )
    warmup_updates: int = option(
        0, "number of updates at the start of each stage in which the rate rises"
    )
    lr: list[float] = II("optimization.lr")  # noqa: RUF009
    max_update: int = II("optimization.max_update")


def learning_rate(update: int, stage_updates: list[int], warmup: int, peaks: list[float]) -> float:
    """Compute the learning rate of update number ``update``, counted from 0.

    In a stage of ``n`` updates, update ``t`` has ``peak · min(1, t / warmup) · (1 + cos πx) / 2``
    with ``x = (t - warmup) / (n - warmup - 1)``, clipped to 0 … 1. The last update of a stage has
    rate 0, unless the whole stage is warm-up, and after the last stage the rate stays 0.

    Args:
        update: the number of the update.
        stage_updates: the number of updates of each stage.
        warmup: the number of updates in which the rate rises.
        peaks: the highest rate of each stage, or one for all.
    """
    starts = [0, *accumulate(stage_updates)]
    if update >= starts[-1]:
        return 0.0
    stage = max(i for i, start in enumerate(starts[:-1]) if update >= start and stage_updates[i])
    t, peak = update - starts[stage], peaks[min(stage, len(peaks) - 1)]
    rise = min(1.0, t / warmup) if warmup else 1.0
    fall = (t - warmup) / max(1, stage_updates[stage] - warmup - 1)
    return peak * rise * 0.5 * (1 + math.cos(math.pi * min(1.0, max(0.0, fall))))


@register_lr_scheduler("staged_cosine", dataclass=StagedCosineConfig)
class StagedCosine(FairseqLRScheduler):
    """A scheduler with :func:`learning_rate`, which does not reset the optimizer's moments.

    ``--lr`` is the peak of all stages, or a comma-separated list with one for each.

    Raises:
        ConfigError: the number of updates is unknown, the warm-up is longer than a stage, or the
            number of rates is not that of the stages.
    """

    def __init__(self, cfg: StagedCosineConfig, optimizer: FairseqOptimizer) -> None:
        super().__init__(cfg, optimizer)
        self.stage_updates = stages.lengths(cfg.stage_updates) or [cfg.max_update]
        shortest = min((n for n in self.stage_updates if n), default=0)
        if shortest < 1:
            raise ConfigError(
                "`--lr-scheduler staged_cosine` must have `--stage-updates` or `--max-update`, but "
                "has neither instead."
            )
        if not 0 <= cfg.warmup_updates < shortest:
            raise ConfigError(
                f"`--warmup-updates` must be below the {shortest} updates of the shortest stage, "
                f"but is {cfg.warmup_updates} instead."
            )
        if len(cfg.lr) not in (1, len(self.stage_updates)):
            raise ConfigError(
                f"`--lr` must be one rate, or one for each of {len(self.stage_updates)} stages, "
                f"but is {','.join(map(str, cfg.lr))} instead."
            )
        self.step_update(0)

    def step_update(self, num_updates: int) -> float:
        """Set the rate of the update that follows the first ``num_updates``."""
        rate = learning_rate(
            num_updates, self.stage_updates, self.cfg.warmup_updates, list(self.cfg.lr)
        )
        self.optimizer.set_lr(rate)
        return rate
