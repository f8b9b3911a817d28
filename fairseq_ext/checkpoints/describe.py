"""Size and history of a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from fairseq_ext.checkpoints import bundle, storage
from fairseq_ext.checkpoints.layout import architecture, memory, num_updates
from fairseq_ext.utils.errors import CheckpointError

BOOKKEEPING = ("version", "_float_tensor")  # names with which fairseq's own buffers end


@dataclass(frozen=True)
class Weights:
    """Size and history of a checkpoint.

    Attributes:
        architecture: its name in fairseq.
        parameters: numbers in floating-point tensors; a tied one counts once.
        tensor_bytes: of all tensors of the model as they are on disk, without optimizer state.
        updates: of training.
    """

    architecture: str
    parameters: int
    tensor_bytes: int
    updates: int | None


def read_weights(path: str | Path) -> Weights:
    """Size and history of a checkpoint.

    Raises:
        CheckpointError: it cannot be read.
    """
    state = storage.load(path)
    weights, storages = {}, {}  # tied weights count once; parts of one matrix share a storage
    for name, weight in state["model"].items():
        if not isinstance(weight, torch.Tensor):
            raise CheckpointError(
                f"{path}: `{name!s:.60}` of its model is not a tensor. Use another."
            )
        storage_of = weight.untyped_storage()
        if weight.numel():
            storages[storage_of.data_ptr()] = storage_of.nbytes()
        if weight.is_floating_point() and not name.endswith(BOOKKEEPING):
            weights[memory(weight)] = weight.numel()
    size, updates = sum(storages.values()), num_updates(state)
    if bundle.is_bundle(path):  # read as fp32, whatever its numbers are
        size = (bundle.home(path) / bundle.WEIGHTS).stat().st_size
        updates = bundle.read(path).updates
    return Weights(architecture(state), sum(weights.values()), size, updates)
