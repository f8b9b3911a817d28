"""Read checkpoint files safely and only once, and save them atomically.

A command needs the options of a checkpoint before fairseq loads its weights, and again afterwards.
:func:`peek` reads options and weights, and keeps the weights in memory until :func:`load` takes
them. The options stay in memory. A file that has changed is read again. Nothing here imports
fairseq.
"""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from fairseq_ext.checkpoints import bundle, layout, published, safe_load
from fairseq_ext.utils.files import atomic_write, head, version

# By version of a file: the checkpoint, if only `peek` has read it; and all of it but weights.
_unclaimed: dict[tuple[Any, ...], dict[str, Any]] = {}
_settings: dict[tuple[Any, ...], Mapping[str, Any]] = {}


def is_checkpoint(path: str | Path) -> bool:
    """Return whether a path is a bundle, or a file that begins like torch's checkpoints."""
    start = head(path, len(safe_load.LEGACY))
    return bundle.is_bundle(path) or start.startswith((b"PK", safe_load.LEGACY))


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
    return published.adapted(_settings[version], path)


def load(path: str | Path) -> dict[str, Any]:
    """Read a checkpoint or bundle, with the checks of :mod:`~fairseq_ext.checkpoints.safe_load`.

    All tensors are on the CPU. Those of checkpoints by torch 1.6 or later are memory-mapped. Raise
    CheckpointError if the file cannot be read, or fails a check.
    """
    version = _version(path)
    state = _unclaimed.pop(version, None) or _read(path)
    if version not in _settings:
        _settings[version] = layout.without_weights(state)
    return published.adapted(state, path)


def _read(path: str | Path) -> dict[str, Any]:
    if not bundle.is_bundle(path):
        return safe_load.read(path)
    state, manifest = bundle.load(path), bundle.read(path)
    growth = 32 if manifest.numbers in bundle.PACKED else 4  # of the weights from file to fp32
    size = growth * (manifest.folder / bundle.WEIGHTS).stat().st_size
    safe_load.require_harmless(state, path, size)
    return state


def _version(path: str | Path) -> tuple[Any, ...]:
    """Return a key for the content of a file or bundle; it changes when a file is written to."""
    paths = [Path(path)]
    if bundle.is_bundle(path):
        paths = sorted(bundle.home(path).iterdir())
    versions: list[Any] = []
    for file in paths:
        with suppress(OSError, ValueError):  # the reader reports a missing file or invalid path
            versions.append((str(file), version(file)))
    return tuple(versions)
