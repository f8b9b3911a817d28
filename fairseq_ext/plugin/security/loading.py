"""The classes that checkpoints may contain, and how rank 0 sends checkpoints to other ranks.

``torch.load`` of torch 2.6 and later refuses every class it does not know (``weights_only``).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

from fairseq_ext.checkpoints.storage import allow_harmless_classes, harmless_classes
from fairseq_ext.plugin import probes
from fairseq_ext.plugin.table import Layer, Patch


def _load_nothing_but_data() -> None:
    """Set variables that torch reads at every ``torch.load``, also in child processes."""
    os.environ.pop("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", None)
    os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] = "1"


def send_object(original: Callable) -> Callable:
    """Send the object by pickle, as all data between the ranks of a job are sent.

    Rank 0 has already loaded it safely from a checkpoint. ``weights_only`` would refuse the
    configuration objects in it.
    """

    def _broadcast_object_slow(obj: Any, src_rank: int, group: Any, dist_device: Any) -> Any:
        message = [obj]
        torch.distributed.broadcast_object_list(message, src_rank, group, dist_device)
        return message[0]

    return _broadcast_object_slow


PATCHES = (
    Patch(
        name="files are data",
        reason="fairseq's own repository loads with weights_only=False, and advice on the web sets "
        "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD: both run any code in a checkpoint",
        act=_load_nothing_but_data,
    ),
    Patch(
        name="safe checkpoint classes",
        reason="resume, generation and hub loading of stock architectures end in UnpicklingError, "
        "because torch loads with weights_only=True and checkpoints hold argparse.Namespace",
        until="fairseq stores plain dictionaries only",
        needed=lambda: probes.refused(harmless_classes()),
        act=allow_harmless_classes,
    ),
    Patch(
        name="resume on several processes",
        reason="rank 0 cannot send a loaded checkpoint to the other ranks: its configuration "
        "objects are refused by weights_only=True",
        until="fairseq uses torch.distributed.broadcast_object_list",
        needed=probes.sends_by_torch_load,
        layers=(Layer("fairseq.distributed.utils:_broadcast_object_slow", send_object),),
    ),
)
