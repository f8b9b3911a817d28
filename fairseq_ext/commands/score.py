"""``fairseq-ext score``: compute BLEU and chrF of translations."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq_ext.commands import evaluation_options, options
from fairseq_ext.utils.errors import ConfigError
from fairseq_ext.utils.option_fields import Once, add_options, from_args, option


@dataclass(frozen=True)
class Request:
    """The command-line options of ``score``, a field for each."""

    reference: evaluation_options.ReferenceOptions
    metrics: evaluation_options.MetricOptions
    tokenizer: evaluation_options.TokenizerOptions
    texts: evaluation_options.UndoingOptions
    hyp: Path | None = option(None, "translations as detokenized text", action=Once)
    generated: Sequence[Path] | None = option(
        None, "output of fairseq-generate; with --num-shards, the outputs of all shards", nargs="+"
    )
    tokenized_ref: Path | None = option(
        None,
        "reference tokens without subword pieces, for tokenized BLEU (default with --generated: "
        "its T lines)",
        action=Once,
    )
    tokenized_hyp: Path | None = option(None, "tokens of --hyp, for tokenized BLEU", action=Once)
    split_compounds: bool = option(
        False,
        "also compute tokenized BLEU with hyphenated compounds split, which papers report only "
        "for WMT14 English-German; needs --tokenized-ref",
    )
    json: Path | None = None

    def check(self) -> None:
        """Raise ConfigError if options do not go together."""
        fault = None
        if self.generated and self.tokenized_hyp:
            fault = "`--tokenized-hyp` goes with `--hyp`; `--generated` has the tokens."
        elif self.hyp and self.texts.detokenize:
            fault = "`--detokenize` goes with `--generated`; `--hyp` is detokenized text."
        elif self.hyp and self.texts.keep_tokens:
            fault = "`--keep-tokens` goes with `--generated`; `--hyp` is scored as it is."
        elif self.hyp and (self.tokenized_ref is None) != (self.tokenized_hyp is None):
            fault = "Give both `--tokenized-ref` and `--tokenized-hyp`, or neither."
        elif self.split_compounds and self.tokenized_ref is None:
            fault = "`--split-compounds` compares tokens; give `--tokenized-ref` too."
        if fault is not None:
            raise ConfigError(fault)


def add(commands: options.Subparsers) -> None:
    parser = commands.add_parser(
        "score",
        help="compute BLEU, chrF and COMET, with signatures",
        description="Score detokenized text or fairseq-generate's output against a reference.",
        example="fairseq-ext score --hyp hypotheses.en --ref test.en",
    )
    add_options(parser, evaluation_options.ReferenceOptions)
    translations = parser.add_mutually_exclusive_group(required=True)
    add_options(translations, Request, ("hyp", "generated"))
    add_options(parser, Request, ("tokenized_ref", "tokenized_hyp", "split_compounds"))
    add_options(parser, evaluation_options.TokenizerOptions)
    evaluation_options.add_metrics(parser)
    evaluation_options.add_undoing(parser)
    options.add_json(parser, "the scores")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> None:
    request = from_args(Request, args)
    request.check()
    from fairseq_ext.evaluation import neural, score

    reference = request.reference.path()
    source = request.metrics.source_path(request.reference)
    undoing = request.texts.undoing(request.generated) if request.generated else None
    references = score.plain_lines(reference)
    tokenizer = request.tokenizer.choose([undoing] if undoing else [], references, reference)
    settings = request.metrics.process.settings()
    measures: dict[str, Any] = {
        "source": source,
        "tokenizer": tokenizer,
        "extra_metrics": request.metrics.text_metrics,
        "compounds": request.split_compounds,
        "neural": neural.named_metrics(request.metrics.neural, **settings),
    }
    if request.hyp is None:
        paths = (request.generated or (), reference, request.tokenized_ref)
        scores = score.score_generated(*paths, undoing, **measures)
    else:
        tokens = (request.tokenized_ref, request.tokenized_hyp)
        scores = score.score_files(reference, request.hyp, *tokens, **measures)
    report: dict[str, Any] = {"scores": [entry.as_dict() for entry in scores]}
    if request.metrics.neural:
        report["segments"] = {entry.name: entry.segments for entry in scores if entry.segments}
    options.write_json(request.json, report)
    print(score.as_table(scores))
