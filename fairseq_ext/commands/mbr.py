"""``fairseq-ext mbr``: minimum Bayes risk decoding of fairseq-generate's samples."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from fairseq_ext.commands import metric_options, options
from fairseq_ext.commands.options import Subparsers
from fairseq_ext.commands.undoing_options import add_undoing, chosen_undoing
from fairseq_ext.utils.errors import ConfigError


def add(commands: Subparsers) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "mbr",
        help="minimum Bayes risk decoding of sampled translations",
        description="For each sentence, choose the sample that agrees best with all samples.",
    )
    parser.add_argument(
        "generated",
        type=Path,
        nargs="+",
        metavar="GENERATED",
        help="outputs of fairseq-generate --sampling --beam K --nbest K, each with another --seed; "
        "their samples are taken together",
    )
    parser.add_argument(
        "--num-candidates",
        type=int,
        required=True,
        metavar="N",
        help="candidates for each sentence; every sentence must have exactly these",
    )
    parser.add_argument(
        "--candidates-of",
        type=int,
        metavar="M",
        help="the files hold M candidates for each sentence, of which N are drawn at random",
    )
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of --candidates-of (1)")
    parser.add_argument(
        "--utility",
        default="chrf",
        metavar="U",
        help="chrf (default), bleu, comet:MODEL (see `score --metric`), or mbrs:METRIC of the "
        "library mbrs, such as mbrs:bleurt",
    )
    parser.add_argument(
        "--mbrs-option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a field of the mbrs metric's configuration, such as model=PATH; repeat for more",
    )
    parser.add_argument(
        "--source",
        type=Path,
        metavar="FILE",
        help="source text, for a utility that reads it: comet:MODEL, and metrics of mbrs such as "
        "comet (else the S lines of fairseq-generate)",
    )
    metric_options.add_tokenizer(parser)
    metric_options.add_process(parser.add_argument)
    add_undoing(parser, pieces=True)
    options.add_output(parser, "FILE", "the chosen translations, in corpus order")
    options.add_json(parser, "choices and expected utilities")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    held = args.num_candidates if args.candidates_of is None else args.candidates_of
    _check(args, held)
    from tqdm import tqdm

    from fairseq_ext.decoding import mbr, mbr_utilities
    from fairseq_ext.evaluation import outputs
    from fairseq_ext.utils import files

    neural = mbr_utilities.is_neural(args.utility)
    if not neural:
        metric_options.refuse_process(args, "--utility comet:MODEL")
    undoing = chosen_undoing(args, args.generated)
    process = metric_options.process(args) if neural else {}
    if args.tokenize is not None and args.utility != "bleu":
        raise ConfigError("`--tokenize` goes with `--utility bleu`.")
    if args.utility == "bleu":
        translations = outputs.best_hypotheses(outputs.read_generated(args.generated[0]))
        texts = undoing.text(undoing.words(translations))
        process["tokenizer"] = metric_options.chosen_tokenizer(args, [undoing], texts)
    utility = mbr_utilities.build_utility(args.utility, _pairs(args.mbrs_option), **process)
    if args.source is not None and not utility.reads_source:
        raise ConfigError(
            f"`--source` does not go with `--utility {args.utility}`, which ignores it."
        )
    sentences = mbr.read_candidates(
        args.generated, held, undoing, source=args.source, reads_source=utility.reads_source
    )
    shown = tqdm(sentences, desc="mbr", unit="sentence", disable=None)
    decisions = list(mbr.decode(shown, utility, args.num_candidates, args.seed))
    with files.atomic_write(args.output) as file:
        file.writelines(decision.text + "\n" for decision in decisions)
    settings = {"num_candidates": args.num_candidates, "candidates_of": held, "seed": args.seed}
    options.write_json(args.json, mbr.as_dict(decisions, utility, **settings))
    print(mbr.as_table(decisions, utility))
    return 0


def _check(args: argparse.Namespace, held: int) -> None:
    if args.num_candidates < 1:
        raise ConfigError(
            f"`--num-candidates` must be at least 1, but is {args.num_candidates} instead."
        )
    if held < args.num_candidates:
        raise ConfigError(
            f"`--candidates-of` must be at least `--num-candidates` ({args.num_candidates}), but "
            f"is {held} instead."
        )
    if args.seed < 0:
        raise ConfigError(f"`--seed` must be 0 or more, but is {args.seed} instead.")


def _pairs(items: Sequence[str]) -> dict[str, str]:
    pairs = {}
    for item in items:
        key, equals, value = item.partition("=")
        if not (key and equals):
            raise ConfigError(f"`--mbrs-option` must be KEY=VALUE, but is `{item}` instead.")
        pairs[key] = value
    return pairs
