"""``fairseq-ext subwords``: learn subwords from a corpus and split it into them."""

from __future__ import annotations

import argparse
from pathlib import Path

from fairseq_ext.commands.options import Subparsers
from fairseq_ext.corpora.command_lines import SUBWORDS


def add(commands: Subparsers) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "subwords",
        help="learn subwords from a corpus and split it into them",
        description="Learn one vocabulary of subwords for both languages from TEXT/train, and "
        "write every file of TEXT as subwords, with text.json, which tells the other commands how "
        "they were made.",
    )
    option = parser.add_argument
    option("text", type=Path, metavar="TEXT", help="folder with train.SRC, train.TGT and others")
    option("--src", required=True, metavar="LANG", help="source language, the ending of its files")
    option("--tgt", required=True, metavar="LANG", help="target language")
    option(
        "--kind",
        choices=SUBWORDS,
        default="bpe",
        help="bpe is subword-nmt's (%(default)s)",
    )
    option(
        "--size",
        type=int,
        default=8000,
        metavar="N",
        help="merges of bpe, pieces of the other kinds (%(default)s); none has no size",
    )
    option("-o", "--output", type=Path, required=True, metavar="DIR", help="folder to write")
    parser.set_defaults(makes_folder=True, run=_subwords)


def _subwords(args: argparse.Namespace) -> int:
    from fairseq_ext.text import corpus

    counts = corpus.split_into_subwords(
        args.text, args.output, args.src, args.tgt, kind=args.kind, size=args.size
    )
    for name, count in counts.items():
        print(f"{name}  {count:,} lines")
    return 0
