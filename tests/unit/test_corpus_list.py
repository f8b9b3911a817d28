"""Several corpora by weight and licence, rules that leave pairs out, and the parts of a job."""

import gzip
import json
import os
import re
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import regex

from fairseq_ext.corpora import pair_texts, rules, streams
from fairseq_ext.corpora.official import do_once
from fairseq_ext.corpora.streams import ordered_map, raw_pairs
from fairseq_ext.text import cleaning
from fairseq_ext.text.pipeline import Pipeline
from fairseq_ext.utils.errors import FairseqExtError
from tests.support.harness import command, error_line, write_lines

PAIRS = ("corpus", "pairs", "--src-lang", "de", "--tgt-lang", "en")


def pairs(first: int, count: int) -> list[str]:
    return [f"number {n}\tZahl {n}" for n in range(first, first + count)]


def listed(folder: Path) -> Path:
    """Write a list of three corpora, of which the first two share 100 pairs."""
    write_lines(folder / "a.tsv", pairs(0, 300))
    columns = [line.split("\t") for line in pairs(200, 500)]
    write_lines(folder / "b.de", [target for _, target in columns])
    write_lines(folder / "b.en", [source for source, _ in columns])
    entries = [
        {"name": "a", "pairs": "a.tsv", "columns": [2, 1], "licence": "CC0", "weight": 2},
        {"name": "b", "source": "b.de", "target": "b.en", "licence": "CC BY 4.0", "weight": 0.5},
        {"name": "c", "pairs": "c.csv", "header": True, "licence": "unknown", "weight": 2.25},
    ]
    rows = [f'"Zahl {n}";number {n};more' for n in range(700, 800)]
    write_lines(folder / "c.csv", ["german;english;", *rows])
    path = folder / "list.json"
    path.write_text(json.dumps(entries))
    return path


def lines(folder: Path, split: str) -> list[tuple[str, str]]:
    sides = [(folder / f"{split}.{side}").read_text().splitlines() for side in ("de", "en")]
    return [*zip(*sides, strict=True)]


@pytest.mark.system
def test_corpora_are_mixed_by_weight_with_their_licences(tmp_path: Path) -> None:
    path = listed(tmp_path)
    words = ("--corpora", path, "--valid", 10, "--test", 10, "--out", tmp_path / "out")
    output = command(*PAIRS, *words)
    assert "a: 300 pairs read, " in output
    assert "weight 2; licence: CC0\n" in output
    held = {*lines(tmp_path / "out", "valid"), *lines(tmp_path / "out", "test")}
    assert len(held) == 20
    counts = Counter(lines(tmp_path / "out", "train"))
    assert not {*counts} & held
    copies = {"a": Counter(), "b": Counter(), "c": Counter()}
    for pair, count in counts.items():
        copies[origin(pair)][count] += 1
    held_counts = Counter(map(origin, held))
    assert copies["a"] == {2: 300 - held_counts["a"]}  # those that stand in both are the first's
    assert copies["b"].keys() == {1}
    assert copies["b"][1] == pytest.approx((400 - held_counts["b"]) / 2, abs=40)
    assert copies["c"].keys() == {2, 3}
    assert sum(copies["c"].values()) == 100 - held_counts["c"]
    assert copies["c"][3] == pytest.approx((100 - held_counts["c"]) / 4, abs=15)
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert [corpus["licence"] for corpus in manifest["corpora"]] == ["CC0", "CC BY 4.0", "unknown"]
    assert [counts["read"] for counts in manifest["report"]["texts"]] == [300, 500, 100]
    trained = [counts["train"] for counts in manifest["report"]["texts"]]
    assert trained == [
        sum(n * pair_count for n, pair_count in histogram.items()) for histogram in copies.values()
    ]
    assert manifest["report"]["splits"]["train"] == sum(trained)
    assert manifest["report"]["dropped"] == {"repeated pair": 100}
    names = [entry["name"] for entry in manifest["inputs"]]
    assert names == ["a/a.tsv", "b/b.de", "b/b.en", "c/c.csv"]
    # the same in other parts
    part_options = ("--parts", tmp_path / "parts", "--part-lines", 77)
    command(*PAIRS, *words[:-1], tmp_path / "parted", *part_options)
    for split in ("train", "valid", "test"):
        assert lines(tmp_path / "parted", split) == lines(tmp_path / "out", split)
    # other weights make another corpus
    path.write_text(path.read_text().replace('"weight": 0.5', '"weight": 0.25'))
    assert "has a corpus already" in error_line(*PAIRS, *words)
    command(*PAIRS, *words, "--overwrite")
    line = error_line(*PAIRS, "--corpora", path, "--as", "train", "--out", tmp_path)
    assert "`--as` writes every pair once; leave the weights of the corpora out." in line


