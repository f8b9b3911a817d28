"""``fairseq-ext plot gates``: the share of each kernel in each layer of a MUSE model."""

from __future__ import annotations

import argparse
from pathlib import Path

from fairseq_ext.commands import options
from fairseq_ext.commands.options import Subparsers
from fairseq_ext.utils import extras


def add(pictures: Subparsers) -> None:
    """Add the picture."""
    parser = pictures.add_parser(
        "gates",
        help="share of each kernel in each layer of a MUSE model",
        description="Draw the learned gates of each layer, read from the checkpoint alone.",
    )
    parser.add_argument(
        "checkpoint",
        type=Path,
        metavar="CHECKPOINT",
        help="checkpoint of a MUSE model with several kernels in a layer",
    )
    parser.example = "fairseq-ext plot gates checkpoints/average.pt -o gates.png"
    options.add_picture_output(parser)
    parser.set_defaults(run=_plot_gates)


def _plot_gates(args: argparse.Namespace) -> int:
    extras.need("matplotlib")
    from fairseq_ext.evaluation import tables
    from fairseq_ext.muse import gates
    from fairseq_ext.muse.commands import drawing

    layer_gates = gates.read_gates(args.checkpoint)
    options.print_paths(drawing.plot_gates(layer_gates, args.output))
    print(tables.aligned(layer_gates.rows()))
    return 0
