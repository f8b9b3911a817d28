"""Moses' rules print what the scripts print; sentences of a text."""

import dataclasses
import re
import unicodedata
from collections.abc import Sequence
from random import Random
from typing import NamedTuple

import pytest

from fairseq_ext.decoding.search import Candidate, Counts, Search
from fairseq_ext.decoding.stream import TextCodec, translations
from fairseq_ext.text import cleaning, moses, subwords
from fairseq_ext.text.pipeline import Pipeline
from fairseq_ext.text.sentences import SentenceSplitter, sentence_splitter
from fairseq_ext.utils.errors import DataError
from tests.support.harness import REPO, command, write_lines
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
    normalize, tokenizer = moses.normalizer(language), moses.Tokenizer(language)
    stock = ScriptNormalizer(language), ScriptTokenizer(language)
    for number, line in enumerate(lines(len(language), 600)):
        if "１" not in line and "２" not in line:  # digits to the library, not to the script
            assert normalize(line) == stock[0].normalize(line), repr(line)
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
        assert moses.detokenizer(language)(tokens) == sentence.detokenized
    assert not any(unicodedata.category(token[0]) in ("Mn", "Mc", "Cf") for token in tokens.split())
    escaped, detokenize = tokenizer.tokenize(sentence.text), moses.detokenizer(language)
    assert detokenize(escaped) == detokenize(tokens)


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


@pytest.mark.parametrize(
    ("language", "step", "line", "expected"),
    [
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
    ],
)
def test_where_the_library_differs_the_scripts_are_followed(language, step, line, expected):
    """They were run on these lines."""
    steps = {"normalize": moses.normalizer, "tokenize": lambda code: moses.tokenizer(code).tokenize}
    assert steps[step](language)(line) == expected


def test_rules_are_left_out_only_where_their_character_is_missing() -> None:
    for language in ("en", "de", "fr", "cs", "vi"):
        assert all(moses.required_text(*rule) for rule in moses.rules_of(language))
    doubtful = ("a|b", "ab?", "x*", r"\d", "[ab]", "^", "a{0}", "(a|b)", "((a)b)")
    assert not any(moses.required_text(pattern, "z") for pattern in doubtful)
    needs = {r"\(": "(", r"\(a\)": "a", r"(a|b)\?": "?", "y+": "y", "z+": "zz"}
    assert {pattern: moses.required_text(pattern, "z") for pattern in needs} == needs


@pytest.mark.parametrize("language", ["en", "en-GB", "EN_us", "eng", "eng_Latn"])
def test_a_region_has_the_rules_of_its_language(language: str) -> None:
    line = "I don't know John's car."
    tokens = moses.tokenizer(language).tokenize(line, escape=False)
    assert tokens == "I don 't know John 's car ."
    assert moses.detokenizer(language)(tokens) == line


LANGUAGES = sorted({sentence.language for sentence in SENTENCES})


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


@pytest.mark.parametrize("name", ["bpe", "sentencepiece-unigram", "tokenizers"])
def test_text_comes_back(name: str, learnt: dict[str, Pipeline]) -> None:
    """Moses' tokens come back; what they make of a text, its scripts say above."""
    plain = learnt[name]
    encode, decode = plain.encoder(), plain.decoder()
    for row in SENTENCES:
        text = cleaning.plain(row.text)
        assert decode(encode(text)) == text, row.language
        for options in ({"escape": True}, {"aggressive": True}):
            tokenized = dataclasses.replace(plain, src=row.language, tokenize=True, **options)
            tokens = tokenized.words()(text)
            assert tokenized.pieces.decode(tokenized.encoder()(text)) == tokens, row.language


def test_a_reference_scores_100_against_itself(tmp_path):
    assert len(LANGUAGES) >= 60
    for language in LANGUAGES:
        texts = [cleaning.plain(row.text) for row in SENTENCES if row.language == language]
        reference = write_lines(tmp_path / f"ref.{language}", texts)
        words = ("--ref", reference, "--hyp", reference, "-l", f"en-{language}")
        printed = command("score", *words)
        assert re.search(r"BLEU.* 100\.0", printed), f"{language}: {printed}"