def origin(pair: tuple[str, str]) -> str:
    number = int(pair[0].split()[1])
    return "a" if number < 300 else "b" if number < 700 else "c"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": ""}, "corpus 1: `name`: String should have at least 1 character."),
        ({"licence": None}, "corpus 1: `licence`: Input should be a valid string."),
        ({"weight": 0}, "corpus 1: `weight`: Input should be greater than 0."),
        ({"weight": True}, "corpus 1: `weight`: Input should be a valid number."),
        ({"columns": [1]}, "corpus 1: `columns`: List should have at least 2 items"),
        ({"pairs": None}, "corpus 1: `pairs`: Input should be a valid string."),
        ({"source": None}, "corpus 1: `source`: Input should be a valid string."),
        ({"url": "x"}, "corpus 1: `url`: Extra inputs are not permitted."),
        ({"source": "b.de"}, "corpus 1 needs `pairs`, or `source` and `target`."),
        ({"pairs": "none.tsv"}, "none.tsv does not exist"),
        ({"name": "b"}, "must have at least one corpus, and no name twice."),
        ([], "must have at least one corpus, and no name twice."),
        ("x", "Input should be a valid list. It must be a JSON list such as [{"),
        ([1], "corpus 1: Input should be a valid dictionary"),
    ],
)
def test_lists_that_cannot_be(change: object, message: str, tmp_path: Path) -> None:
    path = listed(tmp_path)
    entries = json.loads(path.read_text())
    if isinstance(change, dict):
        entries[0] |= change
    else:
        entries = change
    path.write_text(json.dumps(entries))
    with pytest.raises(FairseqExtError, match=re.escape(message)):
        pair_texts.read_list(path)


@pytest.mark.parametrize(
    ("rule", "source", "target", "reason"),
    [
        ("length=2:3", "a b", "a b c", None),
        ("length=2:3", "a", "a b", "fewer than 2 words"),
        ("length=2:3", "a b", "a b c d", "more than 3 words"),
        ("ratio=1.5", "a b", "a b c", None),
        ("ratio=1.5", "a b c d", "a b", "lengths differ more than 1.5-fold"),
        ("ratio=1.5", "I borrowed three books", "我昨天借了三本书。", None),  # 2 characters a word
        ("ratio=1.5", "a b", "我昨天在图书馆借了三本书。", "lengths differ more than 1.5-fold"),
        ("length=2:4", "ロシア連邦", "รัสเซีย แลนด์", None),
        ("length=1:3", "a", "我昨天借了三本书", "more than 3 words"),
        ("letters=0.5", "ab 12", "é!", None),
        ("letters=0.9", "हिन्दी में", "မြန်မာ", None),  # vowels and tones are marks
        ("letters=0.5", "ab 123", "abc", "less than 0.5 letters"),
        ("different", "a", "A", None),
        ("different", "a", "a", "both sides are the same"),
        ("different", "", "a", "empty side"),
        ("token=1000", "x" * 1000, "y", None),
        ("token=1000", "x y", "a " + "y" * 1001, "token of more than 1000 characters"),
    ],
)
def test_reasons(rule: str, source: str, target: str, reason: str | None) -> None:
    checks = rules.checks((rule,), ("de", "en"))
    assert rules.why_left_out(source, target, checks) == reason


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("length=3", "`--rule length` must be MIN:MAX in words, such as 1:100, but is `3`"),
        ("length=0:2", "MIN:MAX"),
        ("ratio=0.9", "`--rule ratio` must be a number of at least 1, such as 3, but is `0.9`"),
        ("ratio=nan", "`--rule ratio` must be a number of at least 1"),
        ("ratio=x", "`--rule ratio` must be a number of at least 1"),
        ("letters=2", "`--rule letters` must be a share from 0 to 1"),
        ("different=1", "`--rule different` must be given without a value"),
        ("shorter", "is not known; there are different, language, length, letters,"),
    ],
)
def test_rules_that_cannot_be(rule: str, message: str) -> None:
    with pytest.raises(FairseqExtError, match=re.escape(message)):
        rules.checks((rule,), ("de", "en"))


