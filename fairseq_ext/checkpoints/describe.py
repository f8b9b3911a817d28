"""Size and history of a checkpoint or bundle; of a bundle without torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fairseq_ext.checkpoints import bundle
from fairseq_ext.engine.tensors import BITS, Tensors
from fairseq_ext.utils.errors import CheckpointError

BOOKKEEPING = ("version", "_float_tensor")
"""Names with which fairseq's own buffers end, which are no parameters."""


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
    """Size and history of a checkpoint or bundle.

    Raises:
        CheckpointError: it cannot be read.
    """
    if bundle.is_bundle(path):
        manifest = bundle.read(path)
        manifest.check()
        file = manifest.folder / bundle.WEIGHTS
        count = parameters_of(Tensors(file), manifest)
        return Weights(manifest.architecture, count, file.stat().st_size, manifest.updates)
    import torch

    from fairseq_ext.checkpoints import storage
    from fairseq_ext.checkpoints.layout import architecture, memory, num_updates

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
    size = sum(storages.values())
    return Weights(architecture(state), sum(weights.values()), size, num_updates(state))


def parameters_of(tensors: Tensors, manifest: bundle.Bundle) -> int:
    """Numbers in floating-point weights; a bit counts as one."""
    inputs = bundle.configuration(manifest).get("binary", {}).get("inputs", {})
    count = 0
    for name in tensors.names():
        if name in inputs:
            count += inputs[name] * len(tensors.stored(name + BITS))
        elif not name.startswith(bundle.CONSTANT) and not name.endswith(BOOKKEEPING):
            array = tensors.array(name)
            count += array.size if array.dtype == np.float32 else 0
    return count
