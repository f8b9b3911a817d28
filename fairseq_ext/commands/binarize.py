"""``fairseq-ext binarize``: binarize a corpus of tokens in shards, one shard for each epoch."""

import argparse
from pathlib import Path

from fairseq_ext.commands import options


def add(commands: options.Subparsers) -> None:
    parser = commands.add_parser(
        "binarize",
        help="binarize a large corpus in shards; fairseq-train reads one shard in each epoch",
        description="Run fairseq-preprocess on each shard of a tokenized corpus, with one "
        "dictionary for all, and print the data argument that makes fairseq-train open the next "
        "shard in each epoch. Several workers may share the folder, and a restarted worker "
        "continues with the missing shards.",
    )
    option = parser.add_argument
    option("text", type=Path, metavar="TEXT", help="folder with train.SRC, train.TGT and others")
    option("--src", required=True, metavar="LANG", help="source language, the ending of its files")
    option("--tgt", required=True, metavar="LANG", help="target language")
    option("--shards", type=int, required=True, metavar="N", help="number of shards")
    option("-o", "--output", type=Path, required=True, metavar="DIR", help="folder to write")
    option(
        "--flags",
        default="",
        metavar="WORDS",
        help="more flags for fairseq-preprocess, as in --flags='--joined-dictionary --workers 4'",
    )
    parser.set_defaults(run=_run, makes_folder=True)


def _run(args: argparse.Namespace) -> None:
    from fairseq_ext.data_folder import shards

    shard_set = shards.Shards(
        args.text, args.output, args.src, args.tgt, args.shards, tuple(args.flags.split())
    )
    shards.write(shard_set)
    print(":".join(map(str, shard_set.folders())))
