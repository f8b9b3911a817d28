"""``fairseq-ext export``: a bundle as a checkpoint of fairseq again."""

from __future__ import annotations

import argparse
from pathlib import Path

from fairseq_ext.commands import options
from fairseq_ext.commands.options import Subparsers


def add(commands: Subparsers) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "export",
        help="make a checkpoint of a bundle",
        description="Write a checkpoint on which fairseq trains on, with which it generates, and "
        "which it averages. It has the weights of the bundle: exact in fp32 and bf16; int8 and "
        "bits stay rounded.",
    )
    parser.add_argument(
        "model", type=Path, metavar="BUNDLE", help="its folder or archive, or a name on the Hub"
    )
    options.add_output(parser, "OUT.pt", "the checkpoint, without optimizer state")
    parser.set_defaults(run=_export)


def _export(args: argparse.Namespace) -> int:
    from fairseq_ext.model import find_model
    from fairseq_ext.model.export import export

    path = find_model.existing_bundle(args.model, "exported")
    count, exactness = export(path, args.output)
    print(f"{count} tensors in {args.output}: {exactness}")
    return 0
