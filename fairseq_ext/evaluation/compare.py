"""Compare several systems on one test set: quality with its uncertainty, size, speed.

A system is given by its translations: output of ``fairseq-generate``, plain text, or columns of a
table. The checkpoint that made them and the log of its training are optional. If a file is not
given, the numbers that are read from it are None in the result.
"""

import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, final

from fairseq_ext.checkpoints.size import read_size
from fairseq_ext.corpora.contamination import texts as lines_of
from fairseq_ext.evaluation import breakdown, significance
from fairseq_ext.evaluation.breakdown import Breakdown, Overlap
from fairseq_ext.evaluation.neural import NeuralMetric
from fairseq_ext.evaluation.outputs import best_hypotheses, read_generated
from fairseq_ext.evaluation.score import (
    build_metrics,
    check_counts,
    check_translations,
    plain_lines,
    read_sources,
    tokenized_bleu,
)
from fairseq_ext.evaluation.significance import SENTENCES, TRAININGS, Estimate
from fairseq_ext.evaluation.tables import TOKENS, Translations, read_table
from fairseq_ext.evaluation.training_log import read_training
from fairseq_ext.text.bleu_tokenizers import USUAL
from fairseq_ext.text.generated import Postprocessor
from fairseq_ext.utils import files
from fairseq_ext.utils.errors import ConfigError, wrong_value

TESTS = {
    TRAININGS: "another test set and other trainings (Banerjee's interval over sentences and runs)",
    SENTENCES: "another test set, not another training (two-sided paired bootstrap)",
}
SHOWN = 5  # sample sentences on the page
PLAIN = "text:"  # prefix to the path of a file of text, instead of fairseq-generate's output
TABLE = "table:"  # prefix to the path of a table of translations
_PART = re.compile(",(?=(?:checkpoint|log)=)")
_COUNT, _SPEED = r"[0-9][0-9,]{0,20}", r"[0-9][0-9,]{0,20}(?:\.[0-9]{1,9})?"
CLOSING = re.compile(
    rf"Translated {_COUNT} sentences \({_COUNT} tokens\) in {_SPEED}s "
    rf"\({_SPEED} sentences/s, ({_SPEED}) tokens/s\)"
)


@dataclass(frozen=True)
class System:
    """A system's files: the translations of each run, and the checkpoint and the log of one run."""

    name: str
    generated: tuple[Path, ...]  # the translations, one file for each run (training)
    checkpoint: Path | None = None
    log: Path | None = None
    plain: bool = False  # `generated` is text, a line per sentence, not fairseq-generate's output
    table: Translations | None = None  # read from `generated` if that is a table, see `tables`


@final
@dataclass(frozen=True)
class Latency:
    """How much time and energy a model takes for a sentence on one thread."""

    sentences: int  # number of sentences measured
    median: float  # milliseconds
    p99: float  # 99th percentile, in milliseconds
    processor: float  # mean processor time, in milliseconds
    multiply_adds: int | None  # products with weights per hypothesis token; None if not a bundle
    joules: float | None  # mean energy of all processor packages; None where it is unknown


@dataclass(frozen=True)
class Measured:
    """The scores, size and speed of a system: a row of the comparison."""

    name: str
    scores: Mapping[str, Estimate]  # `BLEU`, `chrF` and neural metrics of the detokenized text
    tokenized_bleu: float | None = None  # BLEU on tokens, if a tokenized reference was given
    architecture: str | None = None  # fairseq's name of the architecture
    parameters: int | None = None
    tensor_bytes: int | None = None  # bytes of the model's tensors on disk
    updates: int | None = None  # number of updates in training
    training_speed: float | None = None  # target tokens per second spent in updates
    generation_speed: float | None = None  # tokens per second, as fairseq-generate measured them
    latency: Latency | None = None


@dataclass(frozen=True)
class Sample:
    """A sentence of the test set, with its translations by some or all systems."""

    number: int  # line number, from 1
    source: str | None  # the source in words, if some system's output has it
    reference: str
    translations: Mapping[str, str]  # translations of the first runs, by system


