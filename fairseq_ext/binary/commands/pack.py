"""``fairseq-ext pack``: a checkpoint as one file, for fairseq in bits or for the engine."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from fairseq_ext.commands import options, search_options
from fairseq_ext.commands.options import Subparsers
from fairseq_ext.engine import NUMBERS
from fairseq_ext.utils.errors import ConfigError


def add(commands: Subparsers) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "pack",
        help="store a model in one file: a binarized one in bits, or any one for the engine",
        description="Write a trained binary model as one safetensors file, from which "
        "fairseq-generate and `fairseq-ext translate` translate. With --engine, write any model "
        "that the engine knows, with all that `fairseq-ext translate` needs to translate text. "
        "Average checkpoints first.",
    )
    parser.add_argument(
        "checkpoint",
        type=Path,
        metavar="CHECKPOINT",
        help="of a binary stage, any with --engine; or the folder of a run, or a bundle",
    )
    parser.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="folder with the dictionaries (the checkpoint's own, or that of its training)",
    )
    parser.add_argument(
        "--dtype",
        choices=("fp32", "fp16", "bf16"),
        help="number format of all weights that are not binary (fp32)",
    )
    parser.add_argument(
        "--int8-embeddings",
        action="store_true",
        help="store embeddings and output projection in int8, and compute the output with it",
    )
    parser.add_argument(
        "--engine",
        choices=NUMBERS,
        help="write a model for the engine instead, with weights in this number format",
    )
    search_options.add(
        parser.add_argument_group("default search options of a model for the engine"),
        search_options.OF_A_MODEL,
    )
    parser.add_argument(
        "--shortlist",
        type=Path,
        metavar="FILE",
        help="file of `fairseq-ext shortlist` that a model for the engine brings along",
    )
    options.add_output(parser, "MODEL.safetensors", "the packed model")
    options.add_json(parser, "the sizes")
    parser.set_defaults(run=_pack)


def _pack(args: argparse.Namespace) -> int:
    _check(args)
    from fairseq_ext import register

    register()
    from fairseq_ext.decoding.loading import data_of, in_run
    from fairseq_ext.utils.error_messages import one_message

    with one_message():
        args.checkpoint = in_run(args.checkpoint)
        args.data = args.data or data_of(args.checkpoint)
        report, table = _in_bits(args) if args.engine is None else _for_the_engine(args)
    options.write_json(args.json, report)
    print(table)
    return 0


def _check(args: argparse.Namespace) -> None:
    """Refuse options of the one kind of file with the other.

    Raises:
        ConfigError: the first of them.
    """
    given = [*search_options.specified(args, (*search_options.OF_A_MODEL, "shortlist"))]
    if args.engine is None and given:
        option = f"--{given[0].replace('_', '-')}"
        raise ConfigError(f"`{option}` goes with `--engine`, which is missing.")
    for option, found in (("--dtype", args.dtype), ("--int8-embeddings", args.int8_embeddings)):
        if args.engine is not None and found:
            raise ConfigError(f"`{option}` does not go with `--engine`, which names its numbers.")


def _in_bits(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Write a packed model; its sizes, as JSON and as a table."""
    from fairseq_ext.binary.packed import byte_counts, model_file, pack

    dtype = args.dtype or "fp32"
    packed = pack.pack_file(
        args.checkpoint, args.data, dtype=dtype, int8_embeddings=args.int8_embeddings
    )
    model_file.write(packed, args.output)
    report = byte_counts.count(args.output)
    return report, byte_counts.as_table(report)


def _for_the_engine(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Write a model for the engine; its sizes, as JSON and as a table."""
    from fairseq_ext.checkpoints import bundle
    from fairseq_ext.decoding import packing
    from fairseq_ext.engine import files, sizes

    search = bundle.read(args.checkpoint).search if bundle.is_bundle(args.checkpoint) else {}
    search |= search_options.specified(args)
    model = packing.pack_file(args.checkpoint, args.data, args.engine, search, args.shortlist)
    files.write(model, args.output)
    report = sizes.count(args.output)
    return report, sizes.as_table(report)
