"""``fairseq-ext plot gates``: plot the share of each kernel in each layer (Figure 4 of MUSE).

A MUSE layer adds up convolutions with kernels of several sizes, weighted by a gate. The gate
``softmax(α)`` gives each kernel its share (equation 7). The checkpoint stores ``α``, so neither
data nor fairseq is needed.
"""

from __future__ import annotations

import argparse
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING

from fairseq_ext.commands import options
from fairseq_ext.utils import extras
from fairseq_ext.utils.errors import CheckpointError

if TYPE_CHECKING:
    from torch import Tensor

SIDES = ("encoder", "decoder")
Shares = dict[int, float]
"""The share of each kernel size in a layer's convolution; the shares sum to 1."""
Gates = dict[str, list[Shares]]
"""The shares in each layer of each of the :data:`SIDES`, lowest first; {} without convolution."""


def add(pictures: options.Subparsers) -> None:
    parser = pictures.add_parser(
        "gates",
        help="learned share of each convolution kernel in each layer of a MUSE model",
        description="Draw the share of each convolution kernel in each layer of a MUSE model. The "
        "checkpoint has these shares as learned gates, so no data is needed.",
        example="fairseq-ext plot gates checkpoints/average.pt -o gates.png",
    )
    parser.add_argument(
        "checkpoint",
        type=Path,
        metavar="CHECKPOINT",
        help="checkpoint of a MUSE model with several kernels in a layer",
    )
    options.add_picture_output(parser)
    parser.set_defaults(run=_plot_gates)


def _plot_gates(args: argparse.Namespace) -> None:
    extras.need("matplotlib")
    from fairseq_ext.evaluation import tables

    gates = read_gates(args.checkpoint)
    print(*draw(gates, args.output), sep="\n")
    print(tables.aligned(rows(gates)))


def all_sizes(gates: Gates) -> list[int]:
    return sorted({size for layers in gates.values() for layer in layers for size in layer})


def rows(gates: Gates) -> list[list[str]]:
    """Return the shares as rows of text: a heading, then a row for each layer.

    The last column is the smallest kernel's share divided by the largest kernel's share.
    """
    sizes = all_sizes(gates)
    lines = [["layer", *(f"k = {size}" for size in sizes), "smallest : largest"]]
    for side, layers in gates.items():
        for number, layer in enumerate(layers, start=1):
            cells = [f"{layer[size]:.4f}" if size in layer else "–" for size in sizes]
            ratio = f"{layer[min(layer)] / layer[max(layer)]:.3f}" if len(layer) > 1 else "–"
            lines.append([f"{side} {number}", *cells, ratio])
    return lines


def read_gates(path: str | Path) -> Gates:
    """Read the gates of a MUSE model from a checkpoint.

    Raise CheckpointError if the checkpoint holds another architecture, or no layer has a gate.
    """
    from fairseq_ext.checkpoints import layout, storage
    from fairseq_ext.muse.convolution import kernels_of_layers

    checkpoint = storage.load(path)
    settings = layout.options(checkpoint, "model")
    if "muse_kernels" not in settings:
        name = layout.architecture(checkpoint)
        raise CheckpointError(
            f"`{path}` holds the architecture `{name}`; give a checkpoint of a MUSE model."
        )
    gates: Gates = {}
    for side in SIDES:
        layers = kernels_of_layers(settings["muse_kernels"], settings[f"{side}_layers"])
        names = (f"{side}.layers.{i}.attention.convolution.gate" for i in range(len(layers)))
        alphas = (checkpoint["model"].get(name) for name in names)
        gates[side] = [shares(*layer) for layer in zip(layers, alphas, strict=True)]
    if all(len(layer) < 2 for layers in gates.values() for layer in layers):
        raise CheckpointError(
            f"`{path}` has no gate: none of its layers has several dynamic kernels "
            f"(`--muse-kernels {settings['muse_kernels']}`)."
        )
    return gates


def shares(kernel_sizes: tuple[int, ...], gate: Tensor | None) -> Shares:
    """Return the share ``softmax(α)`` of each kernel size; shares of equal sizes are added up.

    ``gate`` is ``α``, or None for a single kernel, which has the share 1.
    """
    if gate is None:
        return dict.fromkeys(kernel_sizes, 1.0)
    import torch

    shares: Shares = {}
    values = torch.softmax(gate.double(), dim=0).tolist()
    for size, value in zip(kernel_sizes, values, strict=True):
        shares[size] = shares.get(size, 0.0) + value
    return shares


def draw(gates: Gates, output: str | Path) -> list[Path]:
    """Plot the share of each kernel size in each layer.

    A line for each kernel size goes over the layers of a side, a dashed line is at equal shares.
    Write the picture to ``output`` and the shares to a JSON file; return the paths of both.
    """
    from fairseq_ext.evaluation import plots

    with plots.new_figure(9.6, 4.2) as figure:
        panels = figure.subplots(1, 2, sharey=True)
        for axes, (side, layers) in zip(panels, gates.items(), strict=True):
            numbers = range(1, len(layers) + 1)
            for size, colour in zip(all_sizes(gates), cycle(plots.PALETTE), strict=False):
                values = [layer.get(size, float("nan")) for layer in layers]
                axes.plot(numbers, values, "o-", ms=5, lw=1.8, color=colour, label=f"k = {size}")
            equal = {1 / len(layer) for layer in layers if len(layer) > 1}
            if len(equal) == 1:
                label = "equal shares (at first)"
                axes.axhline(equal.pop(), color="#777777", lw=1, ls="--", label=label)
            axes.set_xticks(numbers)
            axes.grid(True, axis="y")
            axes.set(title=side.capitalize(), xlabel="layer (1 reads the words)")
        panels[0].set_ylabel("share of the kernel (sums to 1)")
        low, high = panels[0].get_ylim()
        room = max(0.0, 0.1 - (high - low)) / 2  # with a smaller range, noise would look important
        panels[0].set_ylim(low - room, high + room)
        lines, labels = panels[0].get_legend_handles_labels()
        figure.legend(lines, labels, loc="outside lower center", ncols=4, fontsize=8.5)
        return plots.save_picture(figure, output, gates)