@dataclass(frozen=True)
class Result:
    """The result of comparing systems on one test set."""

    systems: Sequence[Measured]  # in the order given
    baseline: str  # name of the system that the others are tested against
    sentences: int  # number of sentences in the test set
    signatures: Mapping[str, str]  # by metric
    reference: str  # name of the test set's file
    samples: Sequence[Sample]  # spread evenly over the test set
    # Scores of all sentences, by neural metric, system and run.
    segments: Mapping[str, Mapping[str, Sequence[Sequence[float]]]] = field(default_factory=dict)
    translations: Mapping[str, Translations] = field(default_factory=dict)  # of all runs, by system
    overlap: Overlap | None = None  # test sentences that the training text has, too
    breakdown: Breakdown | None = None  # scores by kind of sentence
    differing: Sequence[Sample] = ()  # sentences in which a system differs most from the baseline

    @property
    def tests(self) -> dict[str, str]:
        """The significance tests that were applied, each with its explanation in :data:`TESTS`."""
        differences = [row.scores["BLEU"].difference for row in self.systems]
        used = {difference.test for difference in differences if difference is not None}
        return {test: text for test, text in TESTS.items() if test in used}

    def as_dict(self) -> dict[str, Any]:
        """Return a dict for JSON: :attr:`tests`, and all fields except ``translations``."""
        content = asdict(replace(self, translations={}))
        del content["translations"]
        return {"tests": self.tests, **content}


def parse_systems(arguments: Sequence[str]) -> list[System]:
    """Parse the values of ``--system``; ``table:FILE`` gives all systems of the table FILE."""
    systems = []
    for argument in arguments:
        if argument.startswith(TABLE):
            path = Path(argument.removeprefix(TABLE))
            systems += [System(name, (path,), table=x) for name, x in read_table(path).items()]
        else:
            systems.append(parse_system(argument))
    return systems


