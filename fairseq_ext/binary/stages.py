"""When a model is binarized: float, then weights, then weights and activations (section 4.1).

The stage is part of the state of a model, not only of its schedule: a checkpoint is the function
that it was trained as, wherever it is loaded.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from fairseq_ext.errors import ConfigError

logger = logging.getLogger(__name__)
NAMES = ("float", "binary weights", "binary weights and activations")


class Staged(Protocol):
    """A layer that is binarized by stage."""

    def set_stage(self, stage: int) -> None:
        """Compute as in this stage from now on."""


def lengths(text: str, least: int = 1) -> list[int]:
    """``--stage-updates`` as numbers of updates; none where it is empty.

    Args:
        text: ``FLOAT``, ``FLOAT,WEIGHTS`` or ``FLOAT,WEIGHTS,ACTIVATIONS``.
        least: stages that there must be: 2 to binarize weights, 3 for activations.

    Raises:
        ConfigError: not one to three whole numbers from 0 up, or fewer than ``least``.
    """
    try:
        values = [int(value) for value in text.split(",")] if text else []
    except ValueError:
        values = [-1]
    if len(values) > 3 or min(values, default=0) < 0 or (text and not sum(values)):
        raise ConfigError(
            "`--stage-updates` must be updates in float, with binary weights and with binary "
            f"activations, like 50000,88339,88339, but is `{text}` instead."
        )
    if 0 < len(values) < least:
        raise ConfigError(
            f"`--stage-updates` must have {least} stages to end in `{NAMES[least - 1]}`, but is "
            f"`{text}` instead."
        )
    return values


def stage_at(update: int, stages: list[int]) -> int:
    """The stage of the update that is number ``update``, from 0 on; the last where none are given.

    A stage of 0 updates is left out; the last one never ends.
    """
    if not stages:
        return 2
    return sum(update >= end for end in list(accumulate(stages))[:-1])


class Stage(nn.Module):
    """Keeps the layers of a model in the stage that it is trained in.

    fairseq tells modules the number of each update before it (``set_num_updates``), and that of a
    checkpoint before its state is loaded. The stage in a loaded state wins, and training never
    goes back from it, so that neither a checkpoint from a boundary nor ``--reset-optimizer`` nor
    fine-tuning changes what a model computes.

    Args:
        layers: what to keep in the stage.
        stages: updates of each, see :func:`lengths`; without any all is binary from the start.
    """

    def __init__(self, layers: Iterable[Staged], stages: list[int]) -> None:
        super().__init__()
        self._layers, self.stages = tuple(layers), stages
        self._warned = False
        self.register_buffer("current", torch.zeros((), dtype=torch.long))
        self.enter(stage_at(0, stages))

    def enter(self, stage: int) -> None:
        """Set all layers to a stage."""
        self.index = stage
        self.current.fill_(stage)
        for layer in self._layers:
            layer.set_stage(stage)

    def set_num_updates(self, num_updates: int) -> None:
        """fairseq's hook before update ``num_updates``, counted from 0."""
        planned = stage_at(num_updates, self.stages)
        if planned > self.index:
            # Not where a checkpoint is about to be loaded from the middle of a stage.
            if self._layers and num_updates in (0, *accumulate(self.stages)):
                logger.info(f"update {num_updates}: {NAMES[planned]} from here on")
            self.enter(planned)
        elif planned < self.index and not self._warned:
            self._warned = True
            logger.warning(
                f"`--stage-updates` would have update {num_updates} in stage `{NAMES[planned]}`, "
                f"but the checkpoint is in `{NAMES[self.index]}` and stays there."
            )

    def _load_from_state_dict(
        self, state_dict: Mapping[str, Tensor], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        # A model that was never binary has no stage: it is in stage 0, whatever the schedule.
        saved = state_dict.get(f"{prefix}current", torch.zeros(()))
        self.enter(int(saved))

    def extra_repr(self) -> str:
        return f"{NAMES[self.index]}, stages={self.stages}"
