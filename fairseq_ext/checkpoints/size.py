"""Read the size of a trained model, and its number of updates. Bundles are read without torch."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fairseq_ext.checkpoints import bundle
from fairseq_ext.checkpoints.layout import architecture, num_updates, ties
from fairseq_ext.engine.tensors import LEVELS, Tensors

BOOKKEEPING = ("version", "_float_tensor")
"""Endings of the names of fairseq's own buffers, which are not parameters."""


@dataclass(frozen=True)
class ModelSize:
    """The size of a trained model, and its number of updates."""

    architecture: str
    parameters: int  # floating-point, binary and ternary weights; tied weights count once
    tensor_bytes: int  # size of the model's tensors on disk
    updates: int | None  # None if unknown


def read_size(path: str | Path) -> ModelSize:
    """Read the size of the model in a checkpoint or bundle, and its number of updates."""
    if bundle.is_bundle(path):
        manifest = bundle.read(path)
        manifest.check()
        file = manifest.folder / bundle.WEIGHTS
        count = parameters_of(Tensors(file), manifest)
        return ModelSize(manifest.architecture, count, file.stat().st_size, manifest.updates)
    from fairseq_ext.checkpoints import storage

    state = storage.load(path)
    tied = ties(state["model"])
    count, storages = 0, {}  # tied weights count once; parts of one matrix share a storage
    for name, weight in state["model"].items():
        if weight.numel():
            storages[weight.untyped_storage().data_ptr()] = weight.untyped_storage().nbytes()
        if weight.is_floating_point() and name not in tied and not name.endswith(BOOKKEEPING):
            count += weight.numel()
    return ModelSize(architecture(state), count, sum(storages.values()), num_updates(state))


def parameters_of(tensors: Tensors, manifest: bundle.Bundle) -> int:
    """Count the floating-point, int8, binary and ternary weights in a bundle's ``tensors``."""
    inputs = bundle.configuration(manifest).get("binary", {}).get("inputs", {})
    count = 0
    for name in tensors.names():
        if name in inputs:
            count += inputs[name] * len(tensors.stored(name + LEVELS))
        elif not name.startswith(bundle.CONSTANT) and not name.endswith(BOOKKEEPING):
            array = tensors.array(name)
            count += array.size if array.dtype == np.float32 else 0
    return count
