"""Score parts of a test set, count faulty translations, and find where two systems differ most.

:func:`break_down` scores each kind of sentence, such as those of 11 to 20 words or those with a
digit. :func:`measure_overlap` scores the sentences whose reference is not in the training text.
"""

import re
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fairseq_ext.corpora import contamination
from fairseq_ext.evaluation.score import build_metrics, count_units

LENGTHS = (10, 20, 30)  # bounds in words of the reference; doubled for characters
RARITIES = (0, 9, 99)  # bounds for the number of training lines with the reference's rarest word
_REPEATED = re.compile(r"(?<!\S)(\S+(?: \S+){0,3})(?: \1){2,}(?!\S)")


@dataclass(frozen=True)
class Kind:
    """A kind of test sentences, such as those with a digit, and each system's chrF2 on them."""

    name: str  # such as "11 to 20 words"
    sentences: int  # number of test sentences of this kind
    scores: Mapping[str, float]  # chrF2 on these sentences by system, averaged over its runs


@dataclass(frozen=True)
class Breakdown:
    """Each system's chrF2 by kind of sentence, and its percentage of faulty translations.

    A translation is faulty if it is empty, copies the source, has ``<unk>``, or has a phrase of one
    to four words three times in a row. A fault that the reference also has is not counted.
    """

    kinds: Sequence[Kind]  # kinds that have sentences; a sentence may be of several kinds
    faults: Mapping[str, Mapping[str, float]]  # percentage of translations, by fault and system


def break_down(
    references: Sequence[str],
    texts: Mapping[str, Sequence[Sequence[str]]],
    sources: Sequence[str] | None = None,
    training: Iterable[str] | None = None,
) -> Breakdown:
    """Compute each system's chrF2 by kind of sentence, and its percentage of faulty translations.

    ``texts[system]`` has a list of translations for each run (training). :func:`kinds_of` lists the
    kinds, and explains ``training``. Without ``sources``, copies of the source are not counted.
    """
    from sacrebleu import CHRF

    scorer = CHRF(references=[list(references)])
    counts = {
        name: [np.array(scorer._extract_corpus_statistics(run, None)) for run in runs]
        for name, runs in texts.items()
    }

    def score(name: str, rows: Sequence[int]) -> float:
        sums = [run[rows].sum(axis=0).tolist() for run in counts[name]]
        return statistics.fmean(scorer._compute_score_from_stats(total).score for total in sums)

    faults: dict[str, dict[str, float]] = {}
    known_sources: Sequence[str | None] = sources or [None] * len(references)
    for name, runs in texts.items():
        counted: Counter[str] = Counter()
        for run in runs:
            for text, reference, source in zip(run, references, known_sources, strict=True):
                counted.update(_faults(text, reference, source))
        for fault, count in counted.items():
            faults.setdefault(fault, {})[name] = 100 * count / (len(runs) * len(references))
    return Breakdown(
        [
            Kind(kind, len(rows), {name: score(name, rows) for name in texts})
            for kind, rows in kinds_of(references, sources, training).items()
            if rows
        ],
        faults,
    )


def _faults(text: str, reference: str, source: str | None) -> dict[str, bool]:
    """Return by name whether a translation has each of the faults of :class:`Breakdown`."""
    repeats = _REPEATED.search(text) and not _REPEATED.search(reference)
    faults = {
        "unknown words": "<unk>" in text and "<unk>" not in reference,
        "words three times in a row": bool(repeats),
    }
    if source is not None:
        copied = text.casefold() == source.casefold() != reference.casefold()
        faults["copies of the source"] = copied
    faults["no translation"] = not text.strip() and bool(reference.strip())
    return faults


