"""Raw test text becomes the pieces of the binarized test set, however a corpus is made.

``text.json`` in the binarized folder is all that is known then, as for ``fairseq-ext translate``.
"""

import argparse
import csv
import io
import json
import unicodedata
from pathlib import Path

import pytest
import wmt14_csv
from fairseq.data import Dictionary, data_utils
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_ext.commands import text_options
from fairseq_ext.corpora import SPLITS
from fairseq_ext.corpora.catalogue import CORPORA
from fairseq_ext.corpora.own_text import copy_corpus, split_into_subwords
from fairseq_ext.corpora.tatoeba import sample
from fairseq_ext.text import byte_level, pipeline, subwords
from fairseq_ext.text.cleaning import one_spaced
from fairseq_ext.utils.errors import DataError
from tests.support import troubled_server  # noqa: F401  for smoke_archives
from tests.support.harness import command, fairseq, read_lines, write_lines, write_sides
from tests.support.moses_scripts import normalized, tokenized

import smoke_archives  # isort: skip
from smoke import train  # isort: skip

ODD = (
    'Er sagte: "Das ist gut."',
    "Linie A.",
    "It’s a well-known thing (R&D), isn't it?",
    "e\u0301te\u0301  with\u00a0spaces",
    "“No,” he said — z.B. at 3,5 % …",
)
"""Lines on which the rules of Moses, and the order of steps, make a difference."""


@pytest.fixture(scope="module")
def sentences() -> dict[str, list[tuple[str, str]]]:
    """Return some real pairs, with odd ones among them."""
    pairs = sample({"train": 90, "valid": 6, "test": 15})
    for name in SPLITS:
        pairs[name] += [(line, line) for line in ODD]
    return pairs


def write_pairs(folder: Path, sentences, sides: tuple[str, str], to_file=lambda line, _: line):
    """Write pairs as ``{train,valid,test}.{src,tgt}``."""
    for split in SPLITS:
        for place, side in enumerate(sides):
            lines = [to_file(pair[place], side) for pair in sentences[split]]
            write_lines(folder / f"{split}.{side}", lines)
    return folder


def check(folder: Path, sides: tuple[str, str], raw: list[str], *flags: object) -> list[str]:
    """Binarize ``folder``; raw test lines must give its pieces and ids. Returns the pieces."""
    binary = folder / "bin"
    fairseq(
        *("preprocess", "--source-lang", sides[0], "--target-lang", sides[1]),
        *("--trainpref", folder / "train", "--testpref", folder / "test", "--destdir", binary),
        *flags,
    )
    parser = argparse.ArgumentParser()
    text_options.add_text_options(parser)
    codec = text_options.chosen_codec(parser.parse_args([]), *sides, [binary])
    pieces = [codec.encode(line) for line in raw]
    stored = read_lines(folder / f"test.{sides[0]}")
    assert pieces == stored
    words = Dictionary.load(str(binary / f"dict.{sides[0]}.txt"))
    data = data_utils.load_indexed_dataset(f"{binary}/test.{'-'.join(sides)}.{sides[0]}", words)
    ids = [words.encode_line(line, add_if_not_exist=False).tolist() for line in pieces]
    assert [row.tolist() for row in data] == ids
    return pieces


TOKENIZERS = {
    "multi30k_tok": lambda line, side: tokenized(normalized(line.lower(), side), side),
    "iwslt15_en_vi": tokenized,
}
"""How the authors of tokenized files made them of text."""
KINDS = {"multi30k": "sentencepiece-unigram", "wmt14_en_de": "tokenizers", "wmt17_de_en": "none"}
"""Of the corpora that are not made as in their papers."""


@pytest.mark.parametrize("name", sorted(CORPORA))
def test_the_corpora_of_the_literature(name: str, sentences, tmp_path: Path) -> None:
    corpus = CORPORA[name]
    sides = (corpus.src, corpus.tgt)
    if name in TOKENIZERS:  # the script splits off accents that stand alone
        sentences = {
            split: [tuple(unicodedata.normalize("NFC", side) for side in pair) for pair in pairs]
            for split, pairs in sentences.items()
        }
    to_file = TOKENIZERS.get(name, lambda line, _: line)
    pairs = write_pairs(tmp_path / "pairs", sentences, sides, to_file)
    smoke_archives.write_archives(name, pairs, tmp_path / "mirror")
    kind = KINDS.get(name, "bpe")
    size = {"none": 0, "bpe": 60 if corpus.merges else 0}.get(kind, 200)
    options = ("--mirror", tmp_path / "mirror", "--workers", 1, "--bpe", size, "--any-counts")
    out = tmp_path / "out"
    output = command("corpus", name, "--out", out, *options, "--subwords", kind)
    fates = json.loads((out / "manifest.json").read_bytes())["fates"]
    assert list(fates) == sorted(fates)
    if name == "wmt14_en_de":
        assert "--joined-dictionary --nwordssrc 32768 --nwordstgt 32768 --trainpref" in output
        assert len(read_lines(out / "bpe" / "valid.en")) == len(sentences["valid"])
        assert "well-known" in (out / "text" / "train.de").read_text()
        counts = [fates[source.name]["kept"][0] for source in corpus.train]
        assert sum(counts) == len(sentences["train"])
    # smoke_archives deals the lines out to the sources of a set, which stand one after the other
    raw = [pair[0] for pair in sentences["test"]]
    count = len(corpus.test)
    raw = [line for number in range(count) for line in raw[number::count]]
    pieces = check(out / ("bpe" if size else "text"), sides, raw)
    assert any(piece not in " ".join(raw).split() for piece in " ".join(pieces).split())
    if size:
        assert pieces != read_lines(out / "text" / f"test.{sides[0]}")


