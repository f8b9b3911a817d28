"""Compare several systems on one test set: quality with its uncertainty, size, speed.

A system is the output of ``fairseq-generate``, optionally with the checkpoint that it used and the
log of the training. Figures that need a missing file stay empty.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from fairseq_ext.checkpoints.describe import read_weights
from fairseq_ext.corpora.contamination import texts as lines_of
from fairseq_ext.evaluation.bootstrap import (
    SAMPLES,
    Comparison,
    Estimate,
    bootstrap,
    bootstrap_of_means,
    check_comparable,
)
from fairseq_ext.evaluation.breakdown import Breakdown, break_down, most_different
from fairseq_ext.evaluation.neural import NeuralMetric
from fairseq_ext.evaluation.outputs import best_hypotheses, read_generated, read_text
from fairseq_ext.evaluation.overlap import Overlap, measure
from fairseq_ext.evaluation.score import plain_lines, tokenized_bleu
from fairseq_ext.evaluation.segments import NO_SOURCE, generated_sources, read_sources
from fairseq_ext.evaluation.significance import SENTENCES, TRAININGS
from fairseq_ext.evaluation.tokenizers import USUAL
from fairseq_ext.evaluation.training_log import Training, read_training
from fairseq_ext.evaluation.translation_table import read_system, read_table
from fairseq_ext.text.generated import Undoing, require_text
from fairseq_ext.utils import files
from fairseq_ext.utils.errors import ConfigError, DataError

PARTS = ("checkpoint", "log")
TESTS = {
    TRAININGS: "another test set and other trainings (Banerjee's interval over sentences and runs)",
    SENTENCES: "another test set, not another training (two-sided paired bootstrap)",
}
SHOWN = 5  # sample sentences on the page
PLAIN = "text:"  # prefix to the path of a file of text, instead of fairseq-generate's output
TABLE = "table:"  # prefix to the path of a table of translations
_PART = re.compile(rf",(?=(?:{'|'.join(PARTS)})=)")
_COUNT, _SPEED = r"[0-9][0-9,]{0,20}", r"[0-9][0-9,]{0,20}(?:\.[0-9]{1,9})?"
CLOSING = re.compile(
    rf"Translated {_COUNT} sentences \({_COUNT} tokens\) in {_SPEED}s "
    rf"\({_SPEED} sentences/s, ({_SPEED}) tokens/s\)"
)


@dataclass(frozen=True)
class System:
    """A system's files.

    Attributes:
        name: name in the table.
        generated: for each run (training), fairseq-generate's output, or the translations as
            plain text.
        checkpoint: the checkpoint that was used.
        log: log of the training.
        plain: whether ``generated`` is detokenized text, a line per sentence.
        table: whether ``generated`` is a table of translations, see
            :mod:`fairseq_ext.evaluation.translation_table`.
    """

    name: str
    generated: tuple[Path, ...]
    checkpoint: Path | None = None
    log: Path | None = None
    plain: bool = False
    table: bool = False


@dataclass(frozen=True)
class Measured:
    """The figures of a system, a row of the comparison.

    Attributes:
        name: name of the system.
        scores: ``BLEU``, ``chrF`` and neural metrics of the detokenized text.
        tokenized_bleu: BLEU on tokens, if a tokenized reference was given.
        architecture: fairseq's name of the architecture.
        parameters: number of the model's parameters.
        tensor_bytes: bytes of the model's tensors on disk.
        updates: number of updates in training.
        training_speed: target tokens per second spent in updates.
        generation_speed: tokens per second, as fairseq-generate measured them.
    """

    name: str
    scores: Mapping[str, Estimate]
    tokenized_bleu: float | None = None
    architecture: str | None = None
    parameters: int | None = None
    tensor_bytes: int | None = None
    updates: int | None = None
    training_speed: float | None = None
    generation_speed: float | None = None


@dataclass(frozen=True)
class Sample:
    """A sentence of the test set, with its translations by all systems.

    Attributes:
        number: line number, from 1.
        source: the source in words, if some system's output has it.
        reference: the reference translation.
        translations: translations of the first runs, by system.
    """

    number: int
    source: str | None
    reference: str
    translations: Mapping[str, str]


@dataclass(frozen=True)
class Result:
    """The result of comparing systems on one test set.

    Attributes:
        systems: a row for each system, in the order given.
        baseline: name of the system that the others are tested against.
        sentences: number of sentences in the test set.
        signatures: signatures of the metrics.
        reference: name of the test set's file.
        samples: some sentences, spread evenly over the test set.
        segments: scores of all sentences, by neural metric, system and run.
        texts: lines of each run, by system; they are written to a file of their own.
        tokens: the lines as words, for systems whose words are known.
        overlap: overlap of the references with training text, if training text is given.
        breakdown: scores by kind of sentence, if asked for.
        differing: sentences in which a system differs most from the baseline, if asked for.
    """

    systems: Sequence[Measured]
    baseline: str
    sentences: int
    signatures: Mapping[str, str]
    reference: str
    samples: Sequence[Sample]
    segments: Mapping[str, Mapping[str, Sequence[Sequence[float]]]] = field(default_factory=dict)
    texts: Mapping[str, Sequence[Sequence[str]]] = field(default_factory=dict)
    tokens: Mapping[str, Sequence[Sequence[str]]] = field(default_factory=dict)
    overlap: Overlap | None = None
    breakdown: Breakdown | None = None
    differing: Sequence[Sample] = ()

    @property
    def several_runs(self) -> bool:
        """Whether some system was trained several times."""
        return any(row.scores["BLEU"].runs > 1 for row in self.systems)

    @property
    def tests(self) -> dict[str, str]:
        """Describe by row of the table what p compares, and by which test."""
        differences = [row.scores["BLEU"].difference for row in self.systems]
        used = {difference.test for difference in differences if difference is not None}
        return {test: text for test, text in TESTS.items() if test in used}

    def as_dict(self) -> dict[str, Any]:
        content = asdict(replace(self, texts={}, tokens={}))
        del content["texts"], content["tokens"]
        return {"tests": self.tests, **content}


def parse_systems(arguments: Sequence[str]) -> list[System]:
    """Parse the values of ``--system``; ``table:FILE`` stands for every system in a table.

    Raises:
        ConfigError: as for :func:`parse_system`.
        DataError: a table cannot be read.
    """
    systems = []
    for argument in arguments:
        if argument.startswith(TABLE):
            path = Path(argument.removeprefix(TABLE))
            systems += [System(name, (path,), table=True) for name in read_table(path)]
        else:
            systems.append(parse_system(argument))
    return systems


def parse_system(specification: str) -> System:
    """Parse a system from ``NAME=GENERATED[,GENERATED…][,checkpoint=FILE][,log=FILE]``.

    ``NAME=text:FILE[,FILE…]…`` stands for plain text, ``NAME=table:FILE…`` for a table.

    Raises:
        ConfigError: the form is wrong, or a part or an output occurs twice.
    """
    name, equals, rest = specification.partition("=")
    generated, *parts = _PART.split(rest)
    fields = dict(part.split("=", 1) for part in parts)
    plain, table = generated.startswith(PLAIN), generated.startswith(TABLE)
    runs = generated.removeprefix(PLAIN if plain else TABLE).split(",")
    if (
        not (name and equals and all(runs) and all(fields.values()))
        or len(fields) < len(parts)
        or (table and len(runs) > 1)
    ):
        raise ConfigError(
            "`--system` must be NAME=GENERATED[,GENERATED...][,checkpoint=FILE][,log=FILE], but is "
            f"`{specification}` instead."
        )
    if duplicate := files.twice(runs):
        raise ConfigError(
            f"`--system {name}=…` names {duplicate} twice; each run needs an output of its own."
        )
    paths = {part: Path(path) for part, path in fields.items()}
    return System(name, tuple(map(Path, runs)), **paths, plain=plain, table=table)


def compare(
    systems: Sequence[System],
    reference: str | Path,
    *,
    baseline: str | None = None,
    tokenized_reference: str | Path | None = None,
    samples: int = SAMPLES,
    undoing: Mapping[str, Undoing] | None = None,
    metrics: Mapping[str, NeuralMetric] | None = None,
    source: str | Path | None = None,
    tokenizer: str = USUAL,
    training: Sequence[Path] = (),
    extra_metrics: Sequence[str] = (),
    kinds: bool = False,
    differing: str | None = None,
) -> Result:
    """Measure every system, as :class:`Measured` describes.

    Args:
        systems: systems with different names.
        reference: detokenized text.
        baseline: name of the system to test against; None for the first.
        tokenized_reference: the reference as tokens without subword pieces, for tokenized BLEU.
        samples: number of samples of the bootstrap.
        undoing: converters of translations to text, by system; without one, subwords are only
            joined.
        metrics: neural metrics, by their names in the result.
        source: source text for neural metrics; None for the S lines of fairseq-generate's output.
        tokenizer: sacrebleu's tokenizer for BLEU.
        training: files of training text in the target language, to be searched for references.
        extra_metrics: of sacrebleu, see :func:`~fairseq_ext.evaluation.score.build_metrics`.
        kinds: whether to score each kind of sentence; rarity needs ``training``.
        differing: a system, for the sentences in which it differs most from the baseline.

    Raises:
        ConfigError: a name is given twice, or the baseline is missing.
        DataError: files are unreadable, incomplete or unequal, or have pieces of SentencePiece that
            nothing joins.
        CheckpointError: a checkpoint is unreadable.
        EnvironmentProblem: a metric's library is missing, or its process ends.
    """
    names = [system.name for system in systems]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError(
            f"`--system` must have a name of its own, but `{twice[0]}` is there twice."
        )
    references = plain_lines(reference)
    undoing = {system.name: Undoing.by_language(None) for system in systems} | dict(undoing or {})
    baseline = baseline or names[0]
    if differing is not None and (differing not in names or differing == baseline):
        raise ConfigError(
            f"`--differing` must be a system other than `{baseline}`, but is `{differing}` instead."
        )
    texts, tokens, sources = _translations(systems, references, undoing)
    system_facts = [_known(system) for system in systems]  # early, because it may fail
    on_tokens = _tokenized_scores(tokens, tokenized_reference)
    lines = {
        label: run
        for system in systems
        for label, run in zip(
            _labels(system, len(texts[system.name])), texts[system.name], strict=True
        )
    }
    check_comparable(lines, references, baseline, names, samples)
    metrics, segments = metrics or {}, {}
    if metrics:
        plain_sources = _plain_sources(systems, len(references), undoing, source)
        segments = {
            label: {
                name: [metric.segments(plain_sources, run, references) for run in runs]
                for name, runs in texts.items()
            }
            for label, metric in metrics.items()
        }
    text_scores = bootstrap(texts, references, baseline, samples, tokenizer, extra_metrics)
    measured = _with_neural(text_scores, baseline, samples, metrics, segments)
    rows = [
        Measured(name, measured.estimates[name], on_tokens.get(name), **facts)
        for name, facts in zip(names, system_facts, strict=True)
    ]
    shown = _samples(sources, references, {name: texts[name][0] for name in names})
    return Result(
        rows,
        baseline,
        len(references),
        measured.signatures,
        Path(reference).name,
        shown,
        segments,
        texts,
        tokens,
        measure(training, references, texts, tokenizer, extra_metrics) if training else None,
        break_down(references, texts, sources, lines_of(training) if training else None)
        if kinds
        else None,
        _differing(sources, references, texts, baseline, differing) if differing else (),
    )


def _with_neural(
    text_scores: Comparison,
    baseline: str,
    samples: int,
    metrics: Mapping[str, NeuralMetric],
    segments: Mapping[str, Mapping[str, Sequence[Sequence[float]]]],
) -> Comparison:
    """Add neural metrics to BLEU and chrF, as means of the segments' scores."""
    parts = [text_scores]
    for label, metric in metrics.items():
        scores, signature = segments[label], metric.signature
        parts.append(bootstrap_of_means(label, scores, signature, baseline, samples))
    estimates = {
        name: {
            label: estimate for part in parts for label, estimate in part.estimates[name].items()
        }
        for name in text_scores.estimates
    }
    return Comparison(estimates, {k: v for part in parts for k, v in part.signatures.items()})


