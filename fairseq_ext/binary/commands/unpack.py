"""``fairseq-ext unpack``: a packed model as a checkpoint again."""

from __future__ import annotations

import argparse
from pathlib import Path

from fairseq_ext.commands import options
from fairseq_ext.commands.options import Subparsers


def add(commands: Subparsers) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "unpack",
        help="make a checkpoint of a packed model",
        description="Write a checkpoint of fairseq that translates as the packed model does. Its "
        "latent weights are all as large as their bound: the trained ones are not in the file.",
    )
    parser.add_argument("model", type=Path, metavar="MODEL", help="packed, or a bundle of bits")
    options.add_output(parser, "OUT.pt", "the checkpoint, without optimizer state")
    parser.set_defaults(run=_unpack)


def _unpack(args: argparse.Namespace) -> int:
    from fairseq_ext import register

    register()
    from fairseq_ext.binary.packed import unpack
    from fairseq_ext.checkpoints import bundle
    from fairseq_ext.utils.error_messages import one_message

    with one_message():
        checkpoint = unpack.unpack_file(bundle.packed(args.model), args.output)
    print(f"{len(checkpoint['model'])} tensors in {args.output}")
    return 0
