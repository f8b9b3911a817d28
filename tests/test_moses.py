"""Moses' rules tried only where they can match: the same results as the library's own."""

from __future__ import annotations

import sys
from random import Random

import pytest
from harness import REPO
from sacremoses import MosesPunctNormalizer, MosesTokenizer

sys.path.append(str(REPO / "preprocess"))

import moses

LETTERS = [*"  aZß1２.,.'\"`’‘„“”«»\u00a0%:;!?()[]-–—…´ºº¿&<>|\r\t@nccm٣٠$"]
WORDS = ["..", "...", "Mr.", "No. 5", "z.B.", "DOTMULTI", "DOTDOTMULTI", "''", "´´", "d'", "'s"]
WORDS += [" (", ") .", "u.s.", '."', '."a', ',"', "«\u00a0", "nº\u00a0", "1\u00a02", "5 %", "1,5"]


def lines(seed: int, number: int) -> list[str]:
    """Lines in which the rules meet each other."""
    draw = Random(seed)
    return ["".join(draw.choices(LETTERS + WORDS, k=draw.randrange(25))) for _ in range(number)]


@pytest.mark.parametrize("language", ["en", "de", "fr", "cs", "vi", "zh"])
def test_results_are_the_librarys(language: str) -> None:
    normaliser, tokeniser = moses.Normaliser(language), moses.Tokeniser(language)
    stock = MosesPunctNormalizer(language, perl_parity=True), MosesTokenizer(language)
    for number, line in enumerate(lines(len(language), 600)):
        assert normaliser.normalize(line) == stock[0].normalize(line), repr(line)
        how = {"aggressive_dash_splits": number % 2 == 0, "escape": number % 3 > 0}
        assert tokeniser.tokenize(line, **how) == stock[1].tokenize(line, **how), repr(line)


@pytest.mark.parametrize("language", ["en", "de", "fr", "cs", "vi"])
def test_every_rule_of_the_normaliser_has_its_character(language: str) -> None:
    rules = MosesPunctNormalizer(language, perl_parity=True).substitutions
    assert all(moses.needed(pattern, new) for pattern, new in rules)


@pytest.mark.parametrize(
    ("pattern", "need"),
    [
        ("a|b", ""),
        ("ab?", ""),
        ("x*", ""),
        (r"\d", ""),
        ("[ab]", ""),
        ("^", ""),
        ("a{0}", ""),
        ("(a|b)", ""),
        ("((a)b)", ""),
        (r"\(", "("),
        (r"\(a\)", "a"),
        (r"(a|b)\?", "?"),
        ("y+", "y"),
        ("z+", "zz"),  # replaced by z
    ],
)
def test_doubtful_rules_are_always_tried(pattern: str, need: str) -> None:
    assert moses.needed(pattern, "z") == need