def _plain_sources(
    systems: Sequence[System],
    sentences: int,
    undoing: Mapping[str, Undoing],
    source: str | Path | None,
) -> list[str]:
    if source is not None:
        return read_sources(source, sentences)
    for system in systems:
        if not (system.plain or system.table):
            path = system.generated[0]
            return generated_sources(read_generated(path, sentences), undoing[system.name], path)
    raise DataError(NO_SOURCE)


def _translations(
    systems: Sequence[System],
    references: Sequence[str],
    undoing: Mapping[str, Undoing],
) -> tuple[dict[str, list[list[str]]], dict[str, list[list[str]]], list[str] | None]:
    """Read each system's runs as lines of text and, unless they are plain text, of words.

    Also return the sources of the first output that has all of them.
    """
    texts, tokens, sources = {}, {}, None
    for system in systems:
        if system.plain:
            texts[system.name] = [plain_lines(path) for path in system.generated]
        elif system.table:
            has_tokens, runs = read_system(system.generated[0], system.name)
            texts[system.name] = runs
            if has_tokens:
                tokens[system.name] = runs
                texts[system.name] = [undoing[system.name].text(lines) for lines in runs]
        else:
            undo = undoing[system.name]
            outputs = [read_generated(path, len(references)) for path in system.generated]
            tokens[system.name] = [undo.words(best_hypotheses(output)) for output in outputs]
            texts[system.name] = [undo.text(lines) for lines in tokens[system.name]]
            source_lines = [sentence.source for sentence in outputs[0]]
            if sources is None and None not in source_lines:
                # Sources become text by the same steps as translations if the language is known.
                has_language = undo.made.src or not undo.made.tokenize
                sources = undo.sources(source_lines) if has_language else undo.words(source_lines)
        for lines, label in zip(
            texts[system.name], _labels(system, len(texts[system.name])), strict=True
        ):
            require_text(lines, label, references)
    return texts, tokens, sources


