"""``fairseq-ext push``: put a bundle on the Hugging Face Hub."""

from __future__ import annotations

import argparse
from pathlib import Path

from fairseq_ext.commands import options


def add(commands: options.Subparsers) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "push",
        help="put a bundle onto the Hugging Face Hub",
        description="Put a bundle onto the Hugging Face Hub in one commit, which also deletes "
        "files that only the previous bundle has. Log in first, with "
        "`hf auth login` or HF_TOKEN. Then `--path ORG/NAME@COMMIT` translates with it anywhere.",
    )
    option = parser.add_argument
    option("bundle", type=Path, metavar="BUNDLE", help="output of `fairseq-ext bundle`")
    option("name", metavar="ORG/NAME", help="name on the Hub; created if it does not exist")
    option("--private", action="store_true", help="hide a new repository from others")
    option("--message", metavar="TEXT", help="commit message (default: languages and architecture)")
    parser.set_defaults(run=_push)


def _push(args: argparse.Namespace) -> int:
    from fairseq_ext.model import hub

    commit = hub.push(args.bundle, args.name, private=args.private, message=args.message)
    print(f"{args.name}@{commit}")
    return 0
