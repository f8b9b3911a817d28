"""The subcommands of ``fairseq-ext``: one module each, listed here by purpose.

The module ``NAME.py`` of the subcommand NAME (``user_dir.py`` for ``user-dir``) has
``add(commands)``, which adds its parser and sets ``run``, a function of the parsed arguments that
returns the exit status. The module imports only argparse; the rest is imported when it runs.

A wing has its subcommands in its folder ``commands``, and lists them in ``COMMANDS`` of its
``__init__.py``, a dictionary like ``GROUPS``, and its pictures for ``plot`` in ``PICTURES``.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType

from fairseq_ext.base import wings
from fairseq_ext.commands.examples import EXAMPLES
from fairseq_ext.utils.parsing import Parser

GROUPS: dict[str, tuple[str, ...]] = {
    "installation": ("user_dir", "doctor"),
    "text": ("corpus", "prepare", "subwords", "binarize"),
    "translating": ("models", "translate", "serve", "demo", "hypotheses", "mbr", "shortlist"),
    "evaluation": ("score", "compare", "plot"),
    "models": ("average", "bundle", "trim", "describe", "export", "push"),
}
"""Headings of ``fairseq-ext --help``, and the modules of this folder below each."""


@dataclass(frozen=True)
class Command:
    """A subcommand."""

    group: str
    """The heading below which ``--help`` lists it."""
    module: str
    """Its module, such as ``fairseq_ext.commands.user_dir``."""

    @property
    def name(self) -> str:
        """The name that users type."""
        return self.module.rpartition(".")[2].replace("_", "-")

    def load(self) -> ModuleType:
        """Import the module of the subcommand."""
        return importlib.import_module(self.module)


def all_commands() -> list[Command]:
    """List all subcommands by group, in the order of ``--help``."""
    commands = [
        Command(group, f"{package}.{name}")
        for package, groups in _packages()
        for group, names in groups.items()
        for name in names
    ]
    order = list(dict.fromkeys(command.group for command in commands))
    return sorted(commands, key=lambda command: order.index(command.group))


def _packages() -> Iterator[tuple[str, dict[str, tuple[str, ...]]]]:
    """Yield each package that has subcommands, and its commands by heading of ``--help``."""
    yield __name__, GROUPS
    for package, groups in wings.declared("COMMANDS"):
        yield f"{package}.commands", groups


def add_all(parser: Parser, only: str | None = None) -> None:
    """Add every subcommand, listed in the parser's help below the heading of its group.

    Args:
        parser: of ``fairseq-ext``.
        only: name of the called subcommand; if it exists, no other is imported.
    """
    commands = all_commands()
    commands = [command for command in commands if command.name == only] or commands
    subparsers = parser.add_subparsers(
        prog=parser.prog,
        metavar="COMMAND",
        help=argparse.SUPPRESS,  # listed by group instead
    )
    for command in commands:
        command.load().add(subparsers)
    _add_examples(subparsers.choices)
    parser.list_by_group(subparsers, {command.name: command.group for command in commands})


def _add_examples(parsers: dict[str, Parser], prefix: str = "") -> None:
    """Set the examples of subcommands and of their subcommands; those of wings have their own."""
    for name, parser in parsers.items():
        parser.example = EXAMPLES.get(f"{prefix}{name}", parser.example)
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                _add_examples(action.choices, f"{name} ")
