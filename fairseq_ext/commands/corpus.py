"""Subcommands that make a corpus: ``corpus`` from many sources, ``prepare`` from your own text."""

from fairseq_ext.commands import options
from fairseq_ext.corpora.catalogue import CORPORA
from fairseq_ext.corpora.command_lines import OFFICIAL, OTHERS, PREPARE
from fairseq_ext.utils.option_fields import add_options


def add(commands: options.Subparsers) -> None:
    parser = commands.add_parser(
        "corpus",
        help="make a corpus from the literature, Tatoeba, or pairs of sentences",
        description="Make a corpus for fairseq-preprocess. `corpus NAME --help` lists the options "
        "of a corpus.",
    )
    names = parser.add_subparsers(required=True, metavar="NAME", title="corpora", dest="corpus")
    first, *aliases = sorted(CORPORA)
    listed = ", ".join(f"{name} ({CORPORA[name].src} to {CORPORA[name].tgt})" for name in CORPORA)
    subparser = names.add_parser(
        first,
        aliases=aliases,
        help=OFFICIAL.summary,
        description=f"Corpora of the literature, from their official archives: {listed}.",
    )
    add_options(subparser, OFFICIAL.options)
    subparser.set_defaults(run=OFFICIAL.run)
    for name, command in OTHERS.items():
        description = f"{name}: {command.summary}."
        subparser = names.add_parser(name, help=command.summary, description=description)
        add_options(subparser, command.options)
        subparser.set_defaults(run=command.run)


def add_prepare(commands: options.Subparsers) -> None:
    parser = commands.add_parser(
        "prepare",
        help="check your own text, and copy it as text or tokens, with text.json",
        description="Check your own corpus: train, valid and test, each with the languages as "
        "endings. Copy it, as Moses tokens with --tokenize, and add text.json, which tells the "
        "other commands how the text was prepared. `fairseq-ext subwords` comes next.",
    )
    add_options(parser, PREPARE.options)
    parser.set_defaults(run=PREPARE.run)