@pytest.mark.system
def test_pairs_that_a_rule_leaves_out_are_counted(tmp_path: Path) -> None:
    text = write_lines(tmp_path / "pairs", ["a\tb", "a 1\tb", "c d\te", "f\tf", "g\t2"])
    words = (text, "--rule", "letters=0.9", "--rule", "different", "--valid", 0, "--test", 0)
    output = command(*PAIRS, *words, "--out", tmp_path / "out")
    assert "dropped, less than 0.9 letters: 2\n" in output
    assert "dropped, both sides are the same: 1\n" in output
    assert lines(tmp_path / "out", "train") == [("a", "b"), ("c d", "e")]
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["options"]["rule"] == ["letters=0.9", "different"]


def test_sentences_of_another_language_are_left_out() -> None:
    pytest.importorskip("py3langid")
    checks = rules.checks(("language",), ("de", "en"))
    german, english = "Das ist ein kurzer deutscher Satz.", "This is a short English sentence."
    assert rules.why_left_out(german, english, checks) is None
    assert rules.why_left_out(english, english, checks) == "source is not de"
    assert rules.why_left_out(german, german, checks) == "target is not en"
    regional = rules.checks(("language",), ("de-AT", "en_GB"))
    assert rules.why_left_out(german, english, regional) is None
    with pytest.raises(FairseqExtError, match=r"Unknown language code.*ISO 639-1"):
        rules.checks(("language=de:xx",), ("de", "en"))


# Parts of preparing a corpus: reading, rules, processes, steps, and the folder of a job
def test_forms_of_text(tmp_path: Path) -> None:
    (tmp_path / "t.de").write_text(
        "<url>http://x</url>\n<keywords>a, b</keywords>\n<talkid>1</talkid>\n<title>Titel</title>\n"
        "<description>Über\u2028dies</description>\n Ein Satz. \n\n<url>y</url>\nZwei\r\n"
    )
    (tmp_path / "t.en").write_text("<title>A\n<talkid>\nB\nC\nD\nE\n<keywords>\n")
    sides = zip(*raw_pairs(tmp_path / "t.de", tmp_path / "t.en", "tagged"), strict=True)
    assert [*sides] == [("Titel", "Über\u2028dies", " Ein Satz. ", "", "Zwei"), tuple("ABCDE")]
    (tmp_path / "s.de").write_text(
        '<?xml version="1.0"?>\n<doc docid="1">\n<title>nicht</title>\n<p>\n'
        '<seg id="1"> Ja &amp; nein </seg>\n</p><p><seg id="12">Zwei</seg></p>\n</doc>\n'
    )
    (tmp_path / "s.en").write_text('<hl>\n<seg id="1">A\n</hl>\n<seg id="2">B’s</seg>\n')
    pairs_read = [*raw_pairs(tmp_path / "s.de", tmp_path / "s.en", "segments")]
    assert pairs_read == [("Ja &amp; nein", "A"), ("Zwei", "B’s")]


