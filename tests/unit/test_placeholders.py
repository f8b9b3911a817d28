"""Spans that stay: each is in every translation once, whatever a model makes of the numbers."""

import random
import re
import time
from collections.abc import Sequence
from typing import Any
from xml.etree import ElementTree

import pytest

from fairseq_ext.decoding import stream
from fairseq_ext.decoding.search import Candidate, Search
from fairseq_ext.decoding.stream import TextCodec
from fairseq_ext.model import find_model
from fairseq_ext.text.placeholders import YEARS, keeper
from fairseq_ext.text.sentences import SentenceSplitter
from tests.support.harness import error_line

NAMES = keeper([r"\{\w*\}", r"%[sd]"], markup=False)
MARKUP = keeper([], markup=True)
ADDRESSES = keeper([], markup=False, addresses=True)
EVERYTHING = keeper([r"\{\w+\}"], markup=True, addresses=True)


class Careless:
    """A translator that repeats, drops, doubles and swaps words, and writes in capitals."""

    limit, limit_name, search = 100, "the model takes", Search()

    def __init__(self, carelessness: float) -> None:
        self._random, self._carelessness = random.Random(3), carelessness

    def lengths(self, sentences: Sequence[str]) -> list[int]:
        return [len(sentence.split()) + 1 for sentence in sentences]

    def translate(self, sentences: Sequence[str], *_: object) -> list[list[Candidate]]:
        return [[Candidate(self._changed(sentence), -1.0)] for sentence in sentences]

    def _changed(self, sentence: str) -> str:
        words = [word.upper() for word in sentence.split()]
        if self._random.random() < self._carelessness:
            change = self._random.choice(["drop", "double", "swap"])
            place = self._random.randrange(len(words))
            if change == "swap":
                self._random.shuffle(words)
            elif change == "double":
                words.insert(place, words[place])
            else:
                del words[place]
        return " ".join(words)


def spaced(line: str) -> str:
    """Tokens of a line: punctuation apart."""
    return " ".join(re.findall(r"\w+|[^\w\s]", line))


def joined(line: str) -> str:
    return re.sub(r" (?=[.,])", "", line)


CODEC = TextCodec(spaced, joined)


def translated(lines: list[str], finder: object, carelessness: float = 0, **how: Any) -> list[str]:
    translations = stream.translations(lines, Careless(carelessness), CODEC, keeper=finder, **how)
    return [translation.text for translation in translations]


@pytest.mark.parametrize(
    ("line", "text", "ends"),
    [
        ("<p>I saw {name}</p>", "I saw 2012", ("<p>", "</p>")),
        ("<p> a@b.org <b>knows</b></p>", "2012 knows", ("<p> ", "</b></p>")),
        ("{a} and <b>{b}</b>.", "2012 and 2013.", ("", "")),
        ("<i><b>{a}</b> {b}</i> ", "2012", ("<i><b>", "</i> ")),
        ("<b>{a}</b> knows", "2012 knows", ("", "")),
        ("<p><b title='x'>{a}</b> knows</p>", "2012 knows", ("<p>", "</p>")),
        ("<p>We know <b>{a}</b></p>", "We know 2012", ("<p>", "</p>")),
        ("<br/>{a}😀<br/>", "2012", ("<br/>", "<br/>")),
        ("<p>😀<b>Yes</b></p>", "Yes", ("<p>😀<b>", "</b></p>")),
    ],
)
def test_names_at_the_edge_of_a_sentence_belong_to_it(line: str, text: str, ends: tuple) -> None:
    """Only the tags around them do not."""
    masked = EVERYTHING.mask(line)
    assert (" ".join(masked.text.split()), masked.ends) == (text, ends)


@pytest.mark.parametrize(
    ("finder", "line", "expected"),
    [
        (NAMES, "the {house} is old.", "THE {house} IS OLD."),
        (NAMES, "a{b}c d", "A{b}C D"),
        (NAMES, "{a} {b} of %s, {c}", "{a} {b} OF %s, {c}"),
        (NAMES, "{a}", "{a}"),
        (NAMES, "no names in 2012", "NO NAMES IN 2012"),
        (NAMES, "{a} in 2012", "{a} IN 2012"),
        (NAMES, "", ""),
        (NAMES, "  ", ""),
        (ADDRESSES, "see https://x.org/a_(b)?c=1, or ask.", "SEE https://x.org/a_(b)?c=1, OR ASK."),
        (ADDRESSES, "(www.x.co.uk/é) is at x.org.", "( www.x.co.uk/é ) IS AT x.org."),
        (ADDRESSES, "write to ana.b+c@x-y.co.uk.", "WRITE TO ana.b+c@x-y.co.uk."),
        (ADDRESSES, "😀 I like it 👍🏽 1️⃣", "😀 I LIKE IT 👍🏽 1️⃣"),
        (ADDRESSES, "❤️ you 🇪🇸 too.", "❤️ YOU 🇪🇸 TOO."),
        (ADDRESSES, "etc.Then a@b, 3.1", "ETC. THEN A @ B, 3. 1"),
        (ADDRESSES, "連絡はana@x.orgまで", "連絡はana@x.orgまで"),
        (MARKUP, "<p>a <b>big</b> house.</p>", "<p>A <b>BIG</b> HOUSE.</p>"),
        (MARKUP, "a &lt; b<br/>", "A &lt; B<br/>"),
        (MARKUP, '<a k="x>y" t=\'"\'>a</a>, <!-- b -->', '<a k="x>y" t=\'"\'>A</a>, <!-- b -->'),
        (MARKUP, "<p></p>", "<p></p>"),
        (MARKUP, "  <li> one </li>", "  <li> ONE </li>"),
        (MARKUP, "a < b & c", "A &lt; B &amp; C"),
    ],
)
def test_spans_stay(finder: object, line: str, expected: str):
    assert translated([line], finder) == [expected]