def _labels(system: System, runs: int) -> list[str]:
    """Name the translations of each run for messages: by their file, or by their column."""
    if system.table:
        path = system.generated[0]
        return [f"{path}, {system.name}, run {number}" for number in range(1, runs + 1)]
    return list(map(str, system.generated))


def _samples(
    sources: Sequence[str] | None, references: Sequence[str], texts: Mapping[str, Sequence[str]]
) -> list[Sample]:
    count = min(SHOWN, len(references))
    lines = [i * len(references) // count for i in range(count)]
    return [
        Sample(
            line + 1,
            sources and sources[line],
            references[line],
            {name: of_system[line] for name, of_system in texts.items()},
        )
        for line in lines
    ]


def _differing(
    sources: Sequence[str] | None,
    references: Sequence[str],
    texts: Mapping[str, Sequence[Sequence[str]]],
    baseline: str,
    other: str,
) -> list[Sample]:
    first, second = texts[baseline][0], texts[other][0]
    return [
        Sample(
            line + 1,
            sources and sources[line],
            references[line],
            {
                f"{baseline}, chrF {score:.1f}": first[line],
                f"{other}, chrF {other_score:.1f}": second[line],
            },
        )
        for line, score, other_score in most_different(first, second, references)
    ]


def generation_speed(generated: str | Path) -> float | None:
    """Read tokens per second from the last line of fairseq-generate's output, if it is there.

    If the output was captured without this line, ``GENERATED.log`` beside it may have it.
    """
    for path in (Path(generated), Path(f"{generated}.log")):
        if path.is_file():
            speeds = CLOSING.findall(path.read_text(encoding="utf-8", errors="replace"))
            if speeds:
                return float(speeds[-1].replace(",", ""))
    return None


def _known(system: System) -> dict[str, Any]:
    """Read the log and checkpoint; the log, which counts parameters exactly, comes first."""
    facts: dict[str, Any] = {}
    if not (system.plain or system.table):
        facts["generation_speed"] = generation_speed(system.generated[0])
    if system.checkpoint is not None:
        facts |= asdict(read_weights(system.checkpoint))
    if system.log is not None:
        training = _training(system.log)
        facts |= {"parameters": training.parameters, "training_speed": training.tokens_per_second}
        facts["updates"] = facts.get("updates") or training.updates
    return facts


def _training(path: Path) -> Training:
    try:
        return read_training(read_text(path))
    except DataError as error:
        if str(path) in str(error):
            raise
        raise DataError(f"`{path}`: {error} Give the `--log-file` of fairseq-train.") from error


def _tokenized_scores(
    tokens: Mapping[str, Sequence[Sequence[str]]], reference: str | Path | None
) -> dict[str, float]:
    """Compute each system's BLEU on tokens, the mean of its runs."""
    if reference is None:
        return {}
    references = plain_lines(reference)
    for name, runs in tokens.items():
        if len(runs[0]) != len(references):
            raise DataError(
                f"`{reference}` has {len(references)} lines, but `{name}` translates "
                f"{len(runs[0])} sentences; `--tokenized-ref` must be the same text."
            )
    return {
        name: statistics.fmean(tokenized_bleu(lines, references).value for lines in runs)
        for name, runs in tokens.items()
    }
