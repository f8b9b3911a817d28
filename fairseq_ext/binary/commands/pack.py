"""``fairseq-ext pack``: a binary checkpoint as a file with one bit for each binary weight."""

from __future__ import annotations

import argparse
from pathlib import Path

from fairseq_ext.commands import options
from fairseq_ext.commands.options import Subparsers


def add(commands: Subparsers) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "pack",
        help="store a binarized model with one bit for each binary weight",
        description="Write a trained binary model as one safetensors file, from which "
        "fairseq-generate and `fairseq-ext translate` translate. Average checkpoints first.",
    )
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="of a binary stage")
    parser.add_argument(
        "--data",
        type=Path,
        required=True,
        metavar="DIR",
        help="folder of fairseq-preprocess with the dictionaries",
    )
    parser.add_argument(
        "--dtype",
        choices=("fp32", "fp16", "bf16"),
        default="fp32",
        help="of all numbers that are not binary (%(default)s)",
    )
    parser.add_argument(
        "--int8-embeddings",
        action="store_true",
        help="store embeddings and output projection in int8, and compute the output with it",
    )
    options.add_output(parser, "MODEL.safetensors", "the packed model")
    options.add_json(parser, "the sizes")
    parser.set_defaults(run=_pack)


def _pack(args: argparse.Namespace) -> int:
    import logging

    logging.basicConfig(level=logging.WARNING)  # importing fairseq would choose DEBUG
    from fairseq_ext import register

    register()
    from fairseq_ext.binary.packed import byte_counts, model_file, pack
    from fairseq_ext.plugin.patches.commands import one_message

    with one_message():
        packed = pack.pack_file(
            args.checkpoint, args.data, dtype=args.dtype, int8_embeddings=args.int8_embeddings
        )
        model_file.write(packed, args.output)
        report = byte_counts.count(args.output)
    options.write_json(args.json, report)
    print(byte_counts.as_table(report))
    return 0
