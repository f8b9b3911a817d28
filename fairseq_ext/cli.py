"""``fairseq-ext``: what is needed around fairseq's own commands, as thin subcommands.

The work is elsewhere, and is imported by the subcommand that needs it, so that ``--help`` is
instant and ``doctor`` runs where torch or fairseq is broken.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from fairseq_ext import files
from fairseq_ext.commands import MODULES, options
from fairseq_ext.commands.options import Subparsers
from fairseq_ext.errors import ConfigError, FairseqExtError
from fairseq_ext.parsing import Parser
from fairseq_ext.version import __version__

DESCRIPTION = "What is needed around fairseq's own commands."


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one subcommand; a user's error is one message on standard error and exit status 1."""
    args = build_parser().parse_args(arguments)
    try:
        status = args.run(args)
    except FairseqExtError as error:
        status = _fail(str(error))
    except ModuleNotFoundError as error:
        status = _fail(f"`{error.name}` is not installed; `fairseq-ext doctor` says what to do.")
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


def build_parser() -> argparse.ArgumentParser:
    """The parser of ``fairseq-ext`` with every subcommand."""
    parser = Parser(prog="fairseq-ext", description=DESCRIPTION)
    parser.add_argument("--version", action="version", version=f"fairseq-ext {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", title="commands")
    for add in (_add_user_dir, _add_doctor, _add_average, _add_hypotheses):
        add(commands)
    for name in MODULES:
        importlib.import_module(f"fairseq_ext.commands.{name}").add(commands)
    return parser


def _add_user_dir(commands: Subparsers) -> None:
    parser = commands.add_parser(
        "user-dir",
        help="print the folder to give to fairseq's --user-dir",
        description='Usage: fairseq-train … --user-dir "$(fairseq-ext user-dir)"',
    )
    parser.set_defaults(run=_user_dir)


def _user_dir(_: argparse.Namespace) -> int:
    print(Path(__file__).resolve().parent / "plugin" / "fairseq_ext_plugin")
    return 0


def _add_doctor(commands: Subparsers) -> None:
    parser = commands.add_parser(
        "doctor",
        help="check the installation and name the cure of each problem",
        description="One line per check; the exit status is 1 when something essential is wrong.",
    )
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="give the reason of each fix to fairseq"
    )
    parser.add_argument(
        "--patches",
        action="store_true",
        help="show instead, for each function of fairseq, what this plugin puts around it",
    )
    options.add_json(parser, "the checks, or the patches")
    parser.set_defaults(run=_doctor)


def _doctor(args: argparse.Namespace) -> int:
    from fairseq_ext import doctor

    if args.patches:
        from fairseq_ext.plugin import patches, report

        options.write_json(args.json, report.as_json(patches.PATCHES))
        print(report.as_text(patches.PATCHES))
        return 0
    checks = doctor.examine()
    passed = doctor.passed(checks)
    options.write_json(args.json, {"ok": passed, "checks": [check.as_dict() for check in checks]})
    print(doctor.as_table(checks, verbose=args.verbose))
    return 0 if passed else 1


def _add_average(commands: Subparsers) -> None:
    parser = commands.add_parser(
        "average",
        help="average the weights of checkpoints",
        description="Write the mean of several checkpoints' weights as one checkpoint.",
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--inputs", nargs="+", type=Path, metavar="FILE", help="checkpoints, oldest first"
    )
    source.add_argument("--dir", type=Path, help="the run's --save-dir; choose with one of:")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--last-epochs", type=int, metavar="N", help="last N of checkpointEPOCH.pt")
    which.add_argument(
        "--last-updates", type=int, metavar="N", help="last N of checkpoint_EPOCH_UPDATE.pt"
    )
    which.add_argument(
        "--best", type=int, metavar="N", help="best N of checkpoint.best_METRIC_VALUE.pt"
    )
    options.add_output(parser, "OUT.pt", "the averaged checkpoint, without optimizer state")
    parser.set_defaults(run=_average)


def _average(args: argparse.Namespace) -> int:
    choice = {
        name: getattr(args, name)
        for name in ("last_epochs", "last_updates", "best")
        if getattr(args, name) is not None
    }
    if (args.dir is not None) != bool(choice):
        raise ConfigError(
            "`--dir` needs one of `--last-epochs`, `--last-updates` and `--best`, and `--inputs` "
            "none of them."
        )
    from fairseq_ext.evaluation import average
    from fairseq_ext.plugin import patches

    patches.apply()  # allows the harmless classes in checkpoints of stock architectures
    paths = args.inputs
    for name, count in choice.items():
        paths = getattr(average, name)(args.dir, count)
    result = average.write_average(paths, args.output)
    for path in paths:
        print(path)
    print(f"averaged {len(paths)} checkpoints, {len(result['model'])} tensors, in {args.output}")
    return 0


def _add_hypotheses(commands: Subparsers) -> None:
    parser = commands.add_parser(
        "hypotheses",
        help="extract the translations from fairseq-generate's output, in corpus order",
        description="One line per sentence of the corpus, in its order; a hole is an error.",
    )
    options.add_generated(parser)
    parser.add_argument("--remove-bpe", action="store_true", help="join subword pieces (`@@ `)")
    parser.add_argument(
        "--detokenize", metavar="LANG", help="undo Moses tokenisation for this language, e.g. de"
    )
    parser.add_argument(
        "--expected", type=int, metavar="N", help="how many sentences the corpus has, to be checked"
    )
    options.add_output(parser, "FILE", "the translations")
    parser.set_defaults(run=_hypotheses)


def _hypotheses(args: argparse.Namespace) -> int:
    from fairseq_ext.evaluation import outputs

    sentences = outputs.read_generated(args.generated, args.expected)
    lines = outputs.best_hypotheses(sentences, bpe=args.remove_bpe, language=args.detokenize)
    with files.atomic_write(args.output) as file:
        file.writelines(line + "\n" for line in lines)
    print(f"{len(lines)} translations in {args.output}")
    return 0
