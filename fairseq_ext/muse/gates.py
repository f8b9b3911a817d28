"""Read the share of each kernel in the layers of a trained MUSE model (Figure 4 of its paper).

The gate of a layer is ``softmax(α)`` over its kernels, equation (7). It is stored in the
checkpoint, so neither data nor fairseq is needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fairseq_ext.checkpoints import layout, storage
from fairseq_ext.muse.convolution import kernels_of_layers
from fairseq_ext.utils.errors import CheckpointError

SIDES = ("encoder", "decoder")
Shares = dict[int, float]
"""The share of each kernel size in a layer's convolution; the shares sum to 1."""


@dataclass(frozen=True)
class Gates:
    """The shares of each layer, from the lowest up; empty for a layer without convolution."""

    encoder: tuple[Shares, ...]
    decoder: tuple[Shares, ...]

    def sizes(self) -> list[int]:
        """Return all kernel sizes in ascending order."""
        return sorted({size for layer in (*self.encoder, *self.decoder) for size in layer})

    def rows(self) -> list[list[str]]:
        """Make a table with a line per layer: each kernel's share, and smallest over largest."""
        sizes = self.sizes()
        rows = [["layer", *(f"k = {size}" for size in sizes), "smallest : largest"]]
        for side in SIDES:
            for number, layer in enumerate(getattr(self, side), start=1):
                shares = [f"{layer[size]:.4f}" if size in layer else "–" for size in sizes]
                ratio = f"{layer[min(layer)] / layer[max(layer)]:.3f}" if len(layer) > 1 else "–"
                rows.append([f"{side} {number}", *shares, ratio])
        return rows


def read_gates(path: str | Path) -> Gates:
    """Read the gates of a checkpoint of MUSE, fused or not.

    Raises:
        CheckpointError: it cannot be read, has another model, or no layer has several kernels.
    """
    checkpoint = storage.load(path)
    settings = layout.options(checkpoint, "model")
    if "muse_kernels" not in settings:
        name = layout.architecture(checkpoint)
        raise CheckpointError(
            f"`{path}` holds the architecture `{name}`; give a checkpoint of a MUSE model."
        )
    sides = []
    for side in SIDES:
        layers = kernels_of_layers(settings["muse_kernels"], settings[f"{side}_layers"])
        names = (f"{side}.layers.{i}.attention.convolution.gate" for i in range(len(layers)))
        gates = (checkpoint["model"].get(name) for name in names)
        sides.append(tuple(shares(*layer) for layer in zip(layers, gates, strict=True)))
    if all(len(layer) < 2 for layers in sides for layer in layers):
        raise CheckpointError(
            f"`{path}` has no gate: none of its layers has several dynamic kernels "
            f"(`--muse-kernels {settings['muse_kernels']}`)."
        )
    return Gates(*sides)


def shares(kernel_sizes: tuple[int, ...], gate: Tensor | None) -> Shares:
    """Compute ``softmax(α)`` by kernel size, with equal sizes added up.

    Args:
        kernel_sizes: of the layer.
        gate: α, ``[n]``; None for fewer than two kernels.
    """
    if gate is None:
        return dict.fromkeys(kernel_sizes, 1.0)
    shares: Shares = {}
    values = torch.softmax(gate.double(), dim=0).tolist()
    for size, value in zip(kernel_sizes, values, strict=True):
        shares[size] = shares.get(size, 0.0) + value
    return shares
