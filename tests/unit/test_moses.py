"""Moses' rules print what the scripts print, and text of each language comes back from pieces."""

import dataclasses
import re
import unicodedata
from random import Random
from typing import NamedTuple

import pytest

from fairseq_ext import cli
from fairseq_ext.text import cleaning, moses, subwords
from fairseq_ext.text.pipeline import Pipeline
from tests.support.harness import REPO, write_lines
from tests.support.moses_scripts import ScriptNormalizer, ScriptTokenizer

LETTERS = [*"  aZß1２.,.'\"`’‘„“”«»\u00a0%:;!?()[]-–—…´ºº¿&<>|\r\t@nccm٣٠$"]
WORDS = ["..", "...", "Mr.", "No. 5", "z.B.", "''", "´´", "d'", "'s"]
WORDS += [" (", ") .", "u.s.", '."', '."a', ',"', "«\u00a0", "nº\u00a0", "1\u00a02", "5 %", "1,5"]


class Sentence(NamedTuple):
    """A row of ``languages.tsv``; Moses' columns are empty if it splits marks from letters."""

    language: str
    text: str
    tokens: str
    detokenized: str


LANGUAGES_TABLE = REPO / "tests" / "support" / "languages.tsv"
ROWS = [line for line in LANGUAGES_TABLE.read_text("utf-8").splitlines() if line[0] != "#"]
SENTENCES = [Sentence(*row.split("\t")) for row in ROWS[1:]]


def lines(seed: int, number: int) -> list[str]:
    """Lines in which the rules meet each other."""
    draw = Random(seed)
    return ["".join(draw.choices(LETTERS + WORDS, k=draw.randrange(25))) for _ in range(number)]


@pytest.mark.parametrize("language", ["en", "de", "fr", "cs", "vi", "zh"])
def test_results_are_those_of_the_scripts(language: str) -> None:
    normalizer, tokenizer = moses.Normalizer(language), moses.Tokenizer(language)
    stock = ScriptNormalizer(language), ScriptTokenizer(language)
    for number, line in enumerate(lines(len(language), 600)):
        if "１" not in line and "２" not in line:  # digits to the library, not to the script
            assert normalizer.normalize(line) == stock[0].normalize(line), repr(line)
        aggressive, escape = number % 2 == 0, number % 3 > 0
        expected = stock[1].tokenize(
            line, aggressive_dash_splits=aggressive, escape=escape, return_str=True
        )
        tokens = tokenizer.tokenize(line, aggressive=aggressive, escape=escape)
        assert tokens == expected.strip(), repr(line)


@pytest.mark.parametrize("sentence", SENTENCES, ids=lambda sentence: sentence.language)
def test_tokens_and_text_are_those_of_the_scripts(sentence: Sentence) -> None:
    """Where the scripts split marks from their letters, no token begins with one."""
    language, tokenizer = sentence.language, moses.tokenizer(sentence.language)
    tokens = tokenizer.tokenize(sentence.text, escape=False)
    if sentence.tokens:
        assert tokens == sentence.tokens
        assert moses.detokenize(tokens, language) == sentence.detokenized
    assert not any(unicodedata.category(token[0]) in ("Mn", "Mc", "Cf") for token in tokens.split())
    escaped = tokenizer.tokenize(sentence.text)
    assert moses.detokenize(escaped, language) == moses.detokenize(tokens, language)


@pytest.mark.parametrize(
    ("language", "text", "tokens"),
    [
        ("hi", "क्षत्रिय, हिन्दी।", "क्षत्रिय , हिन्दी ।"),
        ("fa", "می\u200cخواهم بروم.", "می\u200cخواهم بروم ."),
        ("yo", "Ọmọ náà ń jẹ̀bà!", "Ọmọ náà ń jẹ̀bà !"),
        ("th", "เขาอ่านหนังสือที่บ้าน!", "เขาอ่านหนังสือที่บ้าน !"),
        ("en", "Hi 👨\u200d👩\u200d👧, 👋🏽 🇪🇸 ❤️!", "Hi 👨\u200d👩\u200d👧 , 👋🏽 🇪🇸 ❤️ !"),
        ("tet", "la'o di'ak", "la'o di'ak"),
    ],
)
def test_marks_and_joiners_stay_with_their_letters(language: str, text: str, tokens: str) -> None:
    assert moses.tokenizer(language).tokenize(text, escape=False) == tokens
    assert Pipeline(language, "en", clean=True, normalize=True).words()(text) == text


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
def test_where_the_library_differs_the_scripts_are_followed(language, step, line, expected):
    if step == "normalize":
        assert moses.normalizer(language).normalize(line) == expected
    else:
        assert moses.tokenizer(language).tokenize(line) == expected


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
    tokens = moses.tokenizer(language).tokenize(line, escape=False)
    assert tokens == "I don 't know John 's car ."
    assert moses.detokenize(tokens, language) == line


LANGUAGES = sorted({sentence.language for sentence in SENTENCES})


def texts(language: str) -> list[str]:
    return [cleaning.plain(row.text) for row in SENTENCES if row.language == language]


@pytest.fixture(scope="module")
def learnt(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Pipeline]:
    """Pieces of each kind, learnt from all sentences and from their tokens."""
    pytest.importorskip("sentencepiece")
    folder = tmp_path_factory.mktemp("learnt")
    tokens = [
        moses.tokenizer(row.language).tokenize(row.text, aggressive=True) for row in SENTENCES
    ]
    text = write_lines(folder / "text", [*(row.text for row in SENTENCES), *tokens])
    pipelines = {}
    for name, size in (("bpe", 400), ("sentencepiece-unigram", 2500), ("tokenizers", 2500)):
        kind, files = subwords.learn(name, [text], size, folder)
        pipelines[name] = Pipeline("en", "en", clean=True, subwords=kind, files=tuple(files))
    return pipelines


def test_there_are_sixty_languages() -> None:
    assert len(LANGUAGES) >= 60


@pytest.mark.parametrize("name", ["bpe", "sentencepiece-unigram", "tokenizers"])
def test_text_comes_back(name: str, learnt: dict[str, Pipeline]) -> None:
    """Moses' tokens come back; what they make of a text, its scripts say in `test_moses.py`."""
    plain = learnt[name]
    encode, decode = plain.encoder(), plain.decoder()
    for row in SENTENCES:
        text = cleaning.plain(row.text)
        assert decode(encode(text)) == text, row.language
        for options in ({"escape": True}, {"aggressive": True}):
            tokenized = dataclasses.replace(plain, src=row.language, tokenize=True, **options)
            tokens = tokenized.words()(text)
            assert tokenized.joiner()(tokenized.encoder()(text)) == tokens, row.language


def test_a_reference_scores_100_against_itself(tmp_path, capsys):
    for language in LANGUAGES:
        reference = write_lines(tmp_path / f"ref.{language}", texts(language))
        words = ["score", "--ref", str(reference), "--hyp", str(reference)]
        with pytest.raises(SystemExit) as stopped:
            cli.main([*words, "-l", f"en-{language}"])
        assert stopped.value.code == 0
        printed = capsys.readouterr().out
        assert re.search(r"BLEU.* 100\.0", printed), f"{language}: {printed}"
