"""Report errors in a command line in one line, and suggest the nearest valid name."""

import argparse
import re
from collections.abc import Iterable
from typing import Any, NoReturn

from fairseq_ext.utils.errors import printable

FEW = 20  # most choices that a message lists in full
OTHER_NAMES = {
    "--lazy-load": "--dataset-impl lazy",
    "--raw-text": "--dataset-impl raw",
    "--output-format": "--dataset-impl",
    "--min-lr": "--stop-min-lr",
    **dict.fromkeys(("--src", "--tgt", "--language"), "--language-pair SRC-TGT"),
}
"""Options of fairseq in 2019 and 2020, or of other commands, with the options that replace them."""
REGISTRIES = ("--arch", "--task", "--criterion")  # fairseq's options for names that plugins add


class Parser(argparse.ArgumentParser):
    """An ``ArgumentParser`` with one-line errors, and an example command line in its help."""

    def __init__(self, *args: Any, example: str = "", **options: Any) -> None:
        super().__init__(*args, **options)
        self.example = example

    def format_help(self) -> str:
        """Return argparse's help, then the example on a single line."""
        help_text = super().format_help()
        return f"{help_text}\nexample:\n  {self.example}\n" if self.example else help_text

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parse arguments; exit with an error and a suggestion if some are unknown.

        The second result, argparse's list of unknown arguments, is always empty.
        """
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return parsed, unknown

    def error(self: argparse.ArgumentParser, message: str) -> NoReturn:
        """Print the message with the advice of :func:`advise` in one line; exit with status 2."""
        options = self._option_string_actions
        line = advise(message, options, self.prog, getattr(self, "example", ""))
        self.exit(2, f"{self.prog.partition(' ')[0]}: error: {printable(line)}\n")


def advise(message: str, options: Iterable[str], command: str, example: str = "") -> str:
    """Add to an error message of argparse a correction, an example, or where to find help.

    ``options`` are all options of ``command``, and ``example`` is a command line.
    """
    if choice := re.fullmatch(
        r"argument (\S+): invalid choice: (.*) \(choose from (.*)\)", message
    ):
        name, value, names = choice[1].partition("/")[0], choice[2].strip("'"), choice[3]
        names = [name.strip("'") for name in names.split(", ")]
        listed = f"one of the {len(names)} names that `--help` lists"
        if len(names) <= FEW:
            listed = f"one of {', '.join(names)}"
        advice = nearest(value, names)
        if name in REGISTRIES:
            advice += " The folder in `--user-dir` must register a name of your own."
        return f"`{name}` must be {listed}, but is `{value}`{advice}"
    if message.startswith("unrecognized arguments: "):
        words = [word.partition("=")[0] for word in message.split() if word.startswith("--")]
        candidates = set(options).difference(words)  # fairseq may refuse an option that it lists
        near = dict.fromkeys(match for word in words for match in near_names(word, candidates))
        if near:
            return f"{message}; did you mean {alternatives(near)}?"
        return f"{message}. `{command} --help` lists the options."
    return f"{message}. Example: `{example}`." if example else message


def nearest(name: str, names: Iterable[str]) -> str:
    """Return the end of a message: ``; did you mean …?``, or a full stop if no name is similar."""
    near = near_names(name, names)
    return f"; did you mean {alternatives(near)}?" if near else "."


def near_names(name: str, names: Iterable[str]) -> list[str]:
    """Return at most two of ``names`` that are similar to ``name``.

    If :data:`OTHER_NAMES` maps ``name`` to one of ``names``, return only this replacement.
    """
    import difflib

    ordered, other = sorted(names), OTHER_NAMES.get(name, "")
    if other.partition(" ")[0] in ordered:
        return [other]
    return difflib.get_close_matches(name, ordered, n=2, cutoff=0.75)


def alternatives(names: Iterable[str]) -> str:
    """Quote names, and join them with `or`."""
    return " or ".join(f"`{name}`" for name in names)
