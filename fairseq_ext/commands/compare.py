"""``fairseq-ext compare``: several systems on one test set, in one table."""

from __future__ import annotations

import argparse
from pathlib import Path

from fairseq_ext.commands import metric_options, options
from fairseq_ext.commands.options import Subparsers
from fairseq_ext.commands.undoing_options import add_undoing, chosen_undoing
from fairseq_ext.utils import extras
from fairseq_ext.utils.files import require_file


def add(commands: Subparsers) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "compare",
        help="several systems on one test set: quality, significance, size, speed",
        description="Compare what fairseq-generate printed for one test set: BLEU and chrF with "
        "95% intervals, significance against a baseline, size and speed.",
    )
    parser.add_argument(
        "--system",
        action="append",
        required=True,
        metavar="NAME=GENERATED[,GENERATED...][,checkpoint=FILE][,log=FILE]",
        help="a system's name and its output of fairseq-generate, or several outputs, one of each "
        "run with a seed of its own; its checkpoint (size, updates) and the log of its training "
        "(parameters, speed) where they are at hand; repeat. "
        "NAME=text:FILE takes detokenized text instead, as of another program; NAME=table:FILE a "
        "column of a table of translations (OUT.tsv.gz of --output), table:FILE all of them",
    )
    options.add_reference(parser)
    parser.add_argument(
        "--baseline", metavar="NAME", help="the system to test the others against (the first)"
    )
    parser.add_argument(
        "--tokenized-ref",
        type=Path,
        metavar="FILE",
        help="reference tokens without subword pieces, for tokenized BLEU as well",
    )
    parser.add_argument(
        "--samples", type=int, default=1000, metavar="N", help="of the bootstrap (%(default)s)"
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="OUT",
        help="write OUT.md, OUT.csv, OUT.tex, OUT.json, the translations OUT.tsv.gz, "
        "the pictures OUT.png and OUT-differences.png (.svg if OUT ends so)",
    )
    parser.add_argument(
        "--pictures",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE",
        help="show these too in OUT.md, such as the learning curves of `plot curves`",
    )
    metric_options.add_tokenizer(parser)
    metric_options.add_metrics(parser)
    add_undoing(parser)
    options.add_json(parser, "the comparison")
    parser.set_defaults(
        run=_compare,
        endings=(*options.PICTURE, "-differences.png", ".md", ".csv", ".tex", ".tsv.gz"),
    )


def _compare(args: argparse.Namespace) -> int:
    extras.need("scipy")
    from fairseq_ext.evaluation import compare, compare_report, neural, plots, score

    if args.output is not None:
        extras.need("matplotlib")
        plots.stem(args.output)
    for path in args.pictures:
        require_file(path, "picture")
    systems = compare.parse_systems(args.system)
    reference, source = options.chosen_reference(args), metric_options.chosen_source(args)
    undoing = {
        system.name: chosen_undoing(args, system.generated)
        for system in systems
        if not system.plain
    }
    references = score.plain_lines(reference)
    tokenizer = metric_options.chosen_tokenizer(args, undoing.values(), references, reference)
    with neural.opened(args.metric, **metric_options.process(args)) as metrics:
        result = compare.compare(
            systems,
            reference,
            baseline=args.baseline,
            tokenized_reference=args.tokenized_ref,
            samples=args.samples,
            undoing=undoing,
            metrics=metrics,
            source=source,
            tokenizer=tokenizer,
        )
    try:
        print(compare_report.as_table(result), flush=True)  # before a full disk stops the rest
    finally:  # the reader of the table may have gone
        options.write_json(args.json, result.as_dict())
        written = compare_report.write(result, args.output, args.pictures) if args.output else []
    options.print_paths(written)
    return 0
