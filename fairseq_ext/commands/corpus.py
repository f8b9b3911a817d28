"""Subcommands that make training data: ``corpus``, ``prepare``, ``subwords`` and ``binarize``."""

import argparse
from pathlib import Path

from fairseq_ext.commands import options
from fairseq_ext.corpora import SPLITS
from fairseq_ext.corpora.catalogue import CORPORA
from fairseq_ext.corpora.command_lines import OFFICIAL, OTHERS, PREPARE, SUBWORDS
from fairseq_ext.utils.errors import ConfigError
from fairseq_ext.utils.option_fields import add_options, flag, specified

SIZE = 8000  # merges or pieces


def add(commands: options.Subparsers) -> None:
    parser = commands.add_parser(
        "corpus",
        help="make a corpus from the literature, Tatoeba, or pairs of sentences",
        description="Make a corpus for fairseq-preprocess. `corpus NAME --help` lists the options "
        "of a corpus.",
        example="fairseq-ext corpus pairs --help",
    )
    names = parser.add_subparsers(required=True, metavar="NAME", title="corpora", dest="corpus")
    first, *aliases = sorted(CORPORA)
    listed = ", ".join(f"{name} ({CORPORA[name].src} to {CORPORA[name].tgt})" for name in CORPORA)
    subparser = names.add_parser(
        first,
        aliases=aliases,
        help=OFFICIAL.summary,
        description=f"Corpora of the literature, from their official archives: {listed}.",
        example=OFFICIAL.example,
    )
    add_options(subparser, OFFICIAL.options)
    subparser.set_defaults(run=OFFICIAL.run)
    for name, command in OTHERS.items():
        description = f"{name}: {command.summary}."
        subparser = names.add_parser(
            name, help=command.summary, description=description, example=command.example
        )
        add_options(subparser, command.options)
        subparser.set_defaults(run=command.run)


def add_prepare(commands: options.Subparsers) -> None:
    parser = commands.add_parser(
        "prepare",
        help="check your own text, and copy it as text or tokens, with text.json",
        description="Check your own corpus: files train, valid and test, each in two languages, "
        "whose codes are the endings (train.de, train.en). Copy them (as Moses tokens with "
        "--tokenize), and add text.json, which tells the other commands how the text was prepared. "
        "`fairseq-ext subwords` comes next.",
        example=PREPARE.example,
    )
    add_options(parser, PREPARE.options)
    parser.set_defaults(run=PREPARE.run)


def _add_folders(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
    option("text", type=Path, metavar="TEXT", help="folder with train.SRC, train.TGT and others")
    option("--src", required=True, metavar="LANG", help="source language, the ending of its files")
    option("--tgt", required=True, metavar="LANG", help="target language")
    options.add_output(parser, "DIR", "folder to write")
    parser.set_defaults(makes_folder=True)


def add_subwords(commands: options.Subparsers) -> None:
    parser = commands.add_parser(
        "subwords",
        help="learn subwords from a corpus, and split it into subwords",
        description="Learn one vocabulary of subwords for both languages from TEXT/train, and "
        "write every file of TEXT as subwords, with text.json, which tells the other commands how "
        "the subwords were made. With --like, prepare raw text with the steps and subwords of a "
        "model instead.",
        example="fairseq-ext subwords prepared --src de --tgt en --size 8000 -o bpe",
    )
    _add_folders(parser)
    option = parser.add_argument
    option("--kind", choices=SUBWORDS, help="kind of subwords; bpe: those of subword-nmt (bpe)")
    option(
        "--size",
        type=int,
        metavar="N",
        help=f"number of merges for bpe, or of pieces for other kinds ({SIZE}); not with --kind "
        "none",
    )
    option(
        "--like",
        type=Path,
        metavar="MODEL",
        help="use the steps and subwords of this model, which you want to train further: a bundle, "
        "the folder of a run, or a published model",
    )
    parser.set_defaults(run=_subwords)


def _subwords(args: argparse.Namespace) -> None:
    from fairseq_ext.corpora import own_text
    from fairseq_ext.text.bleu_tokenizers import suggest_pieces

    if args.kind == "none" and args.size is not None:
        raise ConfigError(
            "`--size` does not go with `--kind none`, which makes no subwords; leave it out."
        )
    if args.like is None:
        size = SIZE if args.size is None else args.size
        counts = own_text.split_into_subwords(
            args.text, args.output, args.src, args.tgt, kind=args.kind or "bpe", size=size
        )
    else:
        for name in specified(args, ("kind", "size")):
            raise ConfigError(f"`{flag(name)}` does not go with `--like`; the model sets it.")
        from fairseq_ext.checkpoints import bundle
        from fairseq_ext.decoding.loading import models_of
        from fairseq_ext.text import pipeline

        model = models_of(args.like, args.src, args.tgt)[0]
        steps = pipeline.load_towards(bundle.home(model), args.src, args.tgt)
        if steps is None:
            raise ConfigError(f"{args.like} has no text.json, which says how to make tokens.")
        counts = own_text.split_like(args.text, args.output, steps)
    for name, count in counts.items():
        print(f"{name}  {count:,} lines")
    if args.like is None and args.kind in (None, "bpe"):  # bpe merges letters of a word
        for side in (args.src, args.tgt):
            if hint := suggest_pieces(side, args.text / f"{SPLITS[0]}.{side}"):
                print(hint)


def add_binarize(commands: options.Subparsers) -> None:
    parser = commands.add_parser(
        "binarize",
        help="binarize a large corpus in shards; fairseq-train reads one shard in each epoch",
        description="Run fairseq-preprocess on each shard of a tokenized corpus, with one "
        "dictionary for all, and print the data argument that makes fairseq-train open the next "
        "shard in each epoch. Several workers may share the folder, and a restarted worker "
        "continues with the missing shards.",
        example="fairseq-ext binarize bpe --src de --tgt en --shards 20 -o data-bin",
    )
    _add_folders(parser)
    option = parser.add_argument
    option("--shards", type=int, required=True, metavar="N", help="number of shards")
    option(
        "--flags",
        default="",
        metavar="WORDS",
        help="more flags for fairseq-preprocess, as in --flags='--joined-dictionary --workers 4'",
    )
    parser.set_defaults(run=_binarize)


def _binarize(args: argparse.Namespace) -> None:
    from fairseq_ext.data_folder import shards

    shard_set = shards.Shards(
        args.text, args.output, args.src, args.tgt, args.shards, tuple(args.flags.split())
    )
    shards.write(shard_set)
    print(":".join(map(str, shard_set.folders())))
