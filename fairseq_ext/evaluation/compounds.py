"""Tokenised BLEU with compounds split, as the literature on WMT14 English–German reports it.

Vaswani et al. (2017) and those who compare with them put hyphenated words of translation and
reference apart before they count: ``Rad-Tour`` becomes ``Rad ##AT##-##AT## Tour``. That raises BLEU
by some half a point, so such a figure stands beside other such figures only. It is done for
English–German alone; nobody does it for English–French.

    python -m fairseq_ext.evaluation.compounds --hyp hyp.tok.de --ref ref.tok.de
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from fairseq_ext import files, text
from fairseq_ext.errors import DataError, FairseqExtError
from fairseq_ext.evaluation.outputs import read_lines
from fairseq_ext.evaluation.score import Score, as_table, tokenized_bleu

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


def add_score(score: Score, path: Path) -> None:
    """Put the score into a file that ``fairseq-ext score --json`` wrote, in place of a former one.

    Raises:
        DataError: the file holds no scores.
    """
    try:
        scores = json.loads(path.read_text(encoding="utf-8"))["scores"]
        others = [one for one in scores if one["name"] != score.name]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"`{path}` must be a file of `fairseq-ext score --json`, but is not ({error})."
        ) from None
    with files.atomic_write(path) as file:
        json.dump({"scores": [*others, score.as_dict()]}, file, ensure_ascii=False, indent=2)
        file.write("\n")


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    options = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    add = options.add_argument
    add("--hyp", type=Path, required=True, help="translations, as tokens without subword pieces")
    add("--ref", type=Path, required=True, help="reference tokens")
    add("--json", type=Path, help="add the score to this file of `fairseq-ext score --json`")
    return options


def main() -> None:
    """Run the command; a user's error ends it with one line and status 1."""
    args = parser().parse_args()
    try:
        for path in (args.hyp, args.ref):
            text.check_text(path, empty_lines=True, max_tokens=None)
        score = compound_bleu(read_lines(args.hyp), read_lines(args.ref))
        if args.json:
            add_score(score, args.json)
    except FairseqExtError as error:
        sys.exit(f"compounds: error: {error}")
    print(as_table([score]))


if __name__ == "__main__":
    main()