def parse_system(specification: str) -> System:
    """Parse a system from ``NAME=GENERATED[,GENERATED…][,checkpoint=FILE][,log=FILE]``.

    Each GENERATED is a file with fairseq-generate's output for one run (training). A prefix before
    the first GENERATED changes this:

    - ``text:``: each GENERATED is plain text with a sentence per line.
    - ``table:``: the only GENERATED is a table, and the columns of the system NAME are read.

    Raises:
        ConfigError: the text has another form, a file is named twice, or the table lacks NAME.
        DataError: the table is faulty.
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
        raise wrong_value(
            "--system", "NAME=GENERATED[,GENERATED...][,checkpoint=FILE][,log=FILE]", specification
        )
    if duplicate := files.twice(runs):
        raise ConfigError(
            f"`--system {name}=…` names {duplicate} twice; each run needs an output of its own."
        )
    systems = read_table(runs[0]) if table else {}
    if table and name not in systems:
        raise ConfigError(
            f"`--system {name}={generated}`: the table has {', '.join(systems)}, but not `{name}`."
        )
    paths = {part: Path(path) for part, path in fields.items()}
    return System(name, tuple(map(Path, runs)), **paths, plain=plain, table=systems.get(name))


def compare(
    systems: Sequence[System],
    reference: str | Path,
    *,
    baseline: str | None = None,
    tokenized_reference: str | Path | None = None,
    samples: int = significance.SAMPLES,
    undoing: Mapping[str, Postprocessor] | None = None,
    metrics: Mapping[str, NeuralMetric] | None = None,
    source: str | Path | None = None,
    tokenizer: str = USUAL,
    training: Sequence[Path] = (),
    extra_metrics: Sequence[str] = (),
    kinds: bool = False,
    differing: str | None = None,
    latencies: Mapping[str, Latency] | None = None,
) -> Result:
    """Measure every system, and compare it with the baseline.

    Args:
        systems: systems with different names.
        reference: file of detokenized references.
        baseline: name of the system to test against; None for the first.
        tokenized_reference: the reference as tokens without subword pieces, for tokenized BLEU.
        samples: number of samples of the bootstrap.
        undoing: converters of tokens to text, by system. If a system has none, its subwords are
            joined, and tokens from a table that names their language are also detokenized.
        metrics: neural metrics, by their names in the result.
        source: source text for neural metrics; None for the S lines of fairseq-generate's output.
        tokenizer: sacrebleu's tokenizer for BLEU.
        training: files of training text in the target language. The sentences whose reference is
            not in this text are also scored separately.
        extra_metrics: as for :func:`~fairseq_ext.evaluation.score.build_metrics`.
        kinds: whether to score each kind of sentence, see
            :func:`~fairseq_ext.evaluation.breakdown.kinds_of`.
        differing: name of a system; list the sentences in which its chrF2 differs most from the
            baseline's.
        latencies: latency of each system, by name.

    Raises:
        ConfigError: two systems have the same name; a name looks like the name of a column in a
            table of translations (``a:tokens`` for the tokens of ``a``, ``a@2`` for its second
            run); no system is named ``baseline``; or another value is not allowed.
        DataError: files are unreadable, incomplete or of different lengths, or have SentencePiece
            pieces that ``undoing`` does not join.
        CheckpointError: a checkpoint is unreadable.
        EnvironmentProblem: a metric's library is missing, or its process ends.
    """
    names = [system.name for system in systems]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"Names of `--system` must differ, but `{twice[0]}` is there twice.")
    for name in names:
        system, _, run = name.rpartition("@")
        if name.endswith(TOKENS) or (run.isdigit() and system in names):
            raise ConfigError(
                f"`--system {name}`: a table of translations marks tokens by `{TOKENS}` and run N "
                "of a system by `@N`; choose another name."
            )
    baseline = baseline or names[0]
    if baseline not in names:
        raise wrong_value("--baseline", f"one of {', '.join(names)}", baseline)
    if samples < significance.FEWEST:
        raise wrong_value("--samples", f"at least {significance.FEWEST}", samples)
    seed = significance.chosen_seed()  # checked early, before any long work
    references = plain_lines(reference)
    undoing = default_undoing(systems) | dict(undoing or {})
    if differing is not None and (differing not in names or differing == baseline):
        raise wrong_value("--differing", f"a system other than `{baseline}`", differing)
    outputs = {
        system.name: _read(system, undoing[system.name], references, reference)
        for system in systems
    }
    texts = {name: runs for name, (runs, _, _) in outputs.items()}
    translations = {name: stored for name, (_, stored, _) in outputs.items()}
    tokens = {name: stored.runs for name, stored in translations.items() if stored.has_tokens}
    generated = [
        (source_lines, undoing[system.name], system.generated[0])
        for system in systems
        if (source_lines := outputs[system.name][2])
    ]
    sources = next(filter(None, map(_shown_sources, generated)), None)
    facts = {system.name: _facts(system) for system in systems}  # read early, before any long work
    on_tokens = _tokenized_scores(tokens, tokenized_reference)
    segments = {}
    if metrics:
        output = generated[0] if generated else None
        plain_sources = read_sources(source, len(references), output)
        for label, metric in metrics.items():
            segments[label] = {
                name: [metric.segments(plain_sources, run, references) for run in runs]
                for name, runs in texts.items()
            }
    text_metrics = build_metrics(references, tokenizer, extra_metrics)
    estimates = significance.bootstrap(texts, text_metrics, baseline, samples, segments)
    signatures = {}
    for label, text_metric in text_metrics.items():
        signature = text_metric.get_signature()
        signature.update("bs", samples)
        signature.update("seed", seed)
        signatures[label] = str(signature)
    for label, metric in (metrics or {}).items():
        signatures[label] = f"{metric.signature}|bs:{samples}|seed:{seed}"

    def sample(line: int, scores: Mapping[str, str]) -> Sample:
        """Return line ``line`` (from 0) of the test set as a sample.

        ``scores`` has, for each system to show, a text to put after its name, such as its score.
        """
        translations = {f"{name}{score}": texts[name][0][line] for name, score in scores.items()}
        return Sample(line + 1, sources[line] if sources else None, references[line], translations)

    count = min(SHOWN, len(references))
    spread = [number * len(references) // count for number in range(count)]
    differing_samples = []
    if differing is not None:
        firsts = (texts[baseline][0], texts[differing][0])
        for line, *pair in breakdown.most_different(*firsts, references):
            scores = [f", chrF {score:.1f}" for score in pair]
            differing_samples.append(sample(line, {baseline: scores[0], differing: scores[1]}))
    training_lines = lines_of(training) if training else None
    return Result(
        [
            Measured(
                name,
                estimates[name],
                on_tokens.get(name),
                **facts[name],
                latency=(latencies or {}).get(name),
            )
            for name in names
        ],
        baseline,
        len(references),
        signatures,
        Path(reference).name,
        [sample(line, dict.fromkeys(names, "")) for line in spread],
        segments,
        translations,
        breakdown.measure_overlap(training, references, texts, tokenizer, extra_metrics)
        if training
        else None,
        breakdown.break_down(references, texts, sources, training_lines) if kinds else None,
        differing_samples,
    )


def default_undoing(systems: Sequence[System]) -> dict[str, Postprocessor]:
    """Return a converter of tokens to text for each system.

    It joins subwords, and detokenizes tokens from a table that names their language.
    """
    languages = {system.name: system.table and system.table.language for system in systems}
    return {name: Postprocessor.by_language(language) for name, language in languages.items()}


def _read(
    system: System, undo: Postprocessor, references: Sequence[str], reference: str | Path
) -> tuple[list[list[str]], Translations, list[str | None]]:
    """Read a system's translations, and check them against the references.

    Return three values: the text of each run; the translations to store in a table, as tokens if
    the system has tokens; and the S lines in fairseq-generate's output for the first run (None
    where one is missing; [] for other files). ``undo`` turns tokens into text. Messages name
    ``reference``, the file of ``references``. Raise DataError if line counts differ, or subword
    pieces remain.
    """
    names, tokens, sources = list(map(str, system.generated)), None, list[str | None]()
    if system.plain:
        texts = [plain_lines(path) for path in system.generated]
    elif system.table:
        texts = system.table.runs
        numbers = range(1, len(texts) + 1)
        names = [f"{names[0]}, {system.name}, run {number}" for number in numbers]
        tokens = texts if system.table.has_tokens else None
    else:
        outputs = [read_generated(path, len(references)) for path in system.generated]
        tokens = [undo.words(best_hypotheses(output)) for output in outputs]
        sources = [sentence.source for sentence in outputs[0]]
    if tokens is not None:
        texts = [undo.text(lines) for lines in tokens]
    for name, lines in zip(names, texts, strict=True):
        check_translations(lines, name, references, reference)
    language = undo.pipeline.tgt if tokens is not None and undo.pipeline.tokenize else None
    return texts, Translations(tokens is not None, language, tokens or texts), sources


def _shown_sources(output: tuple[Sequence[str | None], Postprocessor, Path]) -> list[str] | None:
    """Return an output's sources, as text if their language is known; None if some are missing."""
    sources, undo, _ = output
    lines = [source for source in sources if source is not None]
    if len(lines) < len(sources):
        return None
    has_language = undo.pipeline.src or not undo.pipeline.tokenize
    return (undo.sources if has_language else undo.words)(lines)


