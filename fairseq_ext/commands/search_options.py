"""Options of a search; their names, types and defaults are those of :class:`Search`."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Any

from fairseq_ext.decoding.search import Search

HELP = {
    "beam": "beam size",
    "nbest": "translations of a line",
    "lenpen": "length penalty: scores are divided by length to this power",
    "gnmt_lenpen": "GNMT's length penalty instead, with this α; 0: off",
    "max_len_a": "at most this times the source tokens, plus --max-len-b, are written",
    "max_len_b": "see --max-len-a",
    "max_tokens": "source tokens in a batch",
}
OF_A_MODEL = ("beam", "lenpen", "max_len_a", "max_len_b")
"""Options that a model may have defaults for."""


def add(group: Any, names: Iterable[str], **other_help: str) -> None:
    """Add options, which are None where they are not given.

    Args:
        group: a parser, or a group of its options.
        names: of :data:`HELP`.
        other_help: help of an option instead of that in :data:`HELP`.
    """
    for name in names:
        add_value(group, name, getattr(Search, name), other_help.get(name, HELP[name]))


def add_value(group: Any, name: str, default: int | float | str, text: str) -> None:
    """Add an option, None where it is not given, with the type of its default."""
    metavar = name[0].upper() if isinstance(default, str) else "N"
    group.add_argument(
        f"--{name.replace('_', '-')}",
        type=type(default),
        metavar=metavar,
        help=f"{text} ({default})",
    )


def given(args: argparse.Namespace, names: Iterable[str] = OF_A_MODEL) -> dict[str, Any]:
    """The options that are given."""
    return {name: value for name in names if (value := getattr(args, name)) is not None}
