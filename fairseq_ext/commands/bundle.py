"""``fairseq-ext bundle``: a trained model as one folder."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

from fairseq_ext.commands import options
from fairseq_ext.commands.options import Subparsers
from fairseq_ext.commands.translate import OF_A_MODEL
from fairseq_ext.engine import NUMBERS


def add(commands: Subparsers) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "bundle",
        help="a trained model as one folder, with all that using it takes",
        description="Write weights, options, dictionaries, text steps and a model card into a "
        "folder that everything takes which takes a checkpoint. Nothing in it is pickled. Average "
        "checkpoints first.",
    )
    option = parser.add_argument
    option("model", type=Path, metavar="CHECKPOINT", help="checkpoint, or the folder of a run")
    option(
        "--data",
        type=Path,
        metavar="DIR",
        help="folder of fairseq-preprocess with the dictionaries (that of the training)",
    )
    option("--numbers", choices=NUMBERS, default="fp32", help="of the weights (%(default)s)")
    option(
        "--engine",
        choices=NUMBERS,
        help="with a model for the engine too, its weights in these numbers, for translating "
        "without torch and fairseq",
    )
    option("--about", default="", metavar="TEXT", help="what the model card says of model and data")
    option("--licence", default="unknown", metavar="NAME", help="of the model (%(default)s)")
    group = parser.add_argument_group("how it searches unless it is told otherwise")
    for name, (usual, text) in OF_A_MODEL.items():
        flag = f"--{name.replace('_', '-')}"
        group.add_argument(flag, type=type(usual), metavar="N", help=f"{text} ({usual})")
    options.add_output(parser, "FOLDER", "the bundle")
    parser.set_defaults(run=_bundle)


def _bundle(args: argparse.Namespace) -> int:
    logging.basicConfig(level=logging.WARNING)  # importing fairseq would choose DEBUG
    from fairseq_ext import register
    from fairseq_ext.decoding.loading import data_of, in_run

    register()
    from fairseq_ext.decoding import bundling
    from fairseq_ext.plugin.patches.commands import one_message

    checkpoint = in_run(args.model)
    search = {name: one for name in OF_A_MODEL if (one := getattr(args, name)) is not None}
    with one_message():
        written = bundling.write(
            checkpoint,
            args.data or data_of(checkpoint),
            args.output,
            numbers=args.numbers,
            engine=args.engine,
            search=search,
            about=args.about,
            licence=args.licence,
        )
    size = sum(path.stat().st_size for path in args.output.iterdir())
    print(
        f"{args.output}: {written.architecture}, {written.src} to {written.tgt}, "
        f"{written.numbers}, {size:,} bytes"
    )
    return 0
