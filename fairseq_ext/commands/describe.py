"""``fairseq-ext describe``: say what a bundle contains, and how many bytes each part takes."""

from __future__ import annotations

import argparse
from pathlib import Path

from fairseq_ext.commands import options


def add(commands: options.Subparsers) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "describe",
        help="check a bundle, and say what is in it and where its bytes are",
        description="Read and check a bundle; print its architecture, languages, text and "
        "operations, and its bytes by kind.",
    )
    parser.add_argument(
        "model", type=Path, metavar="BUNDLE", help="folder, archive, or name on the Hub"
    )
    options.add_json(parser, "the sizes")
    parser.set_defaults(run=_describe)


def _describe(args: argparse.Namespace) -> int:
    from fairseq_ext.model import find_model
    from fairseq_ext.model.describe import as_table, describe

    path = find_model.existing_bundle(args.model, "described")
    report = describe(path)
    options.write_json(args.json, report)
    print(as_table(report))
    return 0
