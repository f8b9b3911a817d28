"""Minimum Bayes risk decoding: choose the candidate that agrees best with all others.

Section 4.3 of the BMT paper gives the equation, after Freitag et al. 2022::

    h_MBR = argmax_{h ∈ H} (1 / |H|) Σ_{y ∈ H} u(h, y)

The candidates H are samples of the model; a sentence sampled twice is in H twice, and the sum
includes y = h. The utility u(h, y) says how good h would be if y were the reference: sacrebleu's
chrF or BLEU of the sentence, COMET in its own Python environment, or any metric of ``mbrs``.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairseq_ext.decoding.stream import Translation
from fairseq_ext.evaluation import tables
from fairseq_ext.evaluation.neural import KIND, NeuralMetric
from fairseq_ext.evaluation.outputs import Sentence, read_generated
from fairseq_ext.evaluation.score import build_bleu, format_score, read_sources
from fairseq_ext.text.bleu_tokenizers import USUAL
from fairseq_ext.text.generated import Postprocessor
from fairseq_ext.utils.errors import ConfigError, DataError, wrong_value
from fairseq_ext.utils.literals import literal_or

Array = NDArray[np.float64]

OUTSIDE = "mbrs:"
SOURCELESS = {"bertscore", "bleu", "bleurt", "chrf", "ter"}
"""Metrics of mbrs 0.1.8 that take a source and ignore it."""


# ---- utilities -----------------------------------------------------------------------------------


class SacrebleuUtility:
    """The utility chrF2 or BLEU, computed by sacrebleu for each sentence, from 0 to 100."""

    reads_source = False

    def __init__(self, name: str, tokenizer: str = USUAL) -> None:
        from sacrebleu.metrics import CHRF

        is_bleu = name == "bleu"
        metric = build_bleu(tokenizer, effective_order=True) if is_bleu else CHRF()
        metric.sentence_score("a", ["a"])  # puts the number of references into the signature
        self.name = "BLEU" if is_bleu else "chrF2"
        self.signature = str(metric.get_signature())
        self.score = metric.sentence_score

    def matrix(self, candidates: Sequence[str], source: str | None = None) -> Array:
        """Score each of ``H`` candidates (row) with each as the reference (column): ``[H, H]``."""
        return np.array([[self.score(h, [y]).score for y in candidates] for h in candidates])


class MbrsUtility:
    """A metric of the library ``mbrs`` as utility; negated if smaller values are better."""

    def __init__(self, name: str, options: Mapping[str, str]) -> None:
        try:
            from mbrs.metrics import Metric, get_metric
        except ImportError as error:
            raise ConfigError(
                f"`--utility {OUTSIDE}{name}` needs the library mbrs, which cannot be imported "
                f"({error}): `pip install 'fairseq-ext[mbr]'`, preferably into its own environment."
            ) from error
        try:
            kind = get_metric(name)
        except KeyError:
            raise ConfigError(f"`--utility {OUTSIDE}{name}`: mbrs has no such metric.") from None
        if not issubclass(kind, Metric):
            raise ConfigError(
                f"`--utility {OUTSIDE}{name}` uses no reference, but MBR compares candidates "
                "with each other; choose a metric that compares two texts."
            )
        try:
            # such as 8 or True; other text stays text
            values = {key: literal_or(text, text) for key, text in options.items()}
            configuration = kind.Config(**values)
        except TypeError as error:
            raise ConfigError(f"`--mbrs-option` does not fit `{name}`: {error}.") from None
        self._load = partial(kind, configuration)
        self.reads_source = name not in SOURCELESS
        self.sign = 1.0 if kind.HIGHER_IS_BETTER else -1.0
        self.name, self.signature = f"{OUTSIDE}{name}", str(configuration)

    @cached_property
    def metric(self) -> Any:
        """The metric; its model is loaded at the first use, after all checks of the samples."""
        return self._load()

    def matrix(self, candidates: Sequence[str], source: str | None) -> Array:
        """Score each of ``H`` candidates (row) with each as the reference (column): ``[H, H]``."""
        texts = list(candidates)
        scores = self.metric.pairwise_scores(texts, texts, source)
        return self.sign * scores.double().cpu().numpy()


Utility = SacrebleuUtility | NeuralMetric | MbrsUtility
"""A utility u; larger values are better. ``reads_source`` says whether u needs the source text.
``name`` and ``signature`` are reported. ``matrix`` computes u(candidate i, candidate j) for all
pairs of ``H`` candidates: ``[H, H]``."""


def is_neural(name: str) -> bool:
    """Return whether a utility, such as ``comet:MODEL``, is a neural metric."""
    return name.partition(":")[0] == KIND


def build_utility(
    name: str, options: Mapping[str, str] | None = None, tokenizer: str = USUAL, **process: Any
) -> Utility:
    """Build the utility ``chrf``, ``bleu``, ``comet:MODEL`` or ``mbrs:METRIC``.

    Args:
        options: fields of the configuration of an mbrs metric, as text.
        tokenizer: sacrebleu's tokenizer, for BLEU.
        process: arguments of :class:`~fairseq_ext.evaluation.neural.NeuralMetric`, for COMET.

    Raises:
        ConfigError: the utility does not exist or cannot be used, or ``options`` do not fit it.
    """
    if name.startswith(OUTSIDE):
        return MbrsUtility(name.removeprefix(OUTSIDE), options or {})
    if options:
        raise ConfigError(f"`--mbrs-option` goes with `--utility mbrs:METRIC`, not with `{name}`.")
    if is_neural(name):
        return NeuralMetric(name, **process)
    if name not in ("chrf", "bleu"):
        raise wrong_value("--utility", "chrf, bleu, comet:MODEL or mbrs:METRIC", name)
    return SacrebleuUtility(name, tokenizer)


# ---- decisions -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Candidates:
    """The samples of one sentence, and its source (None if the utility does not read it)."""

    index: int
    source: str | None
    texts: tuple[str, ...]


@dataclass(frozen=True)
class Decision:
    """The candidate chosen for a sentence, its utility, and the mean utility of all candidates."""

    index: int
    text: str
    candidate: int  # index of the chosen candidate among those of the sentence
    expected_utility: float  # mean utility of the chosen candidate, over all as references
    mean_utility: float  # the expected utility of a random candidate
    distinct: int  # how many different candidates there were


def read_candidates(
    paths: Sequence[str | Path],
    count: int,
    undoing: Postprocessor,
    *,
    source: str | Path | None = None,
    reads_source: bool = False,
) -> list[Candidates]:
    """Read the ``count`` samples of every sentence from outputs of fairseq-generate.

    ``undoing`` turns their tokens into text. If ``reads_source``, sources are read from the file
    ``source`` or, if this is None, from the S lines of the outputs. Raise DataError if a sentence
    has fewer or more samples, or if the files do not belong together.
    """
    files = [read_generated(path) for path in paths]
    _check_together(paths, files)
    sources: Sequence[str | None] = [None] * len(files[0])
    if reads_source:
        lines = [sentence.source for sentence in files[0]]
        sources = read_sources(source, len(lines), (lines, undoing, paths[0]))
    candidate_sets = []
    for text, *parts in zip(sources, *files, strict=True):
        texts = [hypothesis.text for part in parts for hypothesis in part.hypotheses]
        first = parts[0]
        if len(texts) != count:
            raise DataError(
                f"Sentence {first.index} has {len(texts)} candidates instead of {count} in "
                f"{', '.join(f'`{path}`' for path in paths)}; generate with `--sampling --beam K "
                f"--nbest K`, where the K of all files add up to {count}."
            )
        texts = undoing.text(undoing.words(texts))
        candidate_sets.append(Candidates(first.index, text, tuple(texts)))
    return candidate_sets


def _check_together(paths: Sequence[str | Path], files: Sequence[list[Sentence]]) -> None:
    """Raise DataError if two files have different sources, or the same samples.

    fairseq-generate writes the same samples twice if it runs twice with the same ``--seed``.
    """
    samples: dict[tuple, str | Path] = {}
    for path, sentences in zip(paths, files, strict=True):
        if [entry.source for entry in sentences] != [entry.source for entry in files[0]]:
            raise DataError(
                f"`{path}` and `{paths[0]}` have different sources; all files must be samples for "
                "the same corpus."
            )
        key = tuple(h.text for entry in sentences for h in entry.hypotheses)
        if key in samples:
            raise DataError(
                f"`{path}` has the same samples as `{samples[key]}`; give each run of "
                "fairseq-generate another `--seed`."
            )
        samples[key] = path


def random_subset(candidates: Candidates, size: int, seed: int) -> tuple[int, ...]:
    """Draw ``size`` of a sentence's candidates at random; return their indices, ascending.

    fairseq sorts samples by score, so the first ``size`` would not be random. With the same
    ``seed``, a larger subset contains all smaller ones.
    """
    order = np.random.default_rng([seed, candidates.index]).permutation(len(candidates.texts))
    return tuple(sorted(order[:size].tolist()))


def decide(candidates: Candidates, utility: Utility, indices: Sequence[int]) -> Decision:
    """Choose the candidate with the best mean utility, the first of several equally good ones.

    Only the candidates at ``indices`` take part, both as hypotheses and as references.
    """
    counts = Counter(candidates.texts[index] for index in indices)
    texts = list(counts)
    weights = np.array([*counts.values()]) / len(indices)
    expected = np.array(utility.matrix(texts, candidates.source)) @ weights  # type: ignore[arg-type]
    best = int(np.argmax(expected))
    return Decision(
        index=candidates.index,
        text=texts[best],
        candidate=next(i for i in indices if candidates.texts[i] == texts[best]),
        expected_utility=float(expected[best]),
        mean_utility=float(weights @ expected),
        distinct=len(texts),
    )


def as_dict(decisions: Sequence[Decision], utility: Utility, **settings: Any) -> dict[str, Any]:
    """Return the chosen hypotheses, their utilities and the ``settings`` as a dict for JSON."""
    return {
        "utility": f"{utility.name}|{utility.signature}",
        **settings,
        "expected_utility": _mean(decisions, "expected_utility"),
        "mean_utility": _mean(decisions, "mean_utility"),
        "sentences": [asdict(decision) for decision in decisions],
    }


def as_table(decisions: Sequence[Decision], utility: Utility) -> str:
    """Summarize decisions as a table of counts, mean utilities and the utility's signature."""
    name = utility.name
    rows = (
        ("sentences", f"{len(decisions)}"),
        ("distinct candidates", f"{_mean(decisions, 'distinct'):.1f} per sentence"),
        ("utility of a random candidate", format_score(name, _mean(decisions, "mean_utility"))),
        ("utility of the chosen one", format_score(name, _mean(decisions, "expected_utility"))),
        ("utility", f"{name}|{utility.signature}"),
    )
    return tables.aligned(rows)


def _mean(decisions: Sequence[Decision], name: str) -> float:
    return float(np.mean([getattr(decision, name) for decision in decisions]))


def keep_best(translations: Iterable[Translation], utility: Utility) -> Iterator[Translation]:
    """Keep only the sample of each line that :func:`decide` chooses; lines without samples stay."""
    for translation in translations:
        if not translation.candidates:
            yield translation
            continue
        samples = Candidates(translation.line, translation.source, tuple(translation.texts))
        decision = decide(samples, utility, range(len(translation.texts)))
        yield replace(
            translation,
            texts=[decision.text],
            candidates=[translation.candidates[decision.candidate]],
        )
