"""The stages of training: float, binary weights, binary weights and activations (section 4.1).

The options say when each stage begins. The model's state dict has its stage, so a loaded model
computes the function that was trained, whatever the options. In each stage, the learning rate has a
warm-up and then falls to 0 along a cosine.
"""

# Without `from __future__ import annotations`: fairseq reads the types of a configuration's fields.

import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from fairseq.dataclass import FairseqDataclass
from fairseq.optim import FairseqOptimizer
from fairseq.optim.lr_scheduler import FairseqLRScheduler, register_lr_scheduler
from omegaconf import II
from torch import Tensor, nn

from fairseq_ext.base.configuration import option
from fairseq_ext.binary.binarize import TERNARY
from fairseq_ext.utils.errors import ConfigError, wrong_value

logger = logging.getLogger(__name__)
NAMES = ("float", "binary weights", "binary weights and activations")


def parse_stage_updates(text: str, fewest: int = 1) -> list[int]:
    """Parse ``--stage-updates`` into the number of updates in each stage; [] if ``text`` is empty.

    Otherwise ``text`` must list one to three numbers of updates, which may be 0, but not all 0.
    ``fewest`` is the least allowed number of stages: 2 for binary weights, 3 for binary
    activations. Raise ConfigError if ``text`` breaks these rules.
    """
    try:
        values = [int(value) for value in text.split(",")] if text else []
    except ValueError:
        values = [-1]
    if len(values) > 3 or min(values, default=0) < 0 or (text and not sum(values)):
        wish = (
            "the numbers of updates in float, with binary weights and with binary activations, "
            "such as 50000,88339,88339"
        )
        raise wrong_value("--stage-updates", wish, text)
    if 0 < len(values) < fewest:
        raise ConfigError(
            f"`--stage-updates` must have {fewest} stages to end in `{NAMES[fewest - 1]}`, but is "
            f"`{text}` instead."
        )
    return values


def stage_at(update: int, stages: list[int]) -> int:
    """Return the stage of an update: 0 (float), 1 (binary weights) or 2 (binary activations too).

    Updates are counted from 0. ``stages`` has the number of updates of each stage. A stage of 0
    updates is skipped; the last stage never ends. If ``stages`` is empty, the stage is 2.
    """
    if not stages:
        return 2
    return sum(update >= end for end in accumulate(stages[:-1]))


