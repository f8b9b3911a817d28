"""The corpus from locale data: clean, without leaks, the same for ever, and truly parallel."""

from __future__ import annotations

import cProfile
import hashlib
import json
import pstats
import re
import sys
from collections import defaultdict
from itertools import islice
from pathlib import Path
from random import Random

import pytest

from fairseq_ext.corpora.locale_corpus import corpus, pairs
from fairseq_ext.corpora.locale_inventory import inventory, language, possible_languages
from fairseq_ext.corpora.locale_sentences import CLASHES, usable_kinds
from fairseq_ext.text.cleaning import plain
from tests.support.harness import REPO, run

SCRIPT = REPO / "preprocess" / "locale_corpus.py"
DIRECTIONS = ["en-de", "en-es", "en-fr", "en-vi", "es-en", "fr-de", "vi-fr"]
SMALL = ("--train", 300, "--valid", 50, "--test", 50)


def generate(folder: Path, *options: object, **environment: str) -> dict[str, list[str]]:
    run(sys.executable, SCRIPT, *SMALL, "--out", folder, *options, **environment)
    return {
        path.name: path.read_text(encoding="utf-8").splitlines()
        for path in sorted(folder.iterdir())
    }


def digests(folder: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.iterdir()}


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_sentences_are_clean_unique_and_short(direction):
    found = list(islice(pairs(*direction.split("-")), 800))
    for pair in found:
        for text in (pair.source, pair.target):
            assert text == text.strip()
            assert 1 <= len(text.split()) <= 25
            assert not re.search(
                r"[^\S ]|  |[\x00-\x1f\u00ad\u200b-\u200f\u2028-\u202f\u2060]", text
            )
            assert not re.search(r"[a-z]+-[a-z]+-per-|duration-|\{\d\}|None", text)
    sources = [pair.source.casefold() for pair in found]
    assert len(set(sources)) == len(sources)
    assert sum(len(pair.source.split()) for pair in found) / len(found) > 5


@pytest.mark.parametrize("direction", ["en-de", "fr-en"])
def test_no_phrase_has_two_translations(direction):
    src, tgt = (language(code) for code in direction.split("-"))
    known = inventory(src, tgt)
    kinds, left_out = usable_kinds(known, src, tgt)
    assert not left_out
    translations = defaultdict(set)
    for name, kind in kinds.items():
        rng = Random(3)
        for _ in range(5000 if name == "date" else 500):
            phrase = kind(rng, known)
            translations[plain(phrase(src))].add(plain(phrase(tgt)))
    assert len(translations) > 5000
    assert not {source: ways for source, ways in translations.items() if len(ways) > 1}


# --- Both sides say the same, by parsers written here -------------------------------------------

ENGLISH_MONTHS, GERMAN_MONTHS, ONES, EINER, TENS, ZEHNER = (
    line.split()
    for line in (
        "January February March April May June July August September October November December",
        "Januar Februar März April Mai Juni Juli August September Oktober November Dezember",
        "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen"
        " fifteen sixteen seventeen eighteen nineteen",
        "null ein zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn"
        " fünfzehn sechzehn siebzehn achtzehn neunzehn",
        "twenty thirty forty fifty sixty seventy eighty ninety",
        "zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig",
    )
)


def english_number(words: str) -> int:
    hundreds, _, rest = words.rpartition(" hundred")
    total = 100 * ONES.index(hundreds) if hundreds else 0
    rest = rest.removeprefix(" and ")
    if not rest:
        return total
    if rest in ONES:
        return total + ONES.index(rest)
    ten, _, one = rest.partition("-")
    return total + 20 + 10 * TENS.index(ten) + (ONES.index(one) if one else 0)


def german_number(word: str) -> int:
    hundreds, found, rest = word.partition("hundert")
    total, rest = (100 * EINER.index(hundreds), rest) if found else (0, word)
    rest = rest.removesuffix("s") if rest.endswith("eins") else rest
    if not rest:
        return total
    if rest in EINER:
        return total + EINER.index(rest)
    one, found, ten = rest.partition("und")
    return (
        total + 20 + 10 * ZEHNER.index(ten if found else rest) + (EINER.index(one) if found else 0)
    )


@pytest.fixture(scope="module")
def english_german() -> list[tuple[str, str]]:
    return [(pair.source, pair.target) for pair in islice(pairs("en", "de"), 3000)]


def both(english_german, english: str, german: str) -> list[tuple[re.Match, re.Match]]:
    """Matches of both patterns in the lines where the English one is found."""
    found = []
    for source, target in english_german:
        theirs, ours = list(re.finditer(english, source)), list(re.finditer(german, target))
        assert len(theirs) == len(ours), (source, target)
        found += zip(theirs, ours, strict=True)
    assert len(found) > 100
    return found


def test_dates_agree(english_german):
    months = "|".join(ENGLISH_MONTHS), "|".join(GERMAN_MONTHS)
    english = rf"\b({months[0]}) (\d+), (\d{{4}})"
    german = rf"(?<!\d)(\d+)\. ({months[1]}) (\d{{4}})"
    # Ranges and medium dates shorten the months; "May" cannot be shortened.
    lines = [p for p in english_german if "May" not in p[0] and "–" not in p[0] + p[1]]
    lines = [p for p in lines if not re.search(r"\d\. (März|Juni|Juli) \d", p[1])]
    for en, de in both(lines, english, german):
        assert ENGLISH_MONTHS.index(en[1]) == GERMAN_MONTHS.index(de[2])
        assert (en[2], en[3]) == (de[1], de[3])


