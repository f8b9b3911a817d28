"""Read checkpoint files safely and only once, and save them atomically.

A command needs the options of a checkpoint before fairseq loads its weights, and again afterwards.
:func:`peek` reads options and weights, and keeps the weights in memory until :func:`load` takes
them. The options stay in memory. A file that has changed is read again. Nothing here imports
fairseq.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairseq_ext.checkpoints import bundle, layout, safe_load
from fairseq_ext.utils.files import atomic_write, version

OUTPUT = "decoder.output_projection.weight"

# By version of a file: the checkpoint, if only `peek` has read it; and all of it but weights.
_unclaimed: dict[tuple[Any, ...], dict[str, Any]] = {}
_settings: dict[tuple[Any, ...], Mapping[str, Any]] = {}


def save(checkpoint: Mapping[str, Any], path: str | Path) -> None:
    """Write a checkpoint to ``path`` atomically."""
    with atomic_write(path, "wb") as file:
        torch.save(checkpoint, file)


def peek(path: str | Path) -> Mapping[str, Any]:
    """Return a checkpoint without weights and optimizer state, with the checks of :func:`load`."""
    version = _version(path)
    if version not in _settings:
        _unclaimed[version] = state = _read(path)
        _settings[version] = layout.without_weights(state)
    return _adapted(_settings[version], path)


def load(path: str | Path) -> dict[str, Any]:
    """Read a checkpoint or bundle, with the checks of :mod:`~fairseq_ext.checkpoints.safe_load`.

    All tensors are on the CPU. Those of checkpoints by torch 1.6 or later are memory-mapped. Raise
    CheckpointError if the file cannot be read, or fails a check.
    """
    version = _version(path)
    state = _unclaimed.pop(version, None) or _read(path)
    if version not in _settings:
        _settings[version] = layout.without_weights(state)
    return _adapted(state, path)


def _read(path: str | Path) -> dict[str, Any]:
    if not bundle.is_bundle(path):
        return safe_load.read(path)
    state = bundle.load(path)
    with safe_load.about(path):  # the weights are checked already, but not the options
        safe_load.require_plain(state["cfg"], file_bytes=0)
        safe_load.require_inert(state["cfg"])
    return state


def _version(path: str | Path) -> tuple[Any, ...]:
    """Return a key for the content of a file or bundle; it changes when a file is written to."""
    return tuple((str(file), version(file)) for file in bundle.files_of(path))


def _adapted(checkpoint: Mapping[str, Any], path: str | Path) -> dict[str, Any]:
    """Copy a checkpoint; apply the changes, if any, that the file ``CHANGES`` beside it lists."""
    changed = dict(checkpoint)
    file = Path(path).parent / layout.CHANGES
    if not file.is_file():
        return changed
    changes = json.loads(file.read_text(encoding="utf-8"))
    if changes:
        changed = layout.with_options(checkpoint, changes["task"], changes["model"])
    prefix = changes.get("weights")
    if prefix and "model" in changed:
        changed["model"] = {
            name.removeprefix(prefix): weight
            for name, weight in changed["model"].items()
            if name.startswith(prefix)
        }
    if layout.architecture(changed).startswith("lightconv") and "model" in changed:
        changed["model"] = _renamed(changed["model"])
    return changed


def _renamed(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Give the weights of a LightConv model of 2019 the names that today's fairseq expects."""
    renamed = {OUTPUT if name == "decoder.embed_out" else name: w for name, w in weights.items()}
    if "decoder.embed_tokens.weight" in renamed:
        renamed.setdefault(OUTPUT, renamed["decoder.embed_tokens.weight"])
    for name, weight in weights.items():
        if name.endswith(".conv.weight_linear.weight"):  # fairseq requires an unused bias
            bias = name.replace("weight_linear.weight", "conv_bias")
            renamed.setdefault(bias, weight.new_zeros(1, 1, weight.shape[1]))
    return renamed
