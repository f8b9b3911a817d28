"""``fairseq-ext trim``: remove the symbols that your texts do not need from a bundle."""

from __future__ import annotations

import argparse
from pathlib import Path

from fairseq_ext.commands import options


def add(commands: options.Subparsers) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "trim",
        help="remove the symbols of a bundle that your texts do not need",
        description="Write a bundle with only the symbols that texts need: their tokens, single "
        "characters, language tokens and fairseq's own. All other rows of embeddings and output "
        "projection are removed. The logits of the remaining tokens do not change.",
    )
    parser.add_argument(
        "model",
        type=Path,
        metavar="BUNDLE",
        help="folder, archive or name; `fairseq-ext bundle` makes one from another model",
    )
    parser.add_argument(
        "--for",
        dest="texts",
        type=Path,
        nargs="+",
        required=True,
        metavar="TEXT",
        help="raw text of both languages, in files named after them (train.es, train.en.gz)",
    )
    options.add_output(
        parser, "OUT", "bundle to write: a folder, or an archive if named OUT.zip or OUT.tar.zst"
    )
    parser.set_defaults(run=_trim, makes_folder=True)


def _trim(args: argparse.Namespace) -> int:
    from fairseq_ext import register
    from fairseq_ext.checkpoints import bundle
    from fairseq_ext.model import find_model
    from fairseq_ext.utils.error_messages import one_message

    bundle.require_kind(args.output)
    source = bundle.read(find_model.existing_bundle(args.model, "trimmed"))
    register()
    from fairseq_ext.model.trim import trim

    with one_message():
        trimmed = trim(source, args.texts, args.output)
    rows = [f"{after:,} of {before:,}" for before, after in trimmed.symbols]
    shown = (
        f"{rows[0]} symbols"
        if trimmed.is_joint
        else f"{rows[0]} source symbols, {rows[1]} target symbols"
    )
    before, after = trimmed.weights
    print(f"{args.output}: {shown}; weights of {after:,} bytes instead of {before:,}")
    return 0
