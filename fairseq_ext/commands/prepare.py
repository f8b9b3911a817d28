"""``fairseq-ext prepare``: check a user's own text and prepare it for training."""

from __future__ import annotations

from fairseq_ext.commands import options
from fairseq_ext.corpora.command_lines import PREPARE
from fairseq_ext.utils.option_fields import add_options


def add(commands: options.Subparsers) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "prepare",
        help="check your own text and copy it, tokenized if wanted, with text.json",
        description="Check your own corpus: train, valid and test, each with the languages as "
        "endings. Copy it, as Moses tokens if wanted, and add text.json, which tells the other "
        "commands how it was made. `fairseq-ext subwords` comes next.",
    )
    add_options(parser, PREPARE.options)
    parser.set_defaults(run=PREPARE.run)
