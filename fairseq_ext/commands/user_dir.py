"""``fairseq-ext user-dir``: print the folder to give to fairseq's ``--user-dir``."""

from __future__ import annotations

import argparse

from fairseq_ext.base.wings import USER_DIR
from fairseq_ext.commands import options


def add(commands: options.Subparsers) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "user-dir",
        help="print the folder to give to fairseq's --user-dir",
        description='Usage: fairseq-train … --user-dir "$(fairseq-ext user-dir)"',
    )
    parser.set_defaults(run=_user_dir)


def _user_dir(_: argparse.Namespace) -> int:
    print(USER_DIR)
    return 0
