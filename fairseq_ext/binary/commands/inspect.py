"""``fairseq-ext inspect``: the bytes of each part of a packed model, or of one for the engine."""

from __future__ import annotations

import argparse
from pathlib import Path

from fairseq_ext.commands import options
from fairseq_ext.commands.options import Subparsers


def add(commands: Subparsers) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "inspect",
        help="check a packed model, and say where its bytes are",
        description="Read and check a packed model; print its bytes by kind, and how much smaller "
        "it is than in fp32 and bf16: its binary weights alone, and the whole file. Of a model for "
        "the engine: its bytes by kind, languages, text and operations.",
    )
    parser.add_argument(
        "model", type=Path, metavar="MODEL", help="that `fairseq-ext pack` wrote, or a bundle of it"
    )
    options.add_json(parser, "the sizes")
    parser.set_defaults(run=_inspect)


def _inspect(args: argparse.Namespace) -> int:
    from fairseq_ext.checkpoints import bundle
    from fairseq_ext.engine.files import is_engine_model

    path = bundle.packed(args.model)
    if is_engine_model(path):
        from fairseq_ext.engine import sizes as counts
    else:
        from fairseq_ext.binary.packed import byte_counts as counts
    report = counts.count(path)
    options.write_json(args.json, report)
    print(counts.as_table(report))
    return 0
