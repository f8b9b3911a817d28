"""``fairseq-ext score``: compute BLEU and chrF of translations."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fairseq_ext.commands import evaluation_options, options
from fairseq_ext.commands.evaluation_options import (
    MetricOptions,
    ReferenceOptions,
    TokenizerOptions,
    UndoingOptions,
)
from fairseq_ext.commands.options import Subparsers
from fairseq_ext.utils.errors import ConfigError
from fairseq_ext.utils.option_fields import add_options, from_args, option

if TYPE_CHECKING:
    from fairseq_ext.evaluation.score import Score
    from fairseq_ext.text.generated import Undoing


@dataclass(frozen=True)
class Request:
    """The options of a call of ``score``, one field each."""

    reference: ReferenceOptions
    metrics: MetricOptions
    tokenizer: TokenizerOptions
    texts: UndoingOptions
    hyp: Path | None = None
    generated: Sequence[Path] | None = None
    tokenized_ref: Path | None = option(
        None,
        "reference tokens without subword pieces, for tokenized BLEU (default with --generated: "
        "its T lines)",
        metavar="FILE",
    )
    tokenized_hyp: Path | None = option(None, "tokens of --hyp, for tokenized BLEU", metavar="FILE")
    split_compounds: bool = option(
        False,
        "also compute tokenized BLEU with hyphenated compounds split, which papers report only "
        "for WMT14 English-German; needs --tokenized-ref",
    )
    json: Path | None = None

    def check(self) -> None:
        """Refuse an option that another one makes useless.

        Raises:
            ConfigError: the message names the first.
        """
        if self.generated and self.tokenized_hyp:
            raise ConfigError("`--tokenized-hyp` goes with `--hyp`; `--generated` has the tokens.")
        if self.hyp and self.texts.detokenize:
            raise ConfigError(
                "`--detokenize` goes with `--generated`; `--hyp` is detokenized text."
            )
        if self.hyp and self.texts.keep_tokens:
            raise ConfigError(
                "`--keep-tokens` goes with `--generated`; `--hyp` is scored as it is."
            )
        if self.hyp and (self.tokenized_ref is None) != (self.tokenized_hyp is None):
            raise ConfigError("Give both `--tokenized-ref` and `--tokenized-hyp`, or neither.")
        if self.split_compounds and self.tokenized_ref is None:
            raise ConfigError("`--split-compounds` compares tokens; give `--tokenized-ref` too.")


def add(commands: Subparsers) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "score",
        help="compute BLEU, chrF and COMET, with signatures",
        description="Score detokenized text or fairseq-generate's output against a reference.",
    )
    add_options(parser, ReferenceOptions)
    translations = parser.add_mutually_exclusive_group(required=True)
    translations.add_argument(
        "--hyp", type=Path, metavar="FILE", help="translations as detokenized text"
    )
    translations.add_argument(
        "--generated",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="output of fairseq-generate; with --num-shards, the outputs of all shards",
    )
    add_options(parser, Request)
    add_options(parser, TokenizerOptions)
    evaluation_options.add_metrics(parser)
    evaluation_options.add_undoing(parser)
    options.add_json(parser, "the scores")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    return print_scores(from_args(Request, args))


def print_scores(request: Request) -> int:
    """Score the translations of a request, and return the exit status.

    Raises:
        FairseqExtError: files or options cannot be used.
    """
    request.check()
    from fairseq_ext.evaluation import score

    reference = request.reference.path()
    source = request.metrics.source_path(request.reference)
    undoing = request.texts.undoing(request.generated) if request.generated else None
    undoings = [undoing] if undoing is not None else []
    references = score.plain_lines(reference)
    tokenizer = request.tokenizer.choose(undoings, references, reference)
    settings = (tokenizer, request.split_compounds, request.metrics.of_text)
    if undoing is not None:
        paths = (request.generated, reference, request.tokenized_ref)
        scores = score.score_generated(*paths, undoing, *settings)
    else:
        paths = (reference, request.hyp, request.tokenized_ref, request.tokenized_hyp)
        scores = score.score_files(*paths, *settings)
    segments = {}
    if request.metrics.neural:
        segments = _neural_scores(request, reference, source, undoing)
    scores += [neural_score for neural_score, _ in segments.values()]
    report = {"scores": [entry.as_dict() for entry in scores]}
    if segments:
        report["segments"] = {label: of_each for label, (_, of_each) in segments.items()}
    options.write_json(request.json, report)
    print(score.as_table(scores))
    return 0


def _neural_scores(
    request: Request, reference: Path, source: Path | None, undoing: Undoing | None
) -> dict[str, tuple[Score, list[float]]]:
    """Compute by metric the score of the text, and the scores of its segments."""
    from fairseq_ext.evaluation import neural
    from fairseq_ext.evaluation.segments import read_segments

    texts = read_segments(
        reference,
        hypothesis=request.hyp,
        generated=request.generated or (),
        undoing=undoing,
        source=source,
    )
    results = {}
    with neural.opened(request.metrics.neural, **request.metrics.process.settings()) as metrics:
        for label, metric in metrics.items():
            scores = metric.segments(*texts)
            results[label] = (neural.score(label, scores, metric.signature), scores)
    return results