def test_sides_that_are_damaged_or_unequal_are_named(tmp_path: Path) -> None:
    packed = tmp_path / "a.gz"
    packed.write_bytes(gzip.compress(b"\xef\xbb\xbfone\ntw\xffo\n"))
    write_lines(tmp_path / "b", ["eins", "zwei"])
    expected = [("one", "eins"), (None, "zwei")]
    assert list(raw_pairs(packed, tmp_path / "b", "lines")) == expected
    packed.write_bytes(gzip.compress(b"one\n" * 9)[:-4])
    write_lines(tmp_path / "3", ["1", "2", "3"])
    for other, message in (
        ("a.gz", "is damaged"),
        ("3", r"3` has 3 sentences, `.*b` has 2;"),
    ):
        with pytest.raises(ValueError, match=message):
            list(raw_pairs(tmp_path / other, tmp_path / "b", "lines"))


def test_cleaning_is_that_of_the_moses_script() -> None:
    """Compare with the script's conditions for all small lengths and near the limits."""
    checks = rules.checks(("length=1:6", "ratio=1.5"), ("en", "de"))
    for first in range(9):
        for second in range(9):
            pair = " ".join("x" * first), " ".join("y" * second)
            keep = all(1 <= n <= 6 for n in (first, second)) and not (
                first / second > 1.5 or second / first > 1.5
            )
            assert (rules.why_left_out(*pair, checks) is None) == keep
    assert rules.why_left_out("x " * 9 + "x", "y", rules.checks((), ("en", "de"))) is None


def test_unprintable_characters_become_spaces() -> None:
    text = "a\u200bb\u00adc\ufeff d\x07\ue000e\u0378"
    assert cleaning.printable(text) == regex.sub(r"\p{C}", " ", text)
    assert cleaning.printable("Grüße, 你好 – “x”") == "Grüße, 你好 – “x”"


def test_a_set_that_is_not_cleaned_must_be_whole() -> None:
    pipeline = Pipeline("en", "de", straight=True, tokenize=True, escape=True)
    work = streams.Encode(pipeline, words=True, must_keep="tst2010")
    ((fate, source, _),) = work([("It’s", "x " * 400)])
    assert (fate, source) == ("kept", "It &apos;s")
    for pair, reason in ((("a", " "), "empty side"), ((None, "b"), "not UTF-8")):
        with pytest.raises(ValueError, match=f"tst2010, sentence 8: {reason}"):
            list(work([("a", "b"), pair], 7))


def double(number: int) -> int:
    if number == 13:
        os.kill(os.getpid(), signal.SIGKILL)
    return 2 * number


@pytest.mark.parametrize("workers", [1, 2])
def test_work_stays_in_order_and_does_not_run_ahead(workers: int) -> None:
    drawn = []

    def numbers() -> Iterator[int]:
        for number in range(14, 64):
            drawn.append(number)
            yield number

    for place, result in enumerate(ordered_map(double, numbers(), workers)):
        assert result == 2 * (14 + place)
        assert len(drawn) - place <= 3 * workers


def test_a_killed_worker_is_an_error_and_not_a_hang() -> None:
    with pytest.raises(ValueError, match="a worker process was killed"):
        list(ordered_map(double, range(40), 2))


def test_steps_are_done_once_unless_settings_or_files_change(tmp_path: Path) -> None:
    done = []

    def step(settings: dict, fail: bool = False) -> dict:
        def work() -> dict:
            done.append(settings)
            write_lines(tmp_path / "out", ["text"])
            if fail:
                raise ValueError("stop")
            return {"count": len(done)}

        return do_once(tmp_path, "a", settings, [tmp_path / "out"], work)

    with pytest.raises(ValueError, match="stop"):
        step({"x": 1}, fail=True)
    assert [step({"x": 1})["count"] for _ in range(2)] == [2, 2]
    assert step({"x": 2})["count"] == 3
    write_lines(tmp_path / "out", ["text", "more"])
    assert step({"x": 2})["count"] == 4
    (tmp_path / "out").unlink()
    assert step({"x": 2})["count"] == 5
