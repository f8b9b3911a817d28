"""``fairseq-ext hypotheses``: extract the translations from fairseq-generate's output."""

import argparse

from fairseq_ext.commands import options
from fairseq_ext.commands.evaluation_options import UndoingOptions, add_undoing
from fairseq_ext.utils.option_fields import from_args


def add(commands: options.Subparsers) -> None:
    parser = commands.add_parser(
        "hypotheses",
        help="extract the translations from fairseq-generate's output, in corpus order",
        description="Write the translation of each sentence of the corpus on a line, in corpus "
        "order; a missing sentence is an error.",
    )
    options.add_generated(parser)
    add_undoing(parser, pieces=True)
    parser.add_argument(
        "--expected", type=int, metavar="N", help="number of sentences that the corpus must have"
    )
    options.add_output(parser, "FILE", "file for the translations")
    parser.set_defaults(run=_hypotheses)


def _hypotheses(args: argparse.Namespace) -> None:
    from fairseq_ext.evaluation import outputs
    from fairseq_ext.utils import files

    sentences = outputs.read_generated(args.generated, args.expected)
    undoing = from_args(UndoingOptions, args).undoing(args.generated, "none")
    lines = undoing.text(undoing.words(outputs.best_hypotheses(sentences)))
    with files.atomic_write(args.output) as file:
        file.writelines(line + "\n" for line in lines)
    print(f"{len(lines)} translations in {args.output}")