class Stage(nn.Module):
    """A module that keeps all layers of a model in the same stage of training.

    :meth:`set_num_updates` computes the stage from the number of updates, but never goes back to an
    earlier stage. A checkpoint stores the stage; loading the checkpoint restores this stage. So a
    loaded model computes what the saved model computed, also if the number of updates is reset, as
    with ``--reset-optimizer`` and in fine-tuning.

    ``layers`` are the binary layers, ``stages`` the result of :func:`parse_stage_updates`. If
    ``stages`` is empty, everything is binary from the start.
    """

    def __init__(self, layers: Iterable[nn.Module], stages: list[int]) -> None:
        super().__init__()
        self._layers: tuple[Any, ...] = tuple(layers)
        self.stages, self._warned = stages, False
        self.current: Tensor
        self.register_buffer("current", torch.zeros((), dtype=torch.long))
        self.enter(stage_at(0, stages))

    def enter(self, stage: int) -> None:
        self.index = stage
        self.current.fill_(stage)
        for layer in self._layers:
            layer.set_stage(stage)

    def set_num_updates(self, num_updates: int) -> None:
        """Enter the stage of update ``num_updates``, counted from 0.

        At the first update of a stage, log the change. If ``--stage-updates`` asks for an earlier
        stage than the current one, stay in the current one, and warn once.
        """
        planned = stage_at(num_updates, self.stages)
        if planned > self.index:
            self.enter(planned)
            # No message if a checkpoint is about to be loaded in the middle of a stage.
            if self._layers and num_updates in (0, *accumulate(self.stages)):
                logger.info(f"update {num_updates}: {self._name()} from here on")
        elif planned < self.index and not self._warned:
            self._warned = True
            logger.warning(
                f"`--stage-updates` puts update {num_updates} into stage `{NAMES[planned]}`, "
                f"but the checkpoint is in `{self._name()}` and stays there."
            )

    def _name(self) -> str:
        """Return a phrase for messages that says what is binary or ternary in the layers now."""
        binary = [layer for layer in self._layers if getattr(layer, "binary_weights", False)]
        of_inputs = ("binary_inputs", "binary_qk", "binary_score_v")
        inputs = any(getattr(layer, name, None) for layer in self._layers for name in of_inputs)
        if not binary:
            return "binary activations" if inputs else NAMES[0]
        if any(layer.weight_binarizer.kind == TERNARY for layer in binary):
            return "ternary weights and binary activations" if inputs else "ternary weights"
        return NAMES[2 if inputs else 1]

    def _load_from_state_dict(
        self, state_dict: Mapping[str, Tensor], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        # A model that was never binary has no stage in its state: it is in stage 0.
        saved = state_dict.get(f"{prefix}current", torch.zeros(()))
        self.enter(int(saved))


@dataclass
class StagedCosineConfig(FairseqDataclass):
    """Options of the learning rate schedule ``staged_cosine``."""

    stage_updates: str = option(
        "",
        "numbers of updates of the training's stages (float, binary weights, binary weights and "
        "activations), such as 50000,88339,88339 (default: one stage of --max-update updates)",
    )
    warmup_updates: int = option(
        0, "number of updates at the start of each stage during which the rate rises"
    )
    lr: list[float] = II("optimization.lr")  # noqa: RUF009
    max_update: int = II("optimization.max_update")


def learning_rate(update: int, stage_updates: list[int], warmup: int, peaks: list[float]) -> float:
    """Compute the learning rate of update number ``update``, counted from 0.

    Update ``t`` = 0, 1, … of a stage has the rate ``peak · min(1, t / warmup) · (1 + cos πx) / 2``;
    ``min(…)`` is left out if ``warmup`` is 0. x is 0 until ``t = warmup``, and then
    ``(t - warmup) / (n - warmup - 1)``, up to 1 at the last of the stage's n updates. After the
    last stage the rate stays 0.

    ``stage_updates`` has n for each stage, ``peaks`` one peak for all stages or one for each.
    """
    starts = [0, *accumulate(stage_updates)]
    if update >= starts[-1]:
        return 0.0
    stage = stage_at(update, stage_updates)
    t, peak = update - starts[stage], peaks[min(stage, len(peaks) - 1)]
    rise = min(1.0, t / warmup) if warmup else 1.0
    fall = (t - warmup) / max(1, stage_updates[stage] - warmup - 1)
    return peak * rise * 0.5 * (1 + math.cos(math.pi * min(1.0, max(0.0, fall))))


@register_lr_scheduler("staged_cosine", dataclass=StagedCosineConfig)
class StagedCosine(FairseqLRScheduler):
    """A scheduler whose rate rises and then falls along a cosine in each stage of training.

    :func:`learning_rate` has the formula. A new stage keeps the optimizer's moments. ``--lr`` is
    the peak of all stages, or a comma-separated list with a peak for each stage.

    Raises:
        ConfigError: no stage has updates; a stage with updates is not longer than the warm-up; or
            the number of rates is neither 1 nor the number of stages.
    """

    def __init__(self, cfg: StagedCosineConfig, optimizer: FairseqOptimizer) -> None:
        super().__init__(cfg, optimizer)
        self.stage_updates = parse_stage_updates(cfg.stage_updates) or [cfg.max_update]
        shortest = min((n for n in self.stage_updates if n), default=0)
        if shortest < 1:
            raise ConfigError(
                "`--lr-scheduler staged_cosine` must have `--stage-updates` or `--max-update`, but "
                "has neither instead."
            )
        if not 0 <= cfg.warmup_updates < shortest:
            wish = f"below the {shortest} updates of the shortest stage"
            raise wrong_value("--warmup-updates", wish, cfg.warmup_updates)
        if len(cfg.lr) not in (1, len(self.stage_updates)):
            wish = f"one rate, or one for each of {len(self.stage_updates)} stages"
            raise wrong_value("--lr", wish, ",".join(map(str, cfg.lr)))
        self.step_update(0)

    def step_update(self, num_updates: int) -> float:
        """Set and return the learning rate of the update that follows ``num_updates`` updates."""
        warmup, peaks = self.cfg.warmup_updates, list(self.cfg.lr)
        rate = learning_rate(num_updates, self.stage_updates, warmup, peaks)
        self.optimizer.set_lr(rate)
        return rate