# Text is split into sentences by the rules of its language, and joined for the other one
@pytest.mark.parametrize(
    ("src", "line", "sentences"),
    [
        ("en", "Mr. Smith left. Did he? Yes!", ["Mr. Smith left.", "Did he?", "Yes!"]),
        ("es", "Hola. ¿Cómo está el Sr. Gómez?", ["Hola.", "¿Cómo está el Sr. Gómez?"]),
        ("de", "Am 3. Mai kam er. Gut.", ["Am 3. Mai kam er.", "Gut."]),
        ("xx", "One. Two.", ["One.", "Two."]),
        ("en", "", [""]),
        ("en", "One. " + "a" * 2000, ["One. " + "a" * 2000]),
        ("hi", "यह एक है। “यह दूसरा है।” और।", ["यह एक है।", "“यह दूसरा है।”", "और।"]),
        ("am", "ይህ ነው። ያ ነው፧", ["ይህ ነው።", "ያ ነው፧"]),
        ("my", "ဒါက တစ်။ ဒါက နှစ်။", ["ဒါက တစ်။", "ဒါက နှစ်။"]),
        ("ur", "یہ ایک ہے۔ یہ دو ہے؟", ["یہ ایک ہے۔", "یہ دو ہے؟"]),
        ("hy", "Սա է։ Նա է։", ["Սա է։", "Նա է։"]),
        ("km", "គាត់ទិញបន្លែ ។ល។ គាត់មក។ ចប់៕", ["គាត់ទិញបន្លែ ។ល។ គាត់មក។", "ចប់៕"]),
        ("bo", "ང་བོད་པ་ཡིན། །ཁོ་འགྲོ།", ["ང་བོད་པ་ཡིན། །", "ཁོ་འགྲོ།"]),
        ("en", "  One.   Two. Three. ", ["  ", "One.   ", "Two.", "Three."]),
        ("en", " 2) One. Two.", [" 2)", "One.", "Two."]),
        ("en", "- One.", ["-", "One."]),
        ("zh", "• 你好。　　再见。", ["•", "你好。　　", "再见。"]),
        ("en", "-5 degrees - or b) less. -", ["-5 degrees - or b) less. -"]),
    ],
)
def test_sentences_by_the_library(src: str, line: str, sentences: list[str]):
    pytest.importorskip("sentence_splitter")
    assert sentence_splitter(src, "en").split(line) == sentences


def test_sentences_without_spaces():
    splitter = sentence_splitter("zh", "en")
    assert splitter.split("你好。他说：“再见！”走了？") == ["你好。", "他说：“再见！”", "走了？"]
    assert splitter.split("") == [""]
    assert splitter.join(["你好。", "", "再见。"], ["Hello.", "", "Bye."]) == "Hello. Bye."
    assert sentence_splitter("ja", "zh-cn").join("ab", ["你好。", "再见。"]) == "你好。再见。"


class Upper:
    """Translates to capitals, and to a second best with an exclamation mark."""

    src, tgt, name, limit, limit_name = "de", "en", "upper", 4, "the model takes"
    counts, search = Counts(), Search()

    def lengths(self, sentences: Sequence[str]) -> list[int]:
        return [len(sentence.split()) + 1 for sentence in sentences]

    def translate(
        self, sentences: Sequence[str], numbers: object = None, search: object = None
    ) -> list[list[Candidate]]:
        return [
            [Candidate(line.upper(), -1.0 * len(line)), Candidate(f"{line.upper()}!", -9.0)]
            for line in sentences
        ]


CODEC = TextCodec(str.strip, str.strip)
SPLITTER = SentenceSplitter(lambda line: line.split("|"), " ")


def test_sentences_of_a_line_are_translated_alone():
    lines = ["a|b b", "", "c"]
    results = list(translations(lines, Upper(), CODEC, buffer=2, splitter=SPLITTER))
    assert [result.line for result in results] == [1, 2, 3]
    assert [result.source for result in results] == lines
    assert [list(result.texts) for result in results] == [["A B B", "A! B B!"], [""], ["C", "C!"]]
    (best, _) = results[0].candidates
    assert best.tokens == "A B B"
    assert best.score == pytest.approx((-1 * 2 - 3 * 3) / 5)
    assert not results[1].candidates


def test_the_layout_of_lines_stays():
    pytest.importorskip("sentence_splitter")
    lines = ["  a) One two.   Three.  No more.", "\t- One.", "1. One. Two.", "*  (3)", " - "]
    results = list(translations(lines, Upper(), CODEC, splitter=sentence_splitter("en", "de")))
    assert [result.text for result in results] == [
        "  a) ONE TWO.   THREE.  NO MORE.", "\t- ONE.", "1. ONE. TWO.", "*  (3)", " -",
    ]  # fmt: skip


def test_a_line_without_a_visible_character_stays_empty():
    lines = ["a", "\u200b", "\u00ad \u00ad", "", " \ufeff", "b\u200b"]
    encode = Pipeline("en", "en", clean=True).encoder()
    results = list(translations(lines, Upper(), TextCodec(encode, str), buffer=4))
    assert [result.text for result in results] == ["A", "", "", "", "", "B"]
    assert [bool(result.candidates) for result in results] == [True, *[False] * 4, True]


def test_numbers_of_list_items_are_copied():
    lines = ["1.|a|<b>- (2.1)</b>|b", "1.", "1.|2.", "3|4.5|c."]
    results = list(translations(lines, Upper(), CODEC, splitter=SPLITTER))
    assert [list(result.texts) for result in results] == [
        ["1. A <b>- (2.1)</b> B", "1. A! <b>- (2.1)</b> B!"],
        ["1.", "1.!"],
        ["1. 2."],
        ["3 4.5 C.", "3! 4.5! C.!"],
    ]
    assert [len(result.candidates) for result in results] == [2, 2, 0, 2]
    assert results[0].candidates[0].tokens == "A B"


def test_a_long_sentence_is_named_by_its_line():
    stream = translations(["a", "b|c c c c c"], Upper(), CODEC, splitter=SPLITTER)
    with pytest.raises(DataError, match="line 2: 6 source tokens"):
        list(stream)