def generation_speed(generated: str | Path) -> float | None:
    """Return the speed in tokens per second that fairseq-generate reports at its end, or None.

    The report is in the file ``generated`` or in the file ``generated`` + ``.log``.
    """
    for path in (Path(generated), Path(f"{generated}.log")):
        if path.is_file():
            speeds = CLOSING.findall(path.read_text(encoding="utf-8", errors="replace"))
            if speeds:
                return float(speeds[-1].replace(",", ""))
    return None


def _facts(system: System) -> dict[str, Any]:
    """Read a system's size, updates and speeds from its files; return fields of :class:`Measured`.

    The number of parameters is the log's, which is exact, or else the checkpoint's. The number of
    updates is the checkpoint's, or else the log's.
    """
    facts: dict[str, Any] = {}
    if not (system.plain or system.table):
        facts["generation_speed"] = generation_speed(system.generated[0])
    if system.checkpoint is not None:
        facts |= asdict(read_size(system.checkpoint))
    if system.log is not None:
        training = read_training(system.log)
        facts |= {"parameters": training.parameters, "training_speed": training.tokens_per_second}
        facts["updates"] = facts.get("updates") or training.updates
    return facts


def _tokenized_scores(
    tokens: Mapping[str, Sequence[Sequence[str]]], reference: str | Path | None
) -> dict[str, float]:
    """Return each system's BLEU, the mean over its runs; {} if ``reference`` is None.

    ``tokens[system]`` has the lines of each run, and ``reference`` is a file, all as tokens.
    """
    if reference is None:
        return {}
    references = plain_lines(reference)
    for name, runs in tokens.items():
        check_counts(runs[0], references, name, reference)
    return {
        name: statistics.fmean(tokenized_bleu(lines, references).value for lines in runs)
        for name, runs in tokens.items()
    }
