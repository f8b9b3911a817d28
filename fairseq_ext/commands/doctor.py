"""``fairseq-ext doctor``: does this installation work, and what does it change in fairseq?"""

from __future__ import annotations

import argparse

from fairseq_ext.commands import options
from fairseq_ext.commands.options import Subparsers


def add(commands: Subparsers) -> None:
    """Add the subcommand."""
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
