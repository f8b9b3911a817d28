"""Splitting sentence pairs: no leaks, exact sizes, whatever the input's form; clear errors."""

from __future__ import annotations

import gzip
import json
import random
import re
import sys
import zipfile
from pathlib import Path

import pytest

from fairseq_ext.corpora.split_pairs import Report, cleaned, normalized, repeating_side, split
from fairseq_ext.text.pipeline import Pipeline
from fairseq_ext.text.reading import aligned, lines, tab_separated
from tests.support.harness import REPO, run, write_lines

SCRIPT = REPO / "preprocess" / "split_pairs.py"
LANGS = ("--src-lang", "es", "--tgt-lang", "en")


def corpus() -> list[tuple[str, str]]:
    """300 English sentences with one to three Spanish ones; some Spanish ones come twice."""
    rng = random.Random(4)
    return [
        (f"oración {rng.randrange(2000)} .", f"Sentence {number}{'.!?'[way]}")
        for number in range(300)
        for way in range(rng.randint(1, 3))
    ]


def spanish_english(folder: Path) -> Path:
    """As Tatoeba has it: English first, and a column about the authors."""
    return write_lines(folder / "pairs.tsv", [f"{en}\t{es}\tCC-BY" for es, en in corpus()])


def sides(splits: dict, name: str, side: int) -> set[str]:
    return {normalized(pair[side]) for pair in splits[name]}


@pytest.mark.parametrize("key", [0, 1])
@pytest.mark.parametrize("strict", [True, False])
def test_no_key_sentence_is_in_two_splits(key, strict):
    report = Report()
    splits = split(corpus(), valid=20, test=30, key=key, strict=strict, report=report)
    assert (len(splits["valid"]), len(splits["test"])) == (20, 30)
    for one, other in (("train", "valid"), ("train", "test"), ("valid", "test")):
        assert not sides(splits, one, key) & sides(splits, other, key)
    held_out = sides(splits, "valid", 1 - key) | sides(splits, "test", 1 - key)
    leaked = [pair for pair in splits["train"] if normalized(pair[1 - key]) in held_out]
    assert report.leaks["train"] > 0
    assert len(leaked) == (0 if strict else report.leaks["train"])
    kept = sum(map(len, splits.values()))
    assert kept + sum(report.dropped.values()) == len(corpus())
    assert {pair for pairs in splits.values() for pair in pairs} <= set(corpus())


def test_a_sentence_keeps_its_split_whatever_its_company():
    pairs = corpus()
    shuffled = random.Random(1).sample(pairs, len(pairs))
    first = split(pairs, valid=20, test=30, key=1)
    second = split(shuffled, valid=20, test=30, key=1)
    assert {name: sorted(s) for name, s in first.items()} == {
        name: sorted(s) for name, s in second.items()
    }
    assert split(pairs, valid=20, test=30, key=1, salt="2")["test"] != first["test"]
    larger = split(pairs, valid=20, test=60, key=1)
    assert set(first["test"]) < set(larger["test"])


def test_the_side_that_repeats_is_the_key():
    assert repeating_side(corpus()) == 1
    assert repeating_side([(target, source) for source, target in corpus()]) == 0


def test_the_same_sentence_is_one_whatever_case_and_punctuation():
    assert normalized("«Don't  GO!»") == normalized("don t go") == "don t go"
    assert normalized("¿Sí?") != normalized("si")
    assert normalized("कि") != normalized("की")  # vowel signs are no punctuation
    assert normalized("?!") == "?!"


def test_more_held_out_sentences_than_there_are_is_an_error():
    with pytest.raises(
        ValueError, match="more than 300 distinct target sentences, but there are 300"
    ):
        split(corpus(), valid=150, test=150, key=1)


def test_cleaning():
    report = Report()
    pairs = [("a  b", "c\u00a0d"), ("", "x"), ("a b", "c d"), ("1 2 3 4", "x"), ("1 2 3", "x")]
    assert cleaned(pairs, (str, str), 3, report) == [("a b", "c d"), ("1 2 3", "x")]
    assert report.read == 5
    assert report.dropped == {"empty side": 1, "repeated pair": 1, "more than 3 words": 1}
    words = Pipeline("en", "de", clean=True, tokenize=True, lowercase=True).words()
    assert words('Mr. Smith\'s well-known ("old") car.') == (
        'mr. smith \'s well-known ( " old " ) car .'
    )
    assert Pipeline("en", "de", lowercase=True).words()("It IS.") == "it is."


# --- Files --------------------------------------------------------------------------------------


def packed(folder: Path, form: str, content: bytes) -> Path:
    if form == "zip":
        with zipfile.ZipFile(folder / "f.zip", "w") as archive:
            archive.writestr("spa-eng/_about.txt", "about")
            archive.writestr("spa-eng/spa.txt", content)
        return folder / "f.zip"
    path = folder / f"f.{form}"
    path.write_bytes(gzip.compress(content) if form == "gz" else content)
    return path


@pytest.mark.parametrize("form", ["tsv", "gz", "zip"])
def test_every_form_reads_alike(tmp_path, form):
    text = "\ufeffGo.\tVe.\tx\r\nI'm\u2028in\u00a0love.\tEstoy\renamorado.\ty\nlast\túltima"
    found = list(tab_separated(packed(tmp_path, form, text.encode()), (2, 1)))
    assert found == [
        ("Ve.", "Go."),
        ("Estoy enamorado.", "I'm in love."),
        ("última", "last"),
    ]


