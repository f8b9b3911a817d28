"""``fairseq-ext subwords``: split a corpus into subwords, learnt from it or taken from a model."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from fairseq_ext.commands import options
from fairseq_ext.corpora.command_lines import SUBWORDS
from fairseq_ext.utils.errors import ConfigError

if TYPE_CHECKING:
    from fairseq_ext.text.pipeline import Pipeline

SIZE = 8000  # merges or pieces


def add(commands: options.Subparsers) -> None:
    parser = commands.add_parser(
        "subwords",
        help="learn subwords from a corpus, and split it into subwords",
        description="Learn one vocabulary of subwords for both languages from TEXT/train, and "
        "write every file of TEXT as subwords, with text.json, which tells the other commands how "
        "the subwords were made. With --like, prepare raw text with the steps and subwords of a "
        "model instead.",
    )
    option = parser.add_argument
    option("text", type=Path, metavar="TEXT", help="folder with train.SRC, train.TGT and others")
    option("--src", required=True, metavar="LANG", help="source language, the ending of its files")
    option("--tgt", required=True, metavar="LANG", help="target language")
    option(
        "--kind",
        choices=SUBWORDS,
        help="kind of subwords; bpe is subword-nmt's (bpe)",
    )
    option(
        "--size",
        type=int,
        metavar="N",
        help=f"number of merges for bpe, or of pieces for other kinds ({SIZE}); not for none",
    )
    option(
        "--like",
        type=Path,
        metavar="MODEL",
        help="model whose steps and subwords to use, to train it further: a bundle, the folder of "
        "a run, or a published model",
    )
    option("-o", "--output", type=Path, required=True, metavar="DIR", help="folder to write")
    parser.set_defaults(makes_folder=True, run=_subwords)


def _subwords(args: argparse.Namespace) -> None:
    from fairseq_ext.text import corpus

    if args.like is None:
        size = SIZE if args.size is None else args.size
        counts = corpus.split_into_subwords(
            args.text, args.output, args.src, args.tgt, kind=args.kind or "bpe", size=size
        )
    else:
        for option, value in (("--kind", args.kind), ("--size", args.size)):
            if value is not None:
                raise ConfigError(f"`{option}` does not go with `--like`; the model sets it.")
        counts = corpus.split_like(args.text, args.output, _steps_of(args.like, args.src, args.tgt))
    for name, count in counts.items():
        print(f"{name}  {count:,} lines")


def _steps_of(model: Path, src: str, tgt: str) -> Pipeline:
    """Return a model's steps between text and tokens."""
    from fairseq_ext.checkpoints import bundle
    from fairseq_ext.decoding.loading import models_of
    from fairseq_ext.text import pipeline

    path = models_of(model, src, tgt)[0]
    saved = pipeline.find([bundle.home(path)])
    if saved is None:
        raise ConfigError(f"{model} has no text.json, which says how to make tokens.")
    steps = saved.towards(src, tgt)
    if steps is None:
        raise ConfigError(
            f"`--src` and `--tgt` must be {saved.src} and {saved.tgt} for {model}, but are {src} "
            f"and {tgt}."
        )
    return steps
