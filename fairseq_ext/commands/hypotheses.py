"""Read fairseq-generate's output: ``hypotheses`` extracts translations, ``mbr`` chooses samples."""

import argparse
from collections.abc import Sequence
from dataclasses import MISSING, dataclass
from pathlib import Path

from fairseq_ext.commands import evaluation_options, options
from fairseq_ext.utils import files
from fairseq_ext.utils.errors import ConfigError
from fairseq_ext.utils.option_fields import add_options, from_args, option, require_at_least


def add(commands: options.Subparsers) -> None:
    parser = commands.add_parser(
        "hypotheses",
        help="extract the translations from fairseq-generate's output, in corpus order",
        description="Write the translation of each sentence of the corpus on a line, in corpus "
        "order; a missing sentence is an error.",
        example="fairseq-ext hypotheses generated.txt --detokenize en -o hypotheses.en",
    )
    options.add_generated(parser)
    evaluation_options.add_undoing(parser, pieces=True)
    parser.add_argument(
        "--expected", type=int, metavar="N", help="number of sentences that the corpus must have"
    )
    options.add_output(parser, "FILE", "file for the translations")
    parser.set_defaults(run=_hypotheses)


def _hypotheses(args: argparse.Namespace) -> None:
    from fairseq_ext.evaluation import outputs

    if args.expected is not None:
        require_at_least(args, expected=1)
    sentences = outputs.read_generated(args.generated, args.expected)
    undoing = from_args(evaluation_options.UndoingOptions, args).undoing(args.generated, "none")
    lines = undoing.text(undoing.words(outputs.best_hypotheses(sentences)))
    with files.atomic_write(args.output) as file:
        file.writelines(line + "\n" for line in lines)
    print(f"{len(lines)} translations in {args.output}")


@dataclass(frozen=True)
class Request:
    """The command-line options of ``mbr``, a field for each."""

    tokenizer: evaluation_options.TokenizerOptions
    process: evaluation_options.ProcessOptions
    texts: evaluation_options.UndoingOptions
    output: Path
    generated: Sequence[Path] = option(
        MISSING,
        "outputs of fairseq-generate --sampling --beam K --nbest K, each with another --seed; "
        "their samples are pooled",
        "generated",
        nargs="+",
        metavar="GENERATED",
    )
    num_candidates: int = option(
        help="number of candidates to compare for each sentence; without --candidates-of, the "
        "files must have exactly N"
    )
    candidates_of: int | None = option(
        None,
        "number of candidates that the files have for each sentence; --num-candidates of them are "
        "drawn at random (default: --num-candidates, so that all are used)",
        metavar="M",
    )
    seed: int | None = option(None, "seed of the draw; goes with --candidates-of (default: 1)")
    utility: str = option(
        "chrf",
        "measure of agreement: chrf (default), bleu, comet:MODEL (see `score --metric`), or "
        "mbrs:METRIC of the library mbrs, such as mbrs:bleurt",
        metavar="U",
    )
    mbrs_option: Sequence[str] = option(
        [],
        "field of the mbrs metric's configuration, such as model=PATH; repeat for more",
        action="append",
        metavar="KEY=VALUE",
    )
    source: Path | None = option(
        None,
        "source text, for a utility that reads it: comet:MODEL, and metrics of mbrs such as "
        "comet (default: the S lines of fairseq-generate)",
    )
    json: Path | None = None

    def check(self) -> None:
        require_at_least(self, num_candidates=1)
        if self.candidates_of is not None:
            require_at_least(self, candidates_of=self.num_candidates)
        if self.seed is not None:
            require_at_least(self, seed=0)
            if self.candidates_of is None:
                raise ConfigError("`--seed` goes with `--candidates-of`, which is missing.")


def add_mbr(commands: options.Subparsers) -> None:
    parser = commands.add_parser(
        "mbr",
        help="choose among sampled translations by minimum Bayes risk",
        description="For each sentence, choose the sample that agrees best with all samples.",
        example="fairseq-ext mbr generated.txt --num-candidates 32 --utility chrf -o chosen.en",
    )
    for kind in (Request, evaluation_options.TokenizerOptions, evaluation_options.ProcessOptions):
        add_options(parser, kind)
    evaluation_options.add_undoing(parser, pieces=True)
    options.add_output(parser, "FILE", "file for the chosen translations, in corpus order")
    options.add_json(parser, "choices and expected utilities")
    parser.set_defaults(run=_mbr)


def _mbr(args: argparse.Namespace) -> None:
    request = from_args(Request, args)
    request.check()
    from tqdm import tqdm

    from fairseq_ext.decoding import mbr
    from fairseq_ext.evaluation import outputs

    neural = mbr.is_neural(request.utility)
    if not neural:
        request.process.require_unset("--utility comet:MODEL")
    undoing = request.texts.undoing(request.generated, "none")
    settings = request.process.settings() if neural else {}
    if request.tokenizer.tokenize is not None and request.utility != "bleu":
        raise ConfigError("`--tokenize` goes with `--utility bleu`, which is missing.")
    if request.utility == "bleu":
        translations = outputs.best_hypotheses(outputs.read_generated(request.generated[0]))
        texts = undoing.text(undoing.words(translations))
        settings["tokenizer"] = request.tokenizer.choose([undoing], texts)
    fields = options.named_values("--mbrs-option", "KEY=VALUE", request.mbrs_option)
    utility = mbr.build_utility(request.utility, fields, **settings)
    if request.source is not None and not utility.reads_source:
        raise ConfigError(
            f"`--source` does not go with `--utility {request.utility}`, which ignores it."
        )
    # Candidates of a sentence, in all files together.
    pooled = request.candidates_of or request.num_candidates
    sentences = mbr.read_candidates(
        request.generated, pooled, undoing, source=request.source, reads_source=utility.reads_source
    )
    seed = 1 if request.seed is None else request.seed
    decisions = []
    for candidates in tqdm(sentences, desc="mbr", unit="sentence", disable=None):
        subset = mbr.random_subset(candidates, request.num_candidates, seed)
        decisions.append(mbr.decide(candidates, utility, subset))
    with files.atomic_write(request.output) as file:
        file.writelines(decision.text + "\n" for decision in decisions)
    drawn = {"num_candidates": request.num_candidates, "candidates_of": pooled}
    options.write_json(request.json, mbr.as_dict(decisions, utility, **drawn, seed=seed))
    print(mbr.as_table(decisions, utility))