def test_aligned_files(tmp_path):
    source = write_lines(tmp_path / "s", ["a", "b", "c"])
    target = packed(tmp_path, "gz", b"A\nB\nC\n")
    assert list(aligned(source, target)) == [("a", "A"), ("b", "B"), ("c", "C")]
    write_lines(source, ["a", "b", "c", "d", "e"])
    with pytest.raises(ValueError, match=r"has 5 lines.*f\.gz` 3"):
        list(aligned(source, target))
    with pytest.raises(ValueError, match=r"f\.gz` has 3 lines, `.*s` 5"):
        list(aligned(target, source))


def test_unreadable_input_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"absent\.tsv` does not exist"):
        list(lines(tmp_path / "absent.tsv"))
    with pytest.raises(ValueError, match=r"line 2, byte 3 \(0xff\): not UTF-8"):
        list(lines(packed(tmp_path, "tsv", b"fine\nno\xff\n")))
    with pytest.raises(ValueError, match=r"line 2: 1 tab-separated column\(s\).* needs 2"):
        list(tab_separated(packed(tmp_path, "tsv", b"a\tb\nc d\n"), (1, 2)))
    with pytest.raises(ValueError, match=r"no member `x`; it has .*spa-eng/spa\.txt"):
        list(lines(packed(tmp_path, "zip", b"a\n"), "x"))
    whole = packed(tmp_path, "gz", bytes(random.Random(1).randbytes(5000).hex(), "ascii"))
    whole.write_bytes(whole.read_bytes()[:-900])
    with pytest.raises(ValueError, match="is damaged"):
        list(lines(whole))
    whole.write_bytes(b"no gzip at all")
    with pytest.raises(ValueError, match="is damaged"):
        list(lines(whole))
    with zipfile.ZipFile(tmp_path / "f.zip", "a") as archive:
        archive.writestr("second.txt", "a")
    with pytest.raises(ValueError, match=r"--member: .*second\.txt"):
        list(lines(tmp_path / "f.zip"))
    (tmp_path / "f.zip").write_bytes(b"PK no zip")
    with pytest.raises(ValueError, match="is damaged"):
        list(lines(tmp_path / "f.zip"))


# --- The command --------------------------------------------------------------------------------


def command(*arguments: object, ok: bool = True):
    return run(sys.executable, SCRIPT, *LANGS, *arguments, ok=ok)


@pytest.mark.system
def test_command_splits_a_tab_separated_file(tmp_path):
    out = tmp_path / "out"
    sizes = ("--valid", 20, "--test", 30)
    said = command(
        spanish_english(tmp_path),
        *sizes,
        "--columns",
        "2,1",
        "--lowercase",
        "--tokenize",
        "--out",
        out,
    )
    assert "split by the target sentence" in said.stdout
    dropped = re.search(r"dropped, source sentence also in valid or test: (\d+)", said.stdout)
    assert int(dropped[1]) > 0
    assert "kept in train, source sentence also in valid or test: 0\n" in said.stdout
    lenient = command(
        *(tmp_path / "pairs.tsv", *sizes, "--columns", "2,1", "--lowercase", "--tokenize"),
        *("--no-strict", "--out", tmp_path / "lenient"),
    )
    assert f"kept in train, {dropped[0].removeprefix('dropped, ')}\n" in lenient.stdout
    assert "dropped, source sentence" not in lenient.stdout
    text = {
        path.name: path.read_text(encoding="utf-8").splitlines()
        for path in out.iterdir()
        if path.suffix != ".json"
    }
    assert sorted(text) == [
        f"{s}.{lang}" for s in ("test", "train", "valid") for lang in ("en", "es")
    ]
    for name, size in (("valid", 20), ("test", 30)):
        assert len(text[f"{name}.en"]) == len(text[f"{name}.es"]) == size
    assert not set(text["train.en"]) & set(text["test.en"] + text["valid.en"])
    known = {(es, f"{en[:-1].lower()} {en[-1]}") for es, en in corpus()}
    assert set(zip(text["train.es"], text["train.en"], strict=True)) <= known
    manifest = json.loads((out / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["report"]["splits"]["test"] == 30
    swapped = command(tmp_path / "pairs.tsv", *sizes, "--columns", "2,1", "--swap", "--out", out)
    assert "split by the source sentence" in swapped.stdout
    assert (out / "train.es").read_text(encoding="utf-8").startswith("Sentence")
    # An error leaves what is there as it was.
    before = {path: path.read_bytes() for path in out.iterdir()}
    said = command(tmp_path / "pairs.tsv", "--columns", "1,4", "--out", out, ok=False)
    assert "split_pairs: error:" in said.stderr
    assert "line 1: 3 tab-separated" in said.stderr
    assert "Traceback" not in said.stderr
    assert {path: path.read_bytes() for path in out.iterdir()} == before


@pytest.mark.system
def test_command_takes_aligned_files_as_one_split(tmp_path):
    source = write_lines(tmp_path / "s", ["b .", "a .", "b ."])
    target = write_lines(tmp_path / "t", ["B .", "A .", "B ."])
    command("--source", source, "--target", target, "--as", "valid", "--out", tmp_path)
    assert (tmp_path / "valid.es").read_bytes() == source.read_bytes()
    assert (tmp_path / "valid.en").read_bytes() == target.read_bytes()
    assert not (tmp_path / "train.en").exists()
    said = command("--source", source, "--as", "valid", "--out", tmp_path, ok=False).stderr
    assert "both --source and --target" in said
