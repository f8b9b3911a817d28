"""Score systems without the test sentences whose reference is in the training text."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fairseq_ext.corpora.contamination import EXACT, Match, find, texts
from fairseq_ext.evaluation.score import build_metrics


@dataclass(frozen=True)
class Overlap:
    """The test sentences that are in training text, and the scores on the others.

    Attributes:
        matches: a match for each such sentence.
        scores: mean score of the runs, by system and metric; empty if no sentence is left.
    """

    matches: Sequence[Match]
    scores: Mapping[str, Mapping[str, float]]

    @property
    def exact(self) -> int:
        """The number of sentences that are in the training text word for word."""
        return sum(match.kind == EXACT for match in self.matches)


def measure(
    training: Sequence[Path],
    references: Sequence[str],
    translations: Mapping[str, Sequence[Sequence[str]]],
    tokenizer: str,
    extra_metrics: Sequence[str] = (),
) -> Overlap:
    """Find references in training text, and score the systems on the other sentences.

    Args:
        training: files of plain text in the target language.
        references: references of the test set.
        translations: translations by system and run.
        tokenizer: sacrebleu's tokenizer for BLEU.
        extra_metrics: further metrics, see :func:`~fairseq_ext.evaluation.score.build_metrics`.

    Raises:
        DataError: a file that cannot be read as text.
    """
    matches = find(references, texts(training))
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
