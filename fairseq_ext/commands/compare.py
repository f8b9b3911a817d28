"""``fairseq-ext compare``: compare several systems on one test set, in one table."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fairseq_ext.commands import evaluation_options, options
from fairseq_ext.utils import extras
from fairseq_ext.utils.errors import ConfigError
from fairseq_ext.utils.files import require_file
from fairseq_ext.utils.option_fields import Once, add_options, from_args, option

if TYPE_CHECKING:
    from fairseq_ext.evaluation.compare import Latency, System


@dataclass(frozen=True)
class Request:
    """The command-line options of ``compare``, a field for each."""

    reference: evaluation_options.ReferenceOptions
    metrics: evaluation_options.MetricOptions
    tokenizer: evaluation_options.TokenizerOptions
    texts: evaluation_options.UndoingOptions
    system: Sequence[str] = option(
        help="name of a system and its output of fairseq-generate, or several outputs, one for "
        "each seed; add its checkpoint (for size and updates) and its training log (for parameters "
        "and speed) if you have them; repeat for each system. NAME=text:FILE[,FILE...] reads "
        "detokenized text, such as another program's; NAME=table:FILE reads one column of a table "
        "of translations (OUT.tsv.gz of --output), and table:FILE all columns",
        action="append",
        metavar="NAME=GENERATED[,GENERATED...][,checkpoint=FILE][,log=FILE]",
    )
    baseline: str | None = option(
        None, "system to test the others against (default: the first)", metavar="NAME"
    )
    tokenized_ref: Path | None = option(
        None, "reference tokens without subword pieces, for tokenized BLEU as well", action=Once
    )
    samples: int = option(1000, "number of bootstrap samples (%(default)s)")
    output: Path | None = option(
        None,
        "write the table to OUT.md, OUT.csv, OUT.tex and OUT.json, translations to OUT.tsv.gz, a "
        "page with all pictures to OUT.html, and pictures to OUT.png and OUT-differences.png (.svg "
        "if OUT ends in .svg)",
        *("-o", "--output"),
        metavar="OUT",
    )
    training: Sequence[Path] = option(
        [],
        "training text in the target language, not tokenized; report the references that occur in "
        "it, exactly or nearly, and the scores without them",
        nargs="+",
    )
    kinds: bool = option(
        False,
        "report chrF by sentence length, by rarity of words (with --training), and for sentences "
        "with numbers or names, and how many translations repeat words or copy the source",
    )
    differing: str | None = option(
        None,
        "show in OUT.md the 20 sentences in which this system differs most from the baseline",
        metavar="NAME",
    )
    latency: int = option(
        0,
        "measure the latency of each system that has a checkpoint: translate the first N source "
        "sentences one at a time, on one thread, with beam 5; report the median and 99th "
        "percentile of the time, processor time, energy where Linux reports it (RAPL) and, for "
        "bundles, multiply-adds",
    )
    pictures: Sequence[Path] = option(
        [],
        "pictures to show in OUT.md too, such as the learning curves of `plot curves`",
        nargs="+",
    )
    json: Path | None = None


def add(commands: options.Subparsers) -> None:
    parser = commands.add_parser(
        "compare",
        help="compare systems on one test set: quality, significance, size, speed",
        description="Compare outputs of fairseq-generate for one test set: BLEU and chrF with 95% "
        "intervals, significance against a baseline, size and speed.",
        example="fairseq-ext compare --system gru=a.txt --system muse=b.txt --ref test.en",
    )
    for kind in (evaluation_options.ReferenceOptions, Request, evaluation_options.TokenizerOptions):
        add_options(parser, kind)
    evaluation_options.add_metrics(parser)
    evaluation_options.add_undoing(parser)
    options.add_json(parser, "the comparison")
    parser.set_defaults(
        run=_run,
        endings=(*options.PICTURE, "-differences.png", ".md", ".csv", ".tex", ".tsv.gz", ".html"),
    )


def _run(args: argparse.Namespace) -> None:
    request = from_args(Request, args)
    extras.need("scipy")
    from fairseq_ext.evaluation import compare, compare_report, neural, score

    if request.output is not None:
        extras.need("matplotlib")
    if request.differing is not None and request.output is None and request.json is None:
        raise ConfigError("`--differing` goes with `--output` or `--json`, which are missing.")
    for path in request.pictures:
        require_file(path, "picture")
    systems = compare.parse_systems(request.system)
    if all(system.plain for system in systems) and not request.texts.is_default:
        option = "--keep-tokens" if request.texts.keep_tokens else "--detokenize"
        raise ConfigError(f"`{option}` has no effect on text:FILE, which is text; leave it out.")
    reference = request.reference.path()
    source = request.metrics.source_path(request.reference, request.latency != 0)
    undoing = compare.default_undoing(systems)
    undoing |= {
        system.name: request.texts.undoing(system.generated)
        for system in systems
        if not (system.plain or (system.table and request.texts.is_default))
    }
    references = score.plain_lines(reference)
    latencies = _latencies(request.latency, systems, source)
    tokenizer = request.tokenizer.choose(undoing.values(), references, reference)
    settings = request.metrics.process.settings()
    result = compare.compare(
        systems,
        reference,
        baseline=request.baseline,
        tokenized_reference=request.tokenized_ref,
        samples=request.samples,
        undoing=undoing,
        metrics=neural.named_metrics(request.metrics.neural, **settings),
        source=source,
        tokenizer=tokenizer,
        training=request.training,
        extra_metrics=request.metrics.text_metrics,
        kinds=request.kinds,
        differing=request.differing,
        latencies=latencies,
    )
    written: Sequence[Path] = []
    try:
        print(compare_report.as_table(result), flush=True)  # first, because the disk may be full
    finally:  # even if printing failed, as into a closed pipe
        options.write_json(request.json, result.as_dict())
        if request.output is not None:
            written = compare_report.write(result, request.output, request.pictures)
    if written:
        print(*written, sep="\n")


def _latencies(count: int, systems: Sequence[System], source: Path | None) -> dict[str, Latency]:
    if not count:
        return {}
    from fairseq_ext.decoding import latency
    from fairseq_ext.evaluation.score import plain_lines

    models = {system.name: system.checkpoint for system in systems if system.checkpoint}
    if source is None or not models or count < 1:
        raise ConfigError(
            "`--latency` must be above 0, and needs the plain text of `--source` and systems with "
            "`checkpoint=`."
        )
    texts = plain_lines(source)[:count]
    return {name: latency.measure(path, texts, beam=5) for name, path in models.items()}
