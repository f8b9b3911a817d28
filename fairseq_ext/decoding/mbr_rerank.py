"""The sample of each line that agrees best with the others: ``translate --mbr``.

Minimum Bayes risk decoding is :mod:`fairseq_ext.decoding.mbr`; here it reads what
:func:`fairseq_ext.decoding.stream.translations` yields, instead of files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from fairseq_ext.decoding.mbr import Candidates, decide
from fairseq_ext.decoding.mbr_utilities import Utility
from fairseq_ext.decoding.stream import Translation


def best_agreeing(translations: Iterable[Translation], utility: Utility) -> Iterator[Translation]:
    """Keep the best translation of each line by MBR, with the model's score of it.

    Args:
        translations: lines with all their samples; a line that was left out stays as it is.
        utility: u(h, y), which sees the text of samples and source.
    """
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
