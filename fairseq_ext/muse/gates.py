"""The share of each kernel in the layers of a trained MUSE model (Figure 4 of its paper).

The gate of a layer is ``softmax(α)`` over its kernels, equation (7). It is stored in the
checkpoint, so neither data nor fairseq is needed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fairseq_ext.checkpoints import storage
from fairseq_ext.errors import CheckpointError
from fairseq_ext.evaluation import plots
from fairseq_ext.muse.fusing import muse_settings
from fairseq_ext.muse.kernel_sizes import kernels_of_layers

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIDES = ("encoder", "decoder")
Shares = dict[int, float]
"""The share of each kernel size of a layer in its convolution; the shares sum to 1."""


@dataclass(frozen=True)
class Gates:
    """Shares of each layer, from the lowest up; empty for a layer without convolution."""

    encoder: tuple[Shares, ...]
    decoder: tuple[Shares, ...]

    def sizes(self) -> list[int]:
        """Every kernel size, rising."""
        return sorted({size for layer in (*self.encoder, *self.decoder) for size in layer})

    def rows(self) -> list[list[str]]:
        """A table: a line for each layer, the share of each kernel and of smallest to largest."""
        sizes = self.sizes()
        rows = [["layer", *(f"k = {size}" for size in sizes), "smallest : largest"]]
        for side in SIDES:
            for number, layer in enumerate(getattr(self, side), start=1):
                shares = [f"{layer[size]:.4f}" if size in layer else "–" for size in sizes]
                ratio = f"{layer[min(layer)] / layer[max(layer)]:.3f}" if len(layer) > 1 else "–"
                rows.append([f"{side} {number}", *shares, ratio])
        return rows


def read_gates(path: str | Path) -> Gates:
    """The gates of a checkpoint of MUSE, fused or not.

    Raises:
        CheckpointError: it cannot be read, is of another model, or no layer has several kernels.
    """
    checkpoint = storage.load(path)
    settings = muse_settings(checkpoint, path)
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
    """``softmax(α)`` by kernel size; equal sizes count together.

    Args:
        kernel_sizes: of the layer.
        gate: α, ``[n]``; None for less than two kernels.
    """
    if gate is None:
        return dict.fromkeys(kernel_sizes, 1.0)
    found: Shares = {}
    values = torch.softmax(gate.double(), dim=0).tolist()
    for size, value in zip(kernel_sizes, values, strict=True):
        found[size] = found.get(size, 0.0) + value
    return found


def plot_gates(gates: Gates, output: str | Path) -> list[Path]:
    """Draw the share of each kernel over the layers; returns the files written."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(plots.STYLE):
        figure = Figure(figsize=(9.6, 4.2), layout="constrained")
        panels = figure.subplots(1, 2, sharey=True)
        for axes, side in zip(panels, SIDES, strict=True):
            _draw_side(axes, getattr(gates, side), gates.sizes())
            axes.set(title=side.capitalize(), xlabel="layer (1 reads the words)")
        panels[0].set_ylabel("share of the kernel (sums to 1)")
        low, high = panels[0].get_ylim()
        room = max(0.0, 0.1 - (high - low)) / 2  # do not let noise look like a decision
        panels[0].set_ylim(low - room, high + room)
        lines, labels = panels[0].get_legend_handles_labels()
        figure.legend(lines, labels, loc="outside lower center", ncols=4, fontsize=8.5)
        return plots.save_picture(figure, output, asdict(gates))


def portrait(path: str | Path) -> dict[str, bytes]:
    """The gates of a checkpoint as a PNG by title; nothing of one without."""
    try:
        gates = read_gates(path)
    except CheckpointError:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        picture = plot_gates(gates, Path(folder, "gates"))[0].read_bytes()
    return {"Gates (the share of each kernel in each layer)": picture}


def _draw_side(axes: Axes, layers: tuple[Mapping[int, float], ...], sizes: list[int]) -> None:
    """Draw a line for each kernel size, and one where all shares would be equal."""
    numbers = range(1, len(layers) + 1)
    for size, colour in zip(sizes, cycle(plots.PALETTE), strict=False):
        line: dict[str, Any] = {"marker": "o", "ms": 5, "lw": 1.8, "color": colour}
        values = [layer.get(size, float("nan")) for layer in layers]
        axes.plot(numbers, values, label=f"k = {size}", **line)
    equal = {1 / len(layer) for layer in layers if len(layer) > 1}
    if len(equal) == 1:
        axes.axhline(equal.pop(), color="#777777", lw=1, ls="--", label="equal shares (at first)")
    axes.set_xticks(numbers)
    axes.grid(True, axis="y")
