"""The subcommands of ``fairseq-ext``, listed here by purpose.

A subcommand has a module with its name (``scaling_fit.py`` for ``scaling-fit``). The module's
function ``add(commands)`` adds a parser, and sets the parser's default ``run``: a function that
takes the parsed arguments, and may return an exit status. So that ``--help`` is fast, only ``run``
imports more than argparse and the like.

``MODULES`` names the modules that several subcommands share. In such a module, the function
``add_NAME`` adds the subcommand NAME.

An architecture keeps its own subcommands in its folder ``commands``. The architecture's
``__init__.py`` lists them in ``COMMANDS``, a dict of the form ``{heading: subcommands}``, and its
pictures for ``plot`` in ``PICTURES``. The headings are those of ``GROUPS`` below.
"""

import argparse
import importlib
from itertools import groupby
from typing import NamedTuple

from fairseq_ext.base import wings
from fairseq_ext.utils.parsing import Parser

GROUPS: dict[str, tuple[str, ...]] = {
    "installation": ("user-dir", "doctor"),
    "text": ("corpus", "prepare", "subwords", "binarize"),
    "translating": ("models", "translate", "serve", "demo", "hypotheses", "mbr", "shortlist"),
    "evaluation": ("score", "compare", "plot"),
    "models": ("average", "bundle", "trim", "describe", "export", "push"),
}
"""Headings of ``fairseq-ext --help``, and the subcommands below each."""
MODULES = {
    **dict.fromkeys(("trim", "describe", "export", "push", "models"), "bundle"),
    **dict.fromkeys(("prepare", "subwords", "binarize"), "corpus"),
    "mbr": "hypotheses",
    "user-dir": "doctor",
}
"""The module of each subcommand that has no module of its own."""


class Command(NamedTuple):
    """A subcommand of ``fairseq-ext``, whose module is imported only when needed."""

    group: str  # the heading below which `--help` lists the subcommand
    name: str  # the name that users type
    module: str  # the full name of its module, such as ``fairseq_ext.commands.doctor``


def all_commands() -> list[Command]:
    """List all subcommands by group, in the order of ``--help``."""
    packages = [(__name__, GROUPS)]
    packages += [(f"{wing}.commands", groups) for wing, groups in wings.declared("COMMANDS")]
    return [
        Command(group, name, f"{package}.{MODULES.get(name, name).replace('-', '_')}")
        for group in GROUPS
        for package, groups in packages
        for name in groups.get(group, ())
    ]


def add_all(parser: Parser, only: str | None = None) -> None:
    """Add all subcommands to a parser, and list them by group in its ``--help``.

    If ``only`` is the name of a subcommand, add this subcommand alone.
    """
    commands = all_commands()
    commands = [command for command in commands if command.name == only] or commands
    subparsers = parser.add_subparsers(
        prog=parser.prog,
        metavar="COMMAND",
        help=argparse.SUPPRESS,  # listed by group instead
    )
    for command in commands:
        function = f"add_{command.name.replace('-', '_')}" if command.name in MODULES else "add"
        getattr(importlib.import_module(command.module), function)(subparsers)
    # argparse itself has a single heading for all subcommands.
    lines = zip(commands, subparsers._choices_actions, strict=True)
    for group, pairs in groupby(lines, key=lambda pair: pair[0].group):
        parser.add_argument_group(group)._group_actions += [line for _, line in pairs]