def test_times_agree(english_german):
    lines = [p for p in english_german if "–" not in p[0]]
    for en, de in both(lines, r"(\d+):(\d\d) ([AP])M", r"(\d\d):(\d\d)"):
        hour = int(en[1]) % 12 + 12 * (en[3] == "P")
        assert (hour, en[2]) == (int(de[1]), de[2])


def test_percentages_and_number_words_agree(english_german):
    for en, de in both(english_german, r"([\d.]+)%", r"([\d,]+) %"):
        assert en[1] == de[1].replace(",", ".")
    spelt = r"(?<![\d.,])(\d+) \(([a-zäöüß -]+)\)"
    for en, de in both(english_german, spelt, spelt):
        assert int(en[1]) == english_number(en[2]) == german_number(de[2]) == int(de[1])


# --- Languages ----------------------------------------------------------------------------------


def test_what_the_libraries_write_wrong_is_left_out():
    english, vietnamese, spanish = language("en"), language("vi"), language("es")
    kinds, left_out = usable_kinds(inventory(english, vietnamese), english, vietnamese)
    assert "ordinal" in left_out
    assert "ordinal" not in kinds
    assert {"cardinal", "date", "amount"} <= set(kinds)
    assert 45 not in inventory(english, spanish).ordinals  # "quadragésimo"
    assert 80 not in inventory(english, language("fr")).ordinals  # "quatre-vingtsième"
    for pair in islice(pairs("en", "es"), 1500):
        assert not CLASHES["es"].search(pair.target)
        assert not re.search(r"\b(?:January|Mar|April|August|Oct) 1\b", pair.source)  # "1er"
        assert not re.search(r"quadrag|décimo(?:primero|segundo)", pair.target)
    clash = CLASHES["es"]
    assert clash.search("francés y inglés")
    assert clash.search("7 o 8")
    assert clash.search("diez o once")
    assert not clash.search("agua y hielo, 7 o 18")


def test_any_pair_the_libraries_support():
    assert {"en", "de", "es", "fr", "vi", "ru", "ja", "ar"} <= set(possible_languages())
    for direction in ("ru-ar", "ja-pt_BR", "he-hu"):
        found = list(islice(pairs(*direction.split("-")), 20))
        assert len({pair.target for pair in found}) > 15


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"src": "en", "tgt": "tlh"}, r"`tlh`.*possible are .*\bde, en\b.*\bvi\b"),
        ({"src": "sr", "tgt": "en"}, r"`sr`"),
        ({"src": "en", "tgt": "en"}, "the same"),
    ],
)
def test_clear_errors(options, message):
    with pytest.raises(ValueError, match=message):
        pairs(**options)


def test_no_new_sentences_is_an_error_not_a_hang(monkeypatch):
    monkeypatch.setattr("fairseq_ext.corpora.locale_corpus.PATIENCE", 100)
    with pytest.raises(ValueError, match="ask for fewer"):
        list(pairs("en", "vi", max_words=1))


def test_the_work_for_a_pair_is_bounded():
    """Some 700 function calls, a third of a millisecond; a clock would depend on the machine."""
    profile = cProfile.Profile()
    profile.runcall(lambda: list(islice(pairs("en", "de", seed=9), 4000)))
    assert pstats.Stats(profile).total_calls / 4000 < 1400


# --- The command --------------------------------------------------------------------------------


@pytest.mark.system
def test_command_writes_the_same_bytes_again_and_no_leaks(tmp_path):
    first = generate(tmp_path / "1", PYTHONHASHSEED="1")
    generate(tmp_path / "2", PYTHONHASHSEED="2", TZ="Asia/Tokyo", LC_ALL="C")
    assert digests(tmp_path / "1") == digests(tmp_path / "2")
    sizes = {"train": 300, "valid": 50, "test": 50}
    for split, size in sizes.items():
        assert len(first[f"{split}.en"]) == len(first[f"{split}.de"]) == size
    assert not set(first["train.en"]) & set(first["valid.en"] + first["test.en"])
    assert not set(first["valid.en"]) & set(first["test.en"])
    manifest = json.loads("\n".join(first["manifest.json"]))
    written = digests(tmp_path / "1")
    assert manifest["sha256"] == {n: d for n, d in written.items() if n != "manifest.json"}
    assert manifest["options"]["seed"] == 1
    assert manifest["pairs"] == sizes
    other = generate(tmp_path / "1", "--seed", 2)  # over the first
    assert other["test.en"] != first["test.en"]
    assert len(other) == 7, "temporary files are left"


def test_a_larger_training_set_keeps_the_test_set():
    small = corpus("en", "de", {"train": 10, "valid": 10, "test": 10})
    large = corpus("en", "de", {"train": 90, "valid": 10, "test": 10})
    assert small["test"] == large["test"]
    assert small["valid"] == large["valid"]
    assert small["train"] == large["train"][:10]


@pytest.mark.system
def test_command_ends_with_one_line_for_a_users_error(tmp_path):
    (tmp_path / "file").write_text("")
    said = run(sys.executable, SCRIPT, "--tgt", "xx", "--out", tmp_path / "o", ok=False).stderr
    assert said.startswith("locale_corpus: error: language `xx`")
    assert not (tmp_path / "o").exists()
    said = run(sys.executable, SCRIPT, *SMALL, "--out", tmp_path / "file", ok=False).stderr
    assert "locale_corpus: error: cannot use" in said
    assert "Traceback" not in said
