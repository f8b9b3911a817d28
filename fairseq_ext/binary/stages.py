"""The stages of training: float, binary weights, binary weights and activations (section 4.1).

The stage is stored in the model's state, not only in its schedule. So a checkpoint always computes
the function that was trained, wherever it is loaded.
"""

import logging
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_ext.utils.errors import ConfigError

logger = logging.getLogger(__name__)
NAMES = ("float", "binary weights", "binary weights and activations")


def lengths(text: str, fewest: int = 1) -> list[int]:
    """Read ``--stage-updates``: the number of updates of each stage, or an empty list.

    Args:
        text: ``FLOAT``, ``FLOAT,WEIGHTS`` or ``FLOAT,WEIGHTS,ACTIVATIONS``.
        fewest: the fewest stages that are accepted: 2 to binarize weights, 3 for activations.

    Raises:
        ConfigError: these are not one to three whole numbers from 0 up, or fewer than ``fewest``.
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
    if 0 < len(values) < fewest:
        raise ConfigError(
            f"`--stage-updates` must have {fewest} stages to end in `{NAMES[fewest - 1]}`, but is "
            f"`{text}` instead."
        )
    return values


def stage_at(update: int, stages: list[int]) -> int:
    """Return the stage of update ``update``, counted from 0; without a list, the last stage.

    A stage of 0 updates is skipped; the last stage never ends.
    """
    if not stages:
        return 2
    return sum(update >= end for end in list(accumulate(stages))[:-1])


class Stage(nn.Module):
    """A module that keeps all layers of a model in the same stage of training.

    fairseq tells modules the number of each update (``set_num_updates``), also that of a checkpoint
    before its state is loaded. The stage in a loaded state has priority, and training never goes
    back from it. So loading never changes what a model computes: not at the boundary of two stages,
    not with ``--reset-optimizer``, and not for fine-tuning.

    Args:
        layers: the layers to keep in the stage, by their ``set_stage``.
        stages: the number of updates of each stage (:func:`lengths`); if it is empty, everything is
            binary from the start.
    """

    def __init__(self, layers: Iterable[nn.Module], stages: list[int]) -> None:
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
        """Enter the stage of update ``num_updates``, counted from 0; called before this update."""
        planned = stage_at(num_updates, self.stages)
        if planned > self.index:
            # No message if a checkpoint is about to be loaded in the middle of a stage.
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
        # A model that was never binary has no stage in its state: it is in stage 0.
        saved = state_dict.get(f"{prefix}current", torch.zeros(()))
        self.enter(int(saved))

    def extra_repr(self) -> str:
        return f"{NAMES[self.index]}, stages={self.stages}"
