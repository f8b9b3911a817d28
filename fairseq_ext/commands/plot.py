"""``fairseq-ext plot``: draw pictures of runs, translations and checkpoints.

Pictures of a single architecture are declared in its folder: see :mod:`fairseq_ext.commands`.
"""

import argparse
import importlib
from pathlib import Path

from fairseq_ext.base import wings
from fairseq_ext.commands import options
from fairseq_ext.commands.evaluation_options import TokenizerOptions, UndoingOptions, add_undoing
from fairseq_ext.utils import extras
from fairseq_ext.utils.errors import ConfigError
from fairseq_ext.utils.option_fields import Once, add_options, from_args


def add(commands: options.Subparsers) -> None:
    parser = commands.add_parser(
        "plot",
        help="draw learning curves, attention, gates, or BLEU by length, as PNG or SVG",
        description="Draw a PNG, or an SVG if OUT ends in .svg; OUT.json has its numbers.",
        example="fairseq-ext plot curves --help",
    )
    pictures = parser.add_subparsers(required=True, metavar="PICTURE")
    for add_picture in (_add_curves, _add_alignment, _add_lengths):
        add_picture(pictures)
    for package, names in wings.declared("PICTURES"):
        for name in names:
            importlib.import_module(f"{package}.commands.{name}").add(pictures)


def _add_curves(pictures: options.Subparsers) -> None:
    parser = pictures.add_parser(
        "curves",
        help="loss, perplexity and BLEU over updates",
        description="Draw the learning curves of one or several runs.",
        example="fairseq-ext plot curves --log runs/gru --log muse=muse/train.log -o curves.png",
    )
    parser.add_argument(
        "--log",
        action="append",
        required=True,
        type=_named_log,
        metavar="[NAME=]RUN",
        help="folder of a run with train.log, or the run's --log-file or captured output; NAME is "
        "shown in the picture (default: the name of the folder, or of a log that is not called "
        "train.log); repeat to compare runs",
    )
    options.add_picture_output(parser)
    parser.set_defaults(run=_plot_curves)


def _named_log(text: str) -> str:
    """Turn ``[NAME=]RUN`` into ``NAME=FILE``; RUN is a log or the folder of a run.

    By default, NAME is the name of RUN or, if RUN is a file ``train.log``, of its folder. Raise
    ArgumentTypeError if the folder has no ``train.log``.
    """
    path = Path(text.partition("=")[2] or text)
    name = (path.parent if path.name == "train.log" else path).absolute().name
    file = path
    if path.is_dir():
        logs = (path / "train.log", path / "checkpoints" / "train.log")
        file = next(filter(Path.is_file, logs), path)
        if file == path:
            raise argparse.ArgumentTypeError(f"`{path}` has no `train.log`; name the log itself.")
    return f"{text.partition('=')[0] if '=' in text else name}={file}"


def _plot_curves(args: argparse.Namespace) -> None:
    extras.need("matplotlib")
    runs = options.named_values("--log", "NAME=FILE", args.log)
    from fairseq_ext.evaluation import plots, training_log

    curves = {name: training_log.read_log(path) for name, path in runs.items()}
    print(*plots.plot_curves(curves, args.output), sep="\n")


def _add_alignment(pictures: options.Subparsers) -> None:
    parser = pictures.add_parser(
        "alignment",
        help="attention of single sentences",
        description="Draw heat maps of attention: translation in rows, source in columns.",
        example="fairseq-ext plot alignment generated.txt --index 0 1 -o alignment.png",
    )
    options.add_generated(parser)
    parser.add_argument(
        "--index",
        type=int,
        action="extend",
        nargs="+",
        required=True,
        metavar="I",
        help="sentence numbers, counted from 0 in corpus order",
    )
    parser.add_argument(
        "--remove-bpe",
        action="store_true",
        help="merge subword pieces: sum their source columns, average their target rows",
    )
    options.add_picture_output(parser)
    parser.set_defaults(run=_plot_alignment)


def _plot_alignment(args: argparse.Namespace) -> None:
    extras.need("matplotlib")
    from fairseq_ext.evaluation import outputs, plots

    sentences = {sentence.index: sentence for sentence in outputs.read_generated(args.generated)}
    absent = [index for index in args.index if index not in sentences]
    if absent:
        raise ConfigError(
            f"`--index {absent[0]}`: GENERATED holds sentences 0 to {max(sentences)}."
        )
    alignments = [plots.alignment(sentences[i], merge_bpe=args.remove_bpe) for i in args.index]
    print(*plots.plot_alignments(alignments, args.output), sep="\n")


def _add_lengths(pictures: options.Subparsers) -> None:
    parser = pictures.add_parser(
        "lengths",
        help="BLEU by the length of the source",
        description="Draw BLEU by sentence length, for one or several systems. Lengths count "
        "source words, with subword pieces joined, or characters if the source has no spaces.",
        example="fairseq-ext plot lengths --system gru=a.txt --system muse=b.txt "
        "--ref test.en -o lengths.png",
    )
    parser.add_argument(
        "--system",
        action="append",
        required=True,
        metavar="NAME=GENERATED",
        help="name of a system, and its output of fairseq-generate; repeat to compare systems",
    )
    references = parser.add_mutually_exclusive_group(required=True)
    references.add_argument(
        "--ref",
        action=Once,
        type=Path,
        metavar="FILE",
        help="reference as detokenized text, for sacrebleu",
    )
    references.add_argument(
        "--tokenized-ref",
        action=Once,
        type=Path,
        metavar="FILE",
        help="reference tokens without subword pieces, for tokenized BLEU as papers report it",
    )
    add_undoing(parser)
    add_options(parser, TokenizerOptions)
    parser.add_argument(
        "--buckets",
        default="10,20,30,40,50",
        metavar="N,N…",
        help="greatest length in each bucket; one more bucket has all longer sentences (default: "
        "%(default)s)",
    )
    parser.add_argument(
        "--relative-to",
        metavar="NAME",
        help="draw differences from the BLEU of this system, to tell close lines apart",
    )
    options.add_picture_output(parser)
    parser.set_defaults(run=_plot_lengths)


def _plot_lengths(args: argparse.Namespace) -> None:
    extras.need("matplotlib")
    named = options.named_values("--system", "NAME=FILE", args.system)
    systems = {name: Path(path) for name, path in named.items()}
    if args.detokenize and args.tokenized_ref:
        raise ConfigError("`--detokenize` goes with `--ref`; `--tokenized-ref` compares tokens.")
    from fairseq_ext.evaluation import lengths, score, tables

    if args.relative_to not in (None, *systems):
        raise ConfigError(
            f"`--relative-to {args.relative_to}` must be one of the systems: {', '.join(systems)}."
        )
    texts = from_args(UndoingOptions, args)
    undoing = {name: texts.undoing([path]) for name, path in systems.items()}
    tokenizer = None
    if args.ref is not None:
        references = score.plain_lines(args.ref)
        choice = from_args(TokenizerOptions, args)
        tokenizer = choice.choose(undoing.values(), references, args.ref)
    elif args.tokenize is not None:
        raise ConfigError("`--tokenize` goes with `--ref`; `--tokenized-ref` has tokens already.")
    scores = lengths.score_by_length(
        systems,
        args.tokenized_ref or args.ref,
        lengths.parse_bounds(args.buckets),
        tokenizer=tokenizer,
        undoing=undoing,
    )
    print(*lengths.plot_lengths(scores, args.output, args.relative_to), sep="\n")
    print(tables.aligned(scores.rows()))
