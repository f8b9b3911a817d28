"""``fairseq-ext export``: turn a bundle back into a checkpoint, or into another tool's model."""

from __future__ import annotations

import argparse
from pathlib import Path

from fairseq_ext.commands import options


def add(commands: options.Subparsers) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "export",
        help="turn a bundle into a checkpoint, or into a model for another tool",
        description="Write a checkpoint that fairseq can train further, generate with and average. "
        "It has the weights of the bundle: exact in fp32 and bf16; int8 and bits stay rounded. "
        "With --to, write a model of fairseq's Transformer for CTranslate2 or for Hugging Face's "
        "transformers instead, with its dictionaries as tokenizer. Its input is the model's own "
        "tokens, which `fairseq-ext prepare` makes from text.",
    )
    parser.add_argument(
        "model",
        type=Path,
        metavar="BUNDLE",
        help="folder, archive, or name on the Hub; with --to also a checkpoint or the folder of a "
        "run",
    )
    options.add_output(
        parser, "OUT", "checkpoint to write, without optimizer state; with --to a new folder"
    )
    parser.add_argument(
        "--to", choices=("ctranslate2", "huggingface"), help="tool that will run the model"
    )
    parser.set_defaults(run=_export)


def _export(args: argparse.Namespace) -> int:
    if args.to is not None:
        return _export_to(args)
    from fairseq_ext.model import find_model
    from fairseq_ext.model.export import export

    path = find_model.existing_bundle(args.model, "exported")
    count, exactness = export(path, args.output)
    print(f"{count} tensors in {args.output}: {exactness}")
    return 0


def _export_to(args: argparse.Namespace) -> int:
    """Convert a model for another tool, and write the folder that this tool reads."""
    from fairseq_ext.decoding.loading import data_of, in_run

    path = in_run(args.model)
    data = data_of(path)
    from fairseq_ext import register

    register()
    from fairseq_ext.model.other_tools import export_to

    architecture = export_to(args.to, path, data, args.output)
    print(f"{args.output}: the {architecture} of {path} for {args.to}")
    return 0