def test_split_pairs(sentences, tmp_path: Path) -> None:
    pairs = write_pairs(tmp_path / "pairs", sentences, ("en", "de"))
    wording = ("--src-lang", "en", "--tgt-lang", "de", "--tokenize", "--lowercase")
    for split in SPLITS:
        inputs = ("--source", pairs / f"{split}.en", "--target", pairs / f"{split}.de")
        command("corpus", "pairs", *inputs, *wording, "--as", split, "--out", tmp_path / "text")
    raw = [pair[0] for pair in sentences["test"]]
    check(tmp_path / "text", ("en", "de"), raw)
    split_into_subwords(tmp_path / "text", tmp_path / "bpe", "en", "de", kind="bpe", size=60)
    assert "@@ " in " ".join(check(tmp_path / "bpe", ("en", "de"), raw))
    inputs = ("--source", pairs / "train.en", "--target", pairs / "train.de")
    sizes = ("--valid", 9, "--test", 9, "--out", tmp_path / "split")
    command("corpus", "pairs", *inputs, *wording, *sizes)
    encode = pipeline.load(tmp_path / "split").encoder()
    encoded = {encode(pair[0]) for pair in sentences["train"]}
    assert {*read_lines(tmp_path / "split" / "test.en")} <= encoded


@pytest.mark.parametrize(
    ("kind", "tokenize"),
    [*((kind, True) for kind in (*subwords.LEARNT, "none")), ("sentencepiece-unigram", False)],
)
def test_own_files(kind: str, tokenize: bool, sentences, tmp_path: Path) -> None:
    data = write_pairs(tmp_path / "data", sentences, ("en", "de"))
    languages = ("--src", "en", "--tgt", "de", *(["--tokenize"] if tokenize else []))
    command("prepare", "--data", data, *languages, "--out", tmp_path / "text")
    size = 60 if kind == "bpe" else 200
    split_into_subwords(tmp_path / "text", tmp_path / "bpe", "en", "de", kind=kind, size=size)
    raw = [pair[0] for pair in sentences["test"]]
    pieces = check(tmp_path / "bpe", ("en", "de"), raw)
    decode = pipeline.load(tmp_path / "bpe").pieces.decode
    words = pipeline.load(tmp_path / "text").words()
    for line, text in zip(pieces, raw, strict=True):
        if "<unk>" not in line:  # a character that is not in the training text
            assert decode(line) == one_spaced(words(text))  # accents stay as they are written


def test_lines_of_which_no_token_is_left(tmp_path: Path) -> None:
    write_sides(tmp_path / "data", {"en": ["one", "\x01"], "de": ["one", "\x01"]})
    with pytest.raises(DataError, match=r"train\.en, line 2: it has no tokens"):
        copy_corpus(tmp_path / "data", tmp_path / "out", "en", "de", tokenize=True)
    assert not (tmp_path / "out").exists()


def test_csv(sentences, tmp_path: Path) -> None:
    for split in SPLITS:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([("en", "de"), *sentences[split]])
        (tmp_path / wmt14_csv.CSV_NAMES[split]).write_text(text.getvalue(), encoding="utf-8")
    lines = [line for pair in sentences["train"] for line in pair]
    train([write_lines(tmp_path / "lines", lines)], 300, tmp_path)
    encoding = [tmp_path / name for name in byte_level.FILES]
    options = ("--vocabulary", encoding[0], "--merges", encoding[1], "--fraction", "1")
    words = ("--data", tmp_path, *options, "--out", tmp_path / "out")
    wmt14_csv.run(wmt14_csv.parser().parse_args(list(map(str, words))))
    raw = [pair[0] for pair in sentences["test"]]
    dictionary = ("--srcdict", tmp_path / "out/bpe/dict.txt", "--joined-dictionary")
    pieces = check(tmp_path / "out" / "bpe", ("en", "de"), raw, *dictionary)
    assert all(piece.isdecimal() for piece in " ".join(pieces).split())
    decode = pipeline.load(tmp_path / "out" / "bpe").decoder()
    assert [decode(line) for line in pieces] == [one_spaced(line) for line in raw]


@pytest.fixture(scope="module")
def encoding(tmp_path_factory: pytest.TempPathFactory) -> subwords.Subwords:
    folder = tmp_path_factory.mktemp("encoding")
    train([write_lines(folder / "text", ["a line of text", "noch eine"])], 270, folder)
    return subwords.load("byte-level", [folder / name for name in byte_level.FILES])


@settings(max_examples=300)
@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_bytes_come_back_but_for_white_space(encoding: subwords.Subwords, text: str) -> None:
    assert encoding.decode(encoding.encode(text)) == one_spaced(text)
