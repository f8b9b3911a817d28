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


def best_agreeing(found: Iterable[Translation], utility: Utility) -> Iterator[Translation]:
    """Each line with one translation left, its score still the model's.

    Args:
        found: lines with all their samples; one that was left out stays as it is.
        utility: u(h, y), which sees the text of samples and source.
    """
    for one in found:
        if not one.candidates:
            yield one
            continue
        samples = Candidates(one.line, one.source, tuple(one.texts))
        decision = decide(samples, utility, range(len(one.texts)))
        yield replace(one, texts=[decision.text], candidates=[one.candidates[decision.candidate]])
