"""Tokenized BLEU with compounds split, as the literature on WMT14 English–German reports it.

Vaswani et al. (2017) and those who compare with them put hyphenated words of translation and
reference apart before they count: ``Rad-Tour`` becomes ``Rad ##AT##-##AT## Tour``. That raises BLEU
by some half a point, so such a figure stands beside other such figures only. It is done for
English–German alone; nobody does it for English–French.

    fairseq-ext score --split-compounds …
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

from fairseq_ext.evaluation.score import Score, tokenized_bleu

COMPOUND_BLEU = "BLEU-tok, compounds split (multi-bleu style, WMT14 En-De only)"
HYPHEN = re.compile(r"(\S)-(\S)")


def split_compounds(tokens: str) -> str:
    """A line of tokens with each hyphen between two characters as a token of its own.

    Matches do not overlap, as in the scripts of the literature: of ``a-b-c``, where one letter
    stands between two hyphens, only the first hyphen is split.
    """
    return HYPHEN.sub(r"\1 ##AT##-##AT## \2", tokens)


def compound_bleu(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """BLEU on tokens, as ``multi-bleu.perl`` computes it, after splitting both sides.

    Raises:
        DataError: unequal numbers of lines, or none.
    """
    sides = ([split_compounds(line) for line in lines] for lines in (hypotheses, references))
    return dataclasses.replace(tokenized_bleu(*sides), name=COMPOUND_BLEU)
