"""``fairseq-ext bundle``: pack a trained model into one folder or one file."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from fairseq_ext.commands import options, search_options
from fairseq_ext.engine import NUMBERS
from fairseq_ext.utils.errors import ConfigError
from fairseq_ext.utils.option_fields import add_options

SIDES = {"src": "source", "tgt": "target"}


def add(commands: options.Subparsers) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "bundle",
        help="pack a trained model, with all that it needs, into one folder",
        description="Write weights, options, dictionaries, text steps and a model card into one "
        "folder or archive. A bundle can be used wherever a checkpoint can, and nothing in it is "
        "pickled. Average checkpoints first.",
    )
    option = parser.add_argument
    option(
        "model",
        type=Path,
        metavar="CHECKPOINT",
        help="checkpoint, folder of a run, published model, or a bundle, which is copied with its "
        "card, except for changes by options",
    )
    option(
        "--data",
        type=Path,
        metavar="DIR",
        help="folder with the dictionaries, written by fairseq-preprocess (default: that of the "
        "training)",
    )
    option("--src", metavar="LANG", help="source language, if the model has many")
    option("--tgt", metavar="LANG", help="target language, if the model has many")
    option(
        "--numbers",
        choices=(*NUMBERS, "bits", "bits-int8"),
        help="number format of the weights; bits: binary weights in one bit, ternary ones in 1.6, "
        "all others in fp32; bits-int8: also embeddings and output projection in int8 (default: "
        "fp32, or the format of the bundle)",
    )
    option(
        "--shortlist",
        type=Path,
        metavar="FILE",
        help="file of `fairseq-ext shortlist` to include (default: the bundle's own)",
    )
    option("--about", metavar="TEXT", help="text of the model card about model and data")
    option(
        "--licence",
        metavar="NAME",
        help="licence of the model (default: unknown, or that of the bundle)",
    )
    option(
        "--scores",
        type=Path,
        metavar="FILE",
        help="JSON of `fairseq-ext score` or `fairseq-ext compare`, for the model card",
    )
    option("--system", metavar="NAME", help="system whose scores to take, if that file has several")
    group = parser.add_argument_group("default search options")
    add_options(group, search_options.SearchOptions, search_options.OF_A_MODEL)
    options.add_output(
        parser, "OUT", "bundle to write: a folder, or an archive if named OUT.zip or OUT.tar.zst"
    )
    parser.set_defaults(run=_bundle, makes_folder=True)


def _bundle(args: argparse.Namespace) -> int:
    from fairseq_ext import register
    from fairseq_ext.checkpoints import bundle, layout, storage
    from fairseq_ext.decoding.loading import data_of, model_of

    bundle.require_kind(args.output)
    register()
    from fairseq_ext.evaluation.score import read_scores
    from fairseq_ext.model import write
    from fairseq_ext.model.card import Card
    from fairseq_ext.utils.error_messages import one_message

    if args.system is not None and args.scores is None:
        raise ConfigError("`--system` goes with `--scores`, which is missing.")
    scores = read_scores(args.scores, args.system) if args.scores else []
    checkpoint = model_of(args.model, args.src, args.tgt)
    search = search_options.specified(args)
    source_bundle = bundle.read(checkpoint) if bundle.is_bundle(checkpoint) else None
    task = layout.options(storage.peek(checkpoint), "task")
    for side in ("src", "tgt"):
        asked, trained = getattr(args, side), task.get(f"{SIDES[side]}_lang")
        if asked not in (None, trained):
            raise ConfigError(f"`--{side}` must be {trained} for {args.model}, but is {asked}.")
    changes = (args.data, args.numbers, args.shortlist, args.about, args.licence, scores, search)
    with one_message():
        if source_bundle and not any(changes):
            written = write.copy(source_bundle, args.output)
        else:
            numbers = args.numbers or (source_bundle.numbers if source_bundle else "fp32")
            card = write.card_of(source_bundle) if source_bundle else Card()
            if source_bundle and card.scores and source_bundle.numbers != numbers:
                card = replace(card, measured=card.measured or source_bundle.numbers)
            if scores:
                card = replace(card, scores=scores, measured=None)
            written = write.write(
                checkpoint,
                args.data or data_of(checkpoint),
                args.output,
                numbers=numbers,
                shortlist=args.shortlist,
                search={**(source_bundle.search if source_bundle else {}), **search},
                card=replace(
                    card, about=args.about or card.about, licence=args.licence or card.licence
                ),
            )
    parts = args.output.iterdir() if args.output.is_dir() else [args.output]
    size = sum(path.stat().st_size for path in parts)
    print(
        f"{args.output}: {written.architecture}, {written.src} to {written.tgt}, "
        f"{written.numbers}, {size:,} bytes"
    )
    return 0
