"""Text is split into sentences by the rules of its language, and joined for the other one."""

from collections.abc import Sequence

import pytest

from fairseq_ext.decoding.search import Candidate, Counts, Search
from fairseq_ext.decoding.stream import TextCodec, translations
from fairseq_ext.text.sentences import SentenceSplitter, sentence_splitter
from fairseq_ext.utils.errors import DataError


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
    ],
)
def test_sentences_by_the_library(src: str, line: str, sentences: list[str]):
    pytest.importorskip("sentence_splitter")
    assert sentence_splitter(src, "en").split(line) == sentences


def test_sentences_without_spaces():
    splitter = sentence_splitter("zh", "en")
    assert splitter.split("你好。他说：“再见！”走了？") == ["你好。", "他说：“再见！”", "走了？"]
    assert splitter.split("") == [""]
    assert splitter.join(["Hello.", "", "Bye."]) == "Hello. Bye."
    assert sentence_splitter("ja", "zh-cn").join(["你好。", "再见。"]) == "你好。再见。"


class Upper:
    """Translates to capitals, and to a second best with an exclamation mark."""

    src, tgt, name, limit, limit_name = "de", "en", "upper", 4, "the model takes"
    counts = Counts()

    def lengths(self, sentences: Sequence[str]) -> list[int]:
        return [len(sentence.split()) + 1 for sentence in sentences]

    def translate(
        self, sentences: Sequence[str], numbers: object = None, search: Search | None = None
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


def test_a_long_sentence_is_named_by_its_line():
    stream = translations(["a", "b|c c c c c"], Upper(), CODEC, splitter=SPLITTER)
    with pytest.raises(DataError, match="line 2: 6 source tokens"):
        list(stream)
