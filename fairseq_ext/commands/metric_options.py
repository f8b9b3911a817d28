"""Arguments of neural metrics: of ``score``, ``compare`` and, as a utility, ``mbr``."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairseq_ext.utils.errors import ConfigError

if TYPE_CHECKING:
    from fairseq_ext.text.generated import Undoing


def add_metrics(parser: argparse.ArgumentParser) -> None:
    """Add ``--metric``, ``--source`` and those of the metric's process."""
    option = parser.add_argument_group(
        "neural metrics",
        "Of their own libraries, in a Python of their own. Load only models that you trust: they "
        "are pickles, which may run any code there.",
    ).add_argument
    option(
        "--metric",
        action="append",
        default=[],
        metavar="comet:MODEL",
        help="COMET too, with a model's folder, its checkpoint, or a name on the Hugging Face Hub "
        "such as Unbabel/wmt22-comet-da; repeat for more",
    )
    option(
        "--source",
        type=Path,
        metavar="FILE",
        help="source text, which the metric uses (that of sacrebleu's test set; else the S "
        "lines of fairseq-generate)",
    )
    add_process(option)


def add_tokenizer(parser: argparse.ArgumentParser) -> None:
    """Add ``--tokenize``."""
    parser.add_argument(
        "--tokenize",
        metavar="NAME",
        help="sacrebleu's tokenizer for BLEU: 13a, zh, char, ja-mecab, spm, flores200 ... "
        "(default: that of the target language, which is known from the run, from -l SRC-TGT, "
        "--detokenize or the ending of the reference's name)",
    )


def chosen_tokenizer(
    args: argparse.Namespace,
    undoing: Iterable[Undoing],
    references: Sequence[str],
    path: Path | None = None,
) -> str:
    """Choose the tokenizer of BLEU by option, language or text.

    Args:
        args: with ``--tokenize``.
        undoing: how translations become text, with their language where it is known.
        references: text, or other text of the target language.
        path: of the reference.
    """
    from fairseq_ext.evaluation.tokenizers import choose_tokenizer

    pair = getattr(args, "language_pair", None)
    languages = [pair and pair.partition("-")[2], args.detokenize]
    languages += [undo.made.tgt for undo in undoing]
    languages.append(path and path.suffix.removeprefix("."))
    return choose_tokenizer(args.tokenize, languages, references)


def add_process(option: Any) -> None:
    """Add ``--metric-python`` and ``--metric-batch-size``.

    Args:
        option: ``add_argument`` of a parser or group.
    """
    option(
        "--metric-python",
        metavar="PYTHON",
        help="the Python that has the metric's library, such as comet_env/bin/python (that of the "
        "variable FAIRSEQ_EXT_METRIC_PYTHON; else this one)",
    )
    option(
        "--metric-batch-size",
        type=int,
        metavar="N",
        help="sentences that the metric reads together (16)",
    )


def process(args: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of a :class:`~fairseq_ext.evaluation.neural.NeuralMetric` process."""
    settings = {"python": args.metric_python, "batch_size": args.metric_batch_size}
    return {name: value for name, value in settings.items() if value is not None}


def refuse_process(args: argparse.Namespace, needs: str) -> None:
    """Refuse the options of the process where there is no metric.

    Raises:
        ConfigError: one is there.
    """
    for name in ("metric_python", "metric_batch_size"):
        if getattr(args, name) is not None:
            raise ConfigError(
                f"`--{name.replace('_', '-')}` goes with `{needs}`, which is missing."
            )


def chosen_source(args: argparse.Namespace) -> Path | None:
    """The source text that ``--source`` or ``--ref`` names; None for the S lines.

    Raises:
        ConfigError: no ``--metric`` uses it.
        DataError: a test set that is not available.
    """
    if not args.metric:
        refuse_process(args, "--metric")
        if args.source is not None:
            raise ConfigError("`--source` goes with `--metric`, which is missing.")
        return None
    from fairseq_ext.evaluation import test_sets

    return args.source or test_sets.source(args.ref, args.language_pair)
