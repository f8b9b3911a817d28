"""Moving averages of the weights (``--store-ema``).

fairseq averages the whole state of a model. Integers in it, such as the stage of a binary model or
the counters of a batch norm, cannot be averaged. fairseq also leaves the version numbers of modules
out of the averaged state. When it loads this state, it takes the model for a very old one, which
had no final layer norm, so the average of any pre-norm Transformer loses its final layer norms.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fairseq_ext.plugin.patches import probes
from fairseq_ext.plugin.patches.table import Layer, Patch


def copy_whole_numbers(original: Callable) -> Callable:
    """Copy integers from the model into the average."""

    def __init__(self: Any, model: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
        original(self, model, *args, **kwargs)
        state = self.model.state_dict()
        whole = {name for name, value in state.items() if not torch.is_floating_point(value)}
        self.skip_keys = {*self.skip_keys, *whole}

    return __init__


def keep_versions(original: Callable) -> Callable:
    """Add the version numbers of modules to the state from which the average is loaded."""

    def restore(self: Any, state_dict: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        own = self.model.state_dict()
        versions = {name: value for name, value in own.items() if "version" in name}
        original(self, {**versions, **state_dict}, *args, **kwargs)

    return restore


PATCHES = (
    Patch(
        name="--store-ema of every model",
        reason="the average of a pre-norm Transformer loses its last layer norms, and that of a "
        "model with an integer buffer dies with `result type Float can't be cast`",
        until="fairseq's EMA averages floating point alone and keeps versions",
        needed=probes.averages_wrongly,
        layers=(
            Layer("fairseq.models.ema.ema:EMA.__init__", copy_whole_numbers),
            Layer("fairseq.models.ema.ema:EMA.restore", keep_versions),
        ),
    ),
)
