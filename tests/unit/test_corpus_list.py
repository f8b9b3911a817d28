"""Several corpora at once, by weight and with their licences; and rules that leave pairs out."""

import json
import sys
from collections import Counter
from pathlib import Path

import pytest

from fairseq_ext.corpora import pair_texts, rules
from fairseq_ext.utils.errors import FairseqExtError
from tests.support.harness import refused, run, write_lines

LANGS = ("--src-lang", "de", "--tgt-lang", "en")


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
        {"name": "c", "pairs": "c.tsv", "licence": "unknown", "weight": 2.25},
    ]
    write_lines(folder / "c.tsv", [f"Zahl {n}\tnumber {n}\tmore" for n in range(700, 800)])
    path = folder / "list.json"
    path.write_text(json.dumps(entries))
    return path


def command(folder: Path, *words: object, ok: bool = True):
    path = f"{folder}:{':'.join(sys.path)}"
    return run("fairseq-ext", "corpus", "pairs", *LANGS, *words, ok=ok, PYTHONPATH=path)


def lines(folder: Path, split: str) -> list[tuple[str, str]]:
    sides = [(folder / f"{split}.{side}").read_text().splitlines() for side in ("de", "en")]
    return [*zip(*sides, strict=True)]


@pytest.mark.system
def test_corpora_are_mixed_by_weight_with_their_licences(tmp_path: Path) -> None:
    words = ("--corpora", listed(tmp_path), "--valid", 10, "--test", 10, "--out", tmp_path / "out")
    output = command(tmp_path, *words).stdout
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
    assert [corpus["read"] for corpus in manifest["corpora"]] == [300, 500, 100]
    trained = [corpus["train"] for corpus in manifest["corpora"]]
    assert trained == [
        sum(n * pair_count for n, pair_count in histogram.items()) for histogram in copies.values()
    ]
    assert manifest["report"]["splits"]["train"] == sum(trained)
    assert manifest["report"]["dropped"] == {"repeated pair": 100}
    names = [entry["name"] for entry in manifest["inputs"]]
    assert names == ["a/a.tsv", "b/b.de", "b/b.en", "c/c.tsv"]
    # the same in other parts
    part_options = ("--parts", tmp_path / "parts", "--part-lines", 77)
    command(tmp_path, *words[:-1], tmp_path / "parted", *part_options)
    for split in ("train", "valid", "test"):
        assert lines(tmp_path / "parted", split) == lines(tmp_path / "out", split)


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
        ({"url": "x"}, "corpus 1: `url`: Extra inputs are not permitted."),
        ({"source": "b.de"}, "corpus 1 needs `pairs`, or `source` and `target`."),
        ({"pairs": "none.tsv"}, "none.tsv does not exist"),
        ({"name": "b"}, "must have a corpus, and no two of one name."),
        ([], "must have a corpus, and no two of one name."),
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
    with pytest.raises(FairseqExtError) as caught:
        pair_texts.read_list(path)
    assert message in str(caught.value)


@pytest.mark.system
def test_commands_that_cannot_be(tmp_path: Path) -> None:
    path = listed(tmp_path)
    done = command(tmp_path, "--corpora", path, "--as", "train", "--out", tmp_path, ok=False)
    refused(done, "`--as` writes every pair once; leave the weights of the corpora out.")


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
    ],
)
def test_reasons(rule: str, source: str, target: str, reason: str | None) -> None:
    checks = rules.checks((rule,), ("de", "en"), None)
    assert rules.why_left_out(source, target, checks) == reason


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("length=3", "`--rule length` must be MIN:MAX in words, such as 1:100, but is `3`."),
        ("length=3:2", "MIN:MAX"),
        ("ratio=0.9", "`--rule ratio` must be a number from 1 on, such as 3, but is `0.9`."),
        ("ratio=nan", "`--rule ratio` must be a number from 1 on"),
        ("ratio=x", "`--rule ratio` must be a number from 1 on"),
        ("letters=2", "`--rule letters` must be a share from 0 to 1"),
        ("different=1", "`--rule different` must be given without a value"),
        ("shorter", "is not known; there are different, language, length, letters,"),
    ],
)
def test_rules_that_cannot_be(rule: str, message: str) -> None:
    with pytest.raises(FairseqExtError) as caught:
        rules.checks((rule,), ("de", "en"), None)
    assert message in str(caught.value)


@pytest.mark.system
def test_pairs_that_a_rule_leaves_out_are_counted(tmp_path: Path) -> None:
    text = write_lines(tmp_path / "pairs", ["a\tb", "a 1\tb", "c d\te", "f\tf", "g\t2"])
    words = (text, "--rule", "letters=0.9", "--rule", "different", "--valid", 0, "--test", 0)
    output = command(tmp_path, *words, "--out", tmp_path / "out").stdout
    assert "dropped, less than 0.9 letters: 2\n" in output
    assert "dropped, both sides are the same: 1\n" in output
    assert lines(tmp_path / "out", "train") == [("a", "b"), ("c d", "e")]
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["options"]["rule"] == ["letters=0.9", "different"]


def test_sentences_of_another_language_are_left_out() -> None:
    pytest.importorskip("py3langid")
    checks = rules.checks(("language",), ("de", "en"), None)
    german, english = "Das ist ein kurzer deutscher Satz.", "This is a short English sentence."
    assert rules.why_left_out(german, english, checks) is None
    assert rules.why_left_out(english, english, checks) == "source is not de"
    assert rules.why_left_out(german, german, checks) == "target is not en"
    regional = rules.checks(("language",), ("de-AT", "en_GB"), None)
    assert rules.why_left_out(german, english, regional) is None
    with pytest.raises(FairseqExtError, match=r"Unknown language code.*ISO 639-1"):
        rules.checks(("language=de:xx",), ("de", "en"), None)