def test_a_mark_that_the_model_adds_does_not_touch_a_url():
    without, with_mark = ADDRESSES.mask("see x.org"), ADDRESSES.mask("see x.org.")
    assert without.restored("mira 2012?") == "mira x.org"
    assert without.restored("2012, mira.") == "x.org, mira."
    assert with_mark.restored("mira 2012 。") == "mira x.org 。"


def test_a_span_is_not_split_into_sentences():
    def split(line: str) -> list[str]:
        return re.split(r"(?<=\.) ", line)

    finder, splitter = keeper([r"\[.*?\]"], markup=False), SentenceSplitter(split, "|")
    lines = translated(["see [a. B]. c <b. d"], finder, splitter=splitter)
    assert lines == ["SEE [a. B].|C < B.|D"]


def test_addresses_are_found_in_linear_time():
    texts = ("a", "a.", "a-", "a@", "www.", "http://(", "(", "a.com", "x@a.", "1", "https://(a")
    start = time.process_time()
    for text in texts:
        ADDRESSES.mask(text * (500_000 // len(text)))
    assert time.process_time() - start < 30  # 4 on a fast machine; hours if it were quadratic


class LosesNumbersAtFirst(Careless):
    """A translator whose best translation has no numbers, but whose second best has them."""

    def translate(self, sentences: Sequence[str], _: object, search: Search) -> list:
        texts = [[re.sub("[0-9]+", "", text.upper()), text.upper()] for text in sentences]
        return [[Candidate(text, -1.0) for text in row[: search.nbest]] for row in texts]


def test_a_later_translation_of_the_beam_that_has_every_span():
    options = {"search": Search(beam=2, nbest=1), "keeper": MARKUP}
    translator = LosesNumbersAtFirst(0)
    (line,) = stream.translations(["a <b>red</b> house"], translator, CODEC, **options)
    assert line.texts == ("A <b>RED</b> HOUSE",)


def test_every_span_is_there_once_whatever_the_model_does():
    numbers = random.Random(5)
    spans = [f"{{n{number}}}" for number in range(60)]
    lines = []
    for _ in range(2000):
        words = numbers.choices(["red", "house,", "2012", "is", "x."], k=numbers.randint(1, 9))
        for span in spans[: numbers.choice([1, 2, 3, 25])]:
            words.insert(numbers.randint(0, len(words)), span)
        lines.append(" ".join(words))
    for line, translation in zip(lines, translated(lines, NAMES, 0.5), strict=True):
        assert sorted(re.findall(r"\{\w*\}", translation)) == sorted(re.findall(r"\{\w*\}", line))


def element(numbers: random.Random, depth: int) -> str:
    text = numbers.choice(["red house ", "is", " 2013, ", " &amp; x.", ""])
    if depth == 0:
        return text
    name = numbers.choice(["b", "i", "a"])
    inner = "".join(element(numbers, depth - 1) for _ in range(numbers.randint(0, 2)))
    return f'{text}<{name} k="a>b">{inner}</{name}>{numbers.choice(["<br/>", " end", "."])}'


def test_markup_stays_well_formed_whatever_the_model_does():
    numbers = random.Random(7)
    lines = [f"<p>{element(numbers, numbers.randint(1, 3))}</p>" for _ in range(2000)]
    for line, translation in zip(lines, translated(lines, MARKUP, 0.5), strict=True):
        before, after = ElementTree.fromstring(line), ElementTree.fromstring(translation)
        assert [tag.tag for tag in after.iter()] == [tag.tag for tag in before.iter()]


def test_a_shipped_model_copies_the_numbers():
    """So that most sentences are translated at once, not in parts."""
    name = find_model.shipped()[0]
    assert len(YEARS) > 9
    import fairseq_ext

    model = fairseq_ext.load(find_model.resolved(find_model.SHIPPED / name))
    line = NAMES.mask("I saw the {animal} in the house.")
    assert line.restored(model.translate(line.text).text) is not None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--keep", "a", "--keep", "("], "`--keep (` is not a regular expression"),
        (["--keep", "x*"], "`--keep x*` must not match an empty text"),
        (["--keep-addresses", "--constraints"], "`--keep-addresses` does not go with `--constr"),
    ],
)
def test_options_that_are_refused(options: list[str], message: str):
    name = find_model.shipped()[0]
    assert message in error_line("translate", "Hello.", "--model", name, *options)
