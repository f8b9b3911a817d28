"""Fuse the matrices of a trained MUSE checkpoint (section 3.5), or separate them (torch only).

``W_Enc`` and ``W_Dec`` consist of the numbers of the separate matrices, so both directions are
exact to the bit. The training state is left out, because an optimizer's state has an entry for each
matrix and would not fit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from fairseq_ext.checkpoints import layout, storage
from fairseq_ext.muse.projections import fuse, unfuse
from fairseq_ext.utils.errors import CheckpointError

_BLOCK = re.compile(r"((?:encoder|decoder)\.layers\.\d+)\.projections\.")


def muse_settings(checkpoint: Mapping[str, Any], path: str | Path) -> dict[str, Any]:
    """Return the options of the model in a checkpoint of MUSE.

    Args:
        checkpoint: from :func:`fairseq_ext.checkpoints.storage.load`.
        path: its name, for the message.

    Raises:
        CheckpointError: it has another model.
    """
    settings = layout.options(checkpoint, "model")
    if "muse_kernels" not in settings:
        name = layout.architecture(checkpoint)
        raise CheckpointError(
            f"`{path}` holds the architecture `{name}`; give a checkpoint of a MUSE model."
        )
    return settings


def blocks(model: Mapping[str, Tensor]) -> list[str]:
    """List the blocks in a state dict: ``encoder.layers.0`` …"""
    return list(dict.fromkeys(match[1] for name in model if (match := _BLOCK.match(name))))


def rewrite(checkpoint: Mapping[str, Any], path: str | Path, *, fused: bool) -> dict[str, Any]:
    """Make a checkpoint of MUSE whose blocks are all fused or all separate, without training state.

    Args:
        checkpoint: of the other kind, from :func:`fairseq_ext.checkpoints.storage.load`.
        path: its name, for messages.
        fused: whether to fuse or to separate the blocks.

    Raises:
        CheckpointError: it has another model, is already of that kind, or has binary weights.
    """
    settings = muse_settings(checkpoint, path)
    if fused and any(settings.get(option) for option in ("binary_weights", "binary_activations")):
        raise CheckpointError(
            f"`{path}` has binary weights, which do not go with fused projections; leave it as it "
            "is, or pack it."
        )
    if bool(settings.get("muse_fused")) == fused:
        remedy = "`--unfuse` takes it apart" if fused else "leave out `--unfuse`"
        raise CheckpointError(f"`{path}` is {'fused' if fused else 'separate'} already; {remedy}.")
    model = dict(checkpoint["model"])
    for block in blocks(model):
        prefix = f"{block}.projections."
        if fused:
            model = fuse(model, prefix)
        else:
            dynamic = f"{block}.attention.convolution.predictor.weight" in model
            model = unfuse(model, prefix, parts_out=2 if dynamic else 1)
    return layout.with_model(layout.without_training_state(checkpoint), model, muse_fused=fused)


def rewrite_file(path: str | Path, output: str | Path, *, fused: bool) -> dict[str, Any]:
    """Rewrite the file ``path`` to ``output``, which appears whole or not at all.

    Raises:
        CheckpointError: as for :func:`rewrite`, or the file cannot be read.
    """
    result = rewrite(storage.load(path), path, fused=fused)
    storage.save(result, output)
    return result
