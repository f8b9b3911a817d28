"""Checkpoints: which classes they may hold, and how rank 0 hands them to the other ranks.

``torch.load`` of torch 2.6 and later refuses every class it does not know (``weights_only``).
The lists below stay as short as real checkpoints allow, so that a malicious file is still refused.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from fairseq_ext.compat.patching import Fix, wrap


def harmless_classes() -> list[Any]:
    """What stock fairseq stores besides tensors and plain Python values.

    ``argparse.Namespace`` holds the options of legacy architectures; numpy arrays of numbers are
    the n-gram counts of ``--eval-bleu``, kept by the meters.
    """
    reconstruct = np.array([0]).__reduce__()[0]  # numpy 1 and 2 keep it in different modules
    scalar = np.int64(0).__reduce__()[0]
    numbers = [type(np.dtype(kind)) for kind in (np.int32, np.int64, np.float32, np.float64)]
    return [argparse.Namespace, np.ndarray, np.dtype, reconstruct, scalar, *numbers]


def _allow_harmless_classes() -> None:
    torch.serialization.add_safe_globals(harmless_classes())


def send_object(original: Callable) -> Callable:
    """The object goes from rank to rank by pickle, as everything between ranks of one job does.

    It comes from a checkpoint that rank 0 has already loaded safely; ``weights_only`` would refuse
    the configuration objects in it.
    """

    def _broadcast_object_slow(obj: Any, src_rank: int, group: Any, dist_device: Any) -> Any:
        message = [obj]
        torch.distributed.broadcast_object_list(message, src_rank, group, dist_device)
        return message[0]

    return _broadcast_object_slow


def _mend_broadcast() -> None:
    from fairseq.distributed import utils

    wrap(utils, "_broadcast_object_slow", send_object)


FIXES = (
    Fix(
        name="safe checkpoint classes",
        reason="resume, generation and hub loading of stock architectures end in UnpicklingError, "
        "because torch loads with weights_only=True and checkpoints hold argparse.Namespace",
        until="fairseq stores plain dictionaries only",
        apply=_allow_harmless_classes,
    ),
    Fix(
        name="resume on several processes",
        reason="rank 0 cannot send a loaded checkpoint to the other ranks: its configuration "
        "objects are refused by weights_only=True",
        until="fairseq uses torch.distributed.broadcast_object_list",
        apply=_mend_broadcast,
    ),
)
