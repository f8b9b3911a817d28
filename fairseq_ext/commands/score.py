"""``fairseq-ext score``: BLEU and chrF of translations."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from fairseq_ext.commands import metric_options, options
from fairseq_ext.commands.options import Subparsers
from fairseq_ext.commands.undoing_options import add_undoing, chosen_undoing
from fairseq_ext.utils.errors import ConfigError

if TYPE_CHECKING:
    from fairseq_ext.evaluation.score import Score
    from fairseq_ext.text.generated import Undoing


def add(commands: Subparsers) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "score",
        help="BLEU, chrF and COMET with signatures",
        description="Score detokenized text, or fairseq-generate's output against it.",
    )
    options.add_reference(parser)
    translations = parser.add_mutually_exclusive_group(required=True)
    translations.add_argument(
        "--hyp", type=Path, metavar="FILE", help="translations, detokenized text"
    )
    translations.add_argument(
        "--generated",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="output of fairseq-generate; of --num-shards, all shards",
    )
    parser.add_argument(
        "--tokenized-ref",
        type=Path,
        metavar="FILE",
        help="reference tokens without subword pieces, for tokenized BLEU (with --generated the "
        "T lines serve where this is not given)",
    )
    parser.add_argument(
        "--tokenized-hyp", type=Path, metavar="FILE", help="with --hyp: its tokens, likewise"
    )
    parser.add_argument(
        "--split-compounds",
        action="store_true",
        help="tokenized BLEU with hyphenated compounds split as well, as papers report it for "
        "WMT14 English-German alone; needs --tokenized-ref",
    )
    metric_options.add_tokenizer(parser)
    metric_options.add_metrics(parser)
    add_undoing(parser)
    options.add_json(parser, "the scores")
    parser.set_defaults(run=_score)


def _score(args: argparse.Namespace) -> int:
    if args.generated and args.tokenized_hyp:
        raise ConfigError("`--tokenized-hyp` goes with `--hyp`; `--generated` has the tokens.")
    if args.hyp and args.detokenize:
        raise ConfigError("`--detokenize` goes with `--generated`; `--hyp` is detokenized text.")
    if args.hyp and args.keep_tokens:
        raise ConfigError("`--keep-tokens` goes with `--generated`; `--hyp` is scored as it is.")
    if args.hyp and (args.tokenized_ref is None) != (args.tokenized_hyp is None):
        raise ConfigError("Give both `--tokenized-ref` and `--tokenized-hyp`, or neither.")
    if args.split_compounds and args.tokenized_ref is None:
        raise ConfigError("`--split-compounds` compares tokens; give `--tokenized-ref` too.")
    from fairseq_ext.evaluation import score

    reference, source = options.chosen_reference(args), metric_options.chosen_source(args)
    undoing = chosen_undoing(args, args.generated) if args.generated else None
    undoings = [undoing] if undoing is not None else []
    references = score.plain_lines(reference)
    tokenizer = metric_options.chosen_tokenizer(args, undoings, references, reference)
    if undoing is not None:
        paths = (args.generated, reference, args.tokenized_ref)
        scores = score.score_generated(*paths, undoing, tokenizer)
    else:
        paths = (reference, args.hyp, args.tokenized_ref, args.tokenized_hyp)
        scores = score.score_files(*paths, tokenizer)
    if args.split_compounds:
        scores.append(_compound_score(args, undoing))
    segments = _neural_scores(args, reference, source, undoing) if args.metric else {}
    scores += [neural_score for neural_score, _ in segments.values()]
    report = {"scores": [entry.as_dict() for entry in scores]}
    if segments:
        report["segments"] = {label: of_each for label, (_, of_each) in segments.items()}
    options.write_json(args.json, report)
    print(score.as_table(scores))
    return 0


def _neural_scores(
    args: argparse.Namespace, reference: Path, source: Path | None, undoing: Undoing | None
) -> dict[str, tuple[Score, list[float]]]:
    """By metric, the score of the text and those of its segments."""
    from fairseq_ext.evaluation import neural
    from fairseq_ext.evaluation.segments import read_segments

    texts = read_segments(
        reference,
        hypothesis=args.hyp,
        generated=args.generated or (),
        undoing=undoing,
        source=source,
    )
    results = {}
    with neural.opened(args.metric, **metric_options.process(args)) as metrics:
        for label, metric in metrics.items():
            scores = metric.segments(*texts)
            results[label] = (neural.score(label, scores, metric.signature), scores)
    return results


def _compound_score(args: argparse.Namespace, undoing: Undoing | None) -> Score:
    from fairseq_ext.evaluation import compounds, outputs

    if undoing is not None:
        tokens = undoing.words(outputs.best_hypotheses(outputs.read_generated(args.generated)))
    else:
        tokens = outputs.read_lines(args.tokenized_hyp)
    return compounds.compound_bleu(tokens, outputs.read_lines(args.tokenized_ref))
