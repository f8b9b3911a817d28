"""Moses' rules tried only where they can match, and as the scripts where the library differs."""

from __future__ import annotations

from random import Random

import pytest

from fairseq_ext.text import moses
from tests.support.moses_scripts import ScriptNormalizer, ScriptTokenizer

LETTERS = [*"  aZß1２.,.'\"`’‘„“”«»\u00a0%:;!?()[]-–—…´ºº¿&<>|\r\t@nccm٣٠$"]
WORDS = ["..", "...", "Mr.", "No. 5", "z.B.", "DOTMULTI", "DOTDOTMULTI", "''", "´´", "d'", "'s"]
WORDS += [" (", ") .", "u.s.", '."', '."a', ',"', "«\u00a0", "nº\u00a0", "1\u00a02", "5 %", "1,5"]


def lines(seed: int, number: int) -> list[str]:
    """Lines in which the rules meet each other."""
    draw = Random(seed)
    return ["".join(draw.choices(LETTERS + WORDS, k=draw.randrange(25))) for _ in range(number)]


@pytest.mark.parametrize("language", ["en", "de", "fr", "cs", "vi", "zh"])
def test_results_are_those_of_the_scripts(language: str) -> None:
    normalizer, tokenizer = moses.Normalizer(language), moses.Tokenizer(language)
    stock = ScriptNormalizer(language), ScriptTokenizer(language)
    for number, line in enumerate(lines(len(language), 600)):
        assert normalizer.normalize(line) == stock[0].normalize(line), repr(line)
        how = {"aggressive_dash_splits": number % 2 == 0, "escape": number % 3 > 0}
        assert tokenizer.tokenize(line, **how) == stock[1].tokenize(line, **how), repr(line)


# What the scripts of mosesdecoder print, which were run on these lines.
BY_THE_SCRIPTS = [
    ("de", "normalize", 'Er sagte: "Das ist gut."', 'Er sagte: "Das ist gut".'),
    ("vi", "normalize", "Anh nói „vâng.“", 'Anh nói "vâng".'),
    ("vi", "normalize", '"vâng," anh nói', '"vâng", anh nói'),
    ("en", "normalize", 'He said "yes".', 'He said "yes."'),
    ("cs", "normalize", "Řekl „ano.“", 'Řekl "ano."'),
    ("de", "tokenize", "Sie warten auf die Linie A.", "Sie warten auf die Linie A ."),
    ("de", "tokenize", "Linie A. Sie warten.", "Linie A. Sie warten ."),
    ("en", "tokenize", "They live in the U.S.", "They live in the U.S ."),
    ("en", "tokenize", "Mr. Smith knows No. 5 etc.", "Mr. Smith knows No. 5 etc ."),
    ("en", "tokenize", "Wait...", "Wait ..."),
]


@pytest.mark.parametrize(("language", "step", "line", "expected"), BY_THE_SCRIPTS)
def test_where_the_library_differs_the_scripts_are_followed(
    language: str, step: str, line: str, expected: str
) -> None:
    if step == "normalize":
        assert moses.normalizer(language).normalize(line) == expected
    else:
        assert moses.tokenizer(language).tokenize(line, return_str=True) == expected


@pytest.mark.parametrize("language", ["en", "de", "fr", "cs", "vi"])
def test_every_rule_of_the_normalizer_has_its_character(language: str) -> None:
    rules = moses.rules_of(language)
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


@pytest.mark.parametrize("language", ["en", "en-GB", "en_US"])
def test_a_region_has_the_rules_of_its_language(language: str) -> None:
    line = "I don't know John's car."
    tokens = moses.tokenizer(language).tokenize(line, return_str=True, escape=False)
    assert tokens == "I don 't know John 's car ."
    assert moses.detokenize(tokens, language) == line
