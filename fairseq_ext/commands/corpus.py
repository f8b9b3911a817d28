"""``fairseq-ext corpus``: corpora of the literature, Tatoeba, pairs, translation files, CSV."""

from __future__ import annotations

import argparse

from fairseq_ext.commands.options import Subparsers
from fairseq_ext.corpora import command_lines
from fairseq_ext.corpora.catalogue import CORPORA
from fairseq_ext.utils import option_fields

OTHERS = {
    "tatoeba": ("tatoeba", "Spanish-English sentences that come with this package"),
    "pairs": ("split_pairs", "sentence pairs, split into train, valid and test without leaks"),
    "translations": (
        "translations",
        "pairs out of gettext, TMX, XLIFF, help pages and test sets of WMT",
    ),
    "contamination": ("contamination", "test sentences that are in the training text, or nearly"),
    "wmt14-csv": ("wmt14_csv", "WMT14 English-German from CSV files, in byte-level BPE"),
}
"""Names that are not in the catalogue: their command lines, and what they are."""


def add(commands: Subparsers) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "corpus",
        help="make a corpus: of the literature, Tatoeba, pairs of sentences or CSV",
        description="Make a corpus, ready for fairseq-preprocess. `corpus NAME --help` lists the "
        "options of each.",
    )
    names = parser.add_subparsers(required=True, metavar="NAME", title="corpora", dest="corpus")
    first, *aliases = sorted(CORPORA)
    listed = ", ".join(f"{name} ({CORPORA[name].src} to {CORPORA[name].tgt})" for name in CORPORA)
    subparser = names.add_parser(
        first,
        aliases=aliases,
        help="corpora of the literature, from their official archives as in their papers",
        description=f"Corpora of the literature, from their official archives: {listed}.",
    )
    option_fields.add_options(subparser, command_lines.OfficialOptions)
    subparser.set_defaults(run=_run, command_line="corpus")
    for name, (command_line, summary) in OTHERS.items():
        subparser = names.add_parser(name, help=summary, description=f"{name}: {summary}.")
        command_lines.COMMAND_LINES[command_line].add(subparser)
        subparser.set_defaults(run=_run, command_line=command_line)


def _run(args: argparse.Namespace) -> int:
    print(command_lines.COMMAND_LINES[args.command_line].run(args))
    return 0
