"""``fairseq-ext average``: average the weights of several checkpoints into one checkpoint."""

import argparse
from pathlib import Path

from fairseq_ext.commands import options
from fairseq_ext.utils import files
from fairseq_ext.utils.errors import ConfigError
from fairseq_ext.utils.option_fields import specified


def add(commands: options.Subparsers) -> None:
    parser = commands.add_parser(
        "average",
        help="average the weights of checkpoints",
        description="Write the mean of several checkpoints' weights as one checkpoint.",
        example="fairseq-ext average --dir checkpoints --last-epochs 5 -o average.pt",
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--inputs",
        action="extend",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="checkpoints, oldest first",
    )
    source.add_argument(
        "--dir",
        type=Path,
        help="a run's --save-dir; one of the next three options chooses its files",
    )
    option = parser.add_mutually_exclusive_group().add_argument
    option("--last-epochs", type=int, metavar="N", help="last N files checkpointEPOCH.pt")
    option("--last-updates", type=int, metavar="N", help="last N files checkpoint_EPOCH_UPDATE.pt")
    option("--best", type=int, metavar="N", help="best N files checkpoint.best_METRIC_VALUE.pt")
    options.add_output(parser, "OUT.pt", "averaged checkpoint to write, without optimizer state")
    parser.set_defaults(run=_average)


def _average(args: argparse.Namespace) -> None:
    choice = specified(args, ("last_epochs", "last_updates", "best"))
    if (args.dir is not None) != bool(choice):
        raise ConfigError(
            "`--dir` needs one of `--last-epochs`, `--last-updates` and `--best`; `--inputs` goes "
            "with none of them."
        )
    from fairseq_ext.checkpoints import averaging, storage

    paths = averaging.select(args.dir, *choice.popitem()) if choice else args.inputs
    files.keep_inputs(paths, [args.output])
    result = averaging.average_checkpoints(paths)
    storage.save(result, args.output)
    for path in paths:
        print(path)
    checkpoints = "checkpoint" if len(paths) == 1 else "checkpoints"
    print(f"averaged {len(paths)} {checkpoints}, {len(result['model'])} tensors, in {args.output}")
