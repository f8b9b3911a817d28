"""What a checkpoint holds, in numbers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from fairseq_ext.checkpoints import bundle, storage
from fairseq_ext.checkpoints.layout import architecture, num_updates
from fairseq_ext.errors import CheckpointError

BOOKKEEPING = ("version", "_float_tensor")  # names with which fairseq's own buffers end


@dataclass(frozen=True)
class Weights:
    """What a checkpoint says.

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
    views, storages = {}, {}  # tied weights are one view, and parts of one matrix one storage
    for name, weight in state["model"].items():
        if not isinstance(weight, torch.Tensor):
            raise CheckpointError(f"{path}: `{name!s:.60}` of its model is no tensor. Use another.")
        address = weight.untyped_storage().data_ptr()
        if weight.numel():
            storages[address] = weight.untyped_storage().nbytes()
        if weight.is_floating_point() and not name.endswith(BOOKKEEPING):
            views[address, weight.storage_offset(), weight.shape] = weight.numel()
    size, updates = sum(storages.values()), num_updates(state)
    if bundle.is_bundle(path):  # read as fp32, whatever its numbers are
        size = (bundle.home(path) / bundle.WEIGHTS).stat().st_size
        updates = bundle.read(path).updates
    return Weights(architecture(state), sum(views.values()), size, updates)
