"""The command ``fairseq-ext``, whose subcommands prepare text, and use and evaluate models.

Training is left to fairseq's own commands. A subcommand, a module of :mod:`fairseq_ext.commands`,
imports other code only when it runs. So ``--help`` is instant, and ``doctor`` runs even if torch or
fairseq is broken.
"""

import gc
import io
import logging
import os
import sys
from collections.abc import Sequence

from fairseq_ext import commands
from fairseq_ext.commands import options
from fairseq_ext.utils import error_messages, files
from fairseq_ext.utils.parsing import Parser
from fairseq_ext.version import __version__

DESCRIPTION = "Prepare text, use and evaluate models, and package them, around fairseq's commands."


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a subcommand, and exit with its status.

    Print an error that a user can cause as one message; the status is then 1. Raise other errors.
    """
    if "_ARGCOMPLETE" in os.environ:  # the shell asks how to complete the words typed so far
        import argcomplete

        argcomplete.autocomplete(build_parser())
    if None in (sys.stdin, sys.stdout, sys.stderr):  # closed by the caller, as old daemons do
        sys.exit(
            "fairseq-ext: error: a standard stream is closed; connect it to /dev/null instead."
        )
    # Importing torch and fairseq makes 400,000 objects that stay. With Python's own thresholds the
    # collector of garbage would go through them again and again, for a quarter of the time.
    gc.set_threshold(100_000, 20, 100)
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        # A terminal's encoding may lack the arrows in our tables, or characters in files' names.
        sys.stdout.reconfigure(errors="backslashreplace")
    logging.basicConfig(level=logging.WARNING)  # the import of fairseq would choose DEBUG
    words = _as_options(sys.argv[1:] if arguments is None else [*arguments])
    args = build_parser(only=words[0] if words else None).parse_args(words)
    try:
        options.check_paths(args)
        with files.cleaned_up():
            status = args.run(args)
        sys.stdout.flush()
    except BrokenPipeError:  # the program that reads the output has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 1
    except (Exception, KeyboardInterrupt) as error:
        status = error_messages.report(error)
        if status is None:
            raise
    sys.exit(status or 0)


def _as_options(arguments: Sequence[str]) -> Sequence[str]:
    """Turn ``help COMMAND`` into ``COMMAND --help``, and ``version`` into ``--version``."""
    if arguments[:1] == ["help"]:
        return [*arguments[1:], "--help"]
    return ["--version"] if arguments[:1] == ["version"] else arguments


def build_parser(only: str | None = None) -> Parser:
    """Build the parser of ``fairseq-ext``, with the subcommand ``only`` or else with all."""
    parser = Parser(
        prog="fairseq-ext",
        usage="%(prog)s [-h] [--version] COMMAND ...",
        description=DESCRIPTION,
        epilog="`fairseq-ext help COMMAND` shows the options of a command, with an example.",
    )
    parser.add_argument("--version", action="version", version=f"fairseq-ext {__version__}")
    parser.set_defaults(run=lambda _: parser.print_help())
    commands.add_all(parser, only)
    return parser