def kinds_of(
    references: Sequence[str],
    sources: Sequence[str] | None = None,
    training: Iterable[str] | None = None,
) -> dict[str, list[int]]:
    """Sort test sentences into kinds; return the numbers, from 0, of each kind's sentences.

    A sentence may be of several kinds:

    - by length: its reference has 0 to 10, 11 to 20, 21 to 30, or more than 30 words. In a text
      without spaces, characters are counted instead, and the bounds are twice as large.
    - by its reference's rarest word: the number of lines of ``training`` with this word is 0, 1 to
      9, 10 to 99, or at least 100. Without ``training``, or in a text without spaces, there are no
      such kinds.
    - with a number: its reference has a digit.
    - with a name: its reference has a capitalized word after the first word, and the source has
      this word, too. Without ``sources``, the source is not checked.
    """
    lengths, unit = count_units(references)
    factor = 1 if unit == "words" else 2
    kinds = _by_bounds(lengths, [factor * bound for bound in LENGTHS], f"{{}} {unit}")
    if training is not None and unit == "words":
        form = "rarest word in {} training lines"
        kinds |= _by_bounds(_rarities(references, training), RARITIES, form)
    numbers = range(len(references))
    kinds["with a number"] = [i for i in numbers if re.search(r"\d", references[i])]
    shared = references if sources is None else sources
    kinds["with a name"] = [
        i for i in numbers if _names(references[i]).intersection(re.findall(r"\w+", shared[i]))
    ]
    return kinds


def _names(sentence: str) -> set[str]:
    """Return the capitalized words of a sentence after its first word."""
    return {word for word in re.findall(r"(?<=\S )\w+", sentence) if word[0].isupper()}


def _by_bounds(values: Sequence[int], bounds: Sequence[int], form: str) -> dict[str, list[int]]:
    """Group sentences by their ``values``, such as lengths; return sentence numbers by group name.

    ``bounds`` has the largest value of each group but the last. ``form`` is the pattern of the
    names: ``{} words`` gives names such as ``11 to 20 words``.
    """
    firsts = [0, *(bound + 1 for bound in bounds)]
    ranges = [
        f"{first} to {last}" if first < last else f"{last}"
        for first, last in zip(firsts, bounds, strict=False)
    ]
    groups = np.digitize(values, bounds, right=True)
    return {
        form.format(label): np.flatnonzero(groups == group).tolist()
        for group, label in enumerate([*ranges, f"{firsts[-1]} or more"])
    }


def _rarities(references: Sequence[str], training: Iterable[str]) -> list[int]:
    """Count, for each reference, the training lines that have its rarest word; ignore case."""
    words = [set(re.findall(r"\w+", line.lower())) for line in references]
    vocabulary = set().union(*words)
    counts: Counter[str] = Counter()
    for line in training:
        counts.update(vocabulary.intersection(re.findall(r"\w+", line.lower())))
    return [min((counts[word] for word in line), default=0) for line in words]


def most_different(
    first: Sequence[str], second: Sequence[str], references: Sequence[str], count: int = 20
) -> list[tuple[int, float, float]]:
    """Find the sentences in which two systems differ most in chrF2, largest difference first.

    Return at most ``count`` tuples: the number of the sentence, from 0, and the scores of the
    translations ``first`` and ``second``. Sentences with equal translations are left out.
    """
    from sacrebleu import CHRF

    scorer = CHRF()
    scores = [
        (number, *(scorer.sentence_score(line, [reference]).score for line in pair))
        for number, (*pair, reference) in enumerate(zip(first, second, references, strict=True))
        if pair[0] != pair[1]
    ]
    scores.sort(key=lambda entry: -abs(entry[1] - entry[2]))
    return scores[:count]


@dataclass(frozen=True)
class Overlap:
    """The references that are also in the training text, and the scores on all other sentences."""

    matches: Sequence[contamination.Match]  # references equal or nearly equal to a training line
    # Mean score of the runs, by system and metric; empty if no sentence is left.
    scores: Mapping[str, Mapping[str, float]]


def measure_overlap(
    training: Sequence[Path],
    references: Sequence[str],
    translations: Mapping[str, Sequence[Sequence[str]]],
    tokenizer: str,
    extra_metrics: Sequence[str] = (),
) -> Overlap:
    """Find references that are also in the training text; score systems on the other sentences.

    ``training`` names the files of the training text. ``translations[system]`` has a list of
    translations for each run. The other arguments are those of
    :func:`~fairseq_ext.evaluation.score.build_metrics`.
    """
    matches = contamination.find(references, contamination.texts(training))
    numbers = {match.sentence for match in matches}
    rest = [number for number in range(len(references)) if number not in numbers]
    if not rest:
        return Overlap(matches, {})
    scorers = build_metrics([references[number] for number in rest], tokenizer, extra_metrics)
    scores = {
        name: {
            label: statistics.fmean(
                metric.corpus_score([run[number] for number in rest], None).score for run in runs
            )
            for label, metric in scorers.items()
        }
        for name, runs in translations.items()
    }
    return Overlap(matches, scores)
