"""``fairseq-ext fuse``: a MUSE checkpoint with the joined matrices of section 3.5, and back."""

from __future__ import annotations

import argparse
from pathlib import Path

from fairseq_ext.commands import options
from fairseq_ext.commands.options import Subparsers


def add(commands: Subparsers) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "fuse",
        help="join the matrices of a trained MUSE model, so that it translates faster",
        description="Rewrite a MUSE checkpoint with the matrices of all branches joined into two "
        "in each block (the paper's W_Enc and W_Dec). Numbers and translations do not change.",
    )
    parser.add_argument(
        "checkpoint", type=Path, metavar="CHECKPOINT", help="checkpoint of any MUSE architecture"
    )
    parser.add_argument(
        "--unfuse", action="store_true", help="separate the matrices of a fused checkpoint again"
    )
    parser.example = "fairseq-ext fuse checkpoints/average.pt -o fused.pt"
    options.add_output(parser, "OUT.pt", "checkpoint to write, without optimizer state")
    parser.set_defaults(run=_fuse)


def _fuse(args: argparse.Namespace) -> int:
    from fairseq_ext.muse import fusing

    result = fusing.rewrite_file(args.checkpoint, args.output, fused=not args.unfuse)
    done = "separated" if args.unfuse else "fused"
    print(f"{done} {len(fusing.blocks(result['model']))} blocks, in {args.output}")
    return 0
