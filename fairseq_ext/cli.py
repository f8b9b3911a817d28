"""``fairseq-ext``: what is needed around fairseq's own commands, as thin subcommands.

The subcommands stand in :mod:`fairseq_ext.commands`. The work is elsewhere, and is imported by the
subcommand that needs it, so that ``--help`` is instant and ``doctor`` runs where torch or fairseq
is broken.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from fairseq_ext import commands, extras, files
from fairseq_ext.commands import options
from fairseq_ext.errors import FairseqExtError
from fairseq_ext.parsing import Parser
from fairseq_ext.version import __version__

DESCRIPTION = "What is needed around fairseq's own commands."


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one subcommand; a user's error is one message on standard error and exit status 1."""
    args = build_parser().parse_args(arguments)
    try:
        options.keep_inputs(args)
        options.require_folders(args)
        status = args.run(args)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 1
    except FairseqExtError as error:
        status = _fail(str(error))
    except ModuleNotFoundError as error:
        status = _fail(extras.missing(error.name or str(error)))
    except OSError as error:  # of a library, such as a font that matplotlib cannot open
        if error.errno not in files.FULL_DISK | files.TOO_MANY_FILES:
            raise
        status = _fail(files.explain(error))
    except KeyboardInterrupt:
        print("fairseq-ext: interrupted.", file=sys.stderr)
        status = 130
    sys.exit(status)


def _fail(message: str) -> int:
    print(f"fairseq-ext: error: {message}", file=sys.stderr)
    return 1


def build_parser() -> Parser:
    """The parser of ``fairseq-ext`` with every subcommand."""
    parser = Parser(
        prog="fairseq-ext",
        usage="%(prog)s [-h] [--version] COMMAND ...",
        description=DESCRIPTION,
        epilog="`fairseq-ext COMMAND --help` shows the options of a command.",
    )
    parser.add_argument("--version", action="version", version=f"fairseq-ext {__version__}")

    def show_help(_: argparse.Namespace) -> int:
        parser.print_help()
        return 0

    parser.set_defaults(run=show_help)
    commands.add_all(parser)
    return parser
