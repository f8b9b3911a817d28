"""Synthetic pairs and the corpus they join, and noise in a test set."""

import json
from pathlib import Path

import pytest

from fairseq_ext.corpora.command_lines import NOISE_KINDS
from fairseq_ext.corpora.noise import add_noise
from fairseq_ext.text.pipeline import Pipeline
from tests.support.harness import command, error_line, read_lines, run, write_lines

SPLITS = {"train": 4, "valid": 2, "test": 1}


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Write a corpus of lower-case Moses tokens, split into subwords by a merge of digits."""
    (tmp_path / "codes").write_text("#version: 0.2\n1 2</w>\n")
    files = (tmp_path / "codes",)
    steps = Pipeline("en", "de", tokenize=True, lowercase=True, subwords="subword-nmt", files=files)
    for split, count in SPLITS.items():
        lines = [f"Number {n + 10}, {split}!" for n in range(count)]
        for side in ("en", "de"):
            write_lines(tmp_path / "bpe" / f"{split}.{side}", [*map(steps.encoder(side), lines)])
    steps.save(tmp_path / "bpe")
    return tmp_path / "bpe"


def words(name: str, corpus: Path, *options: object) -> tuple[object, ...]:
    return ("corpus", name, "--data", corpus, "--src", "en", "--tgt", "de", *options)


def script(*arguments: object) -> str:
    return command(*words(*arguments))


def refusal(*arguments: object) -> str:
    return error_line(*words(*arguments))


def texts(folder: Path, *pairs: tuple[str, str]) -> tuple[object, ...]:
    """Write pairs to two files; return the options that name them and the output."""
    source = write_lines(folder / "source", [first for first, _ in pairs])
    target = write_lines(folder / "target", [second for _, second in pairs])
    return ("--source", source, "--target", target, "--out", folder / "mixed")


def test_one_side_as_text(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "mono.txt"
    script("monolingual", corpus, "--language", "de", "--skip", 1, "--out", out)
    assert read_lines(out) == [f"number {n}, train!" for n in (11, 12, 13)]
    output = refusal("monolingual", corpus, "--language", "de", "--skip", 4, "--out", out)
    assert "has no line after the first 4; skip fewer." in output
    assert read_lines(out) == [f"number {n}, train!" for n in (11, 12, 13)]


def test_other_text_is_checked_and_needs_no_corpus(corpus: Path, tmp_path: Path) -> None:
    text, out = tmp_path / "text", tmp_path / "mono.txt"
    options = ("corpus", "monolingual", "--text", text, "--out", out)
    text.write_bytes("Eins , zwei @-@ drei\r\n\nn\u00e4chste".encode())
    command(*options)
    assert read_lines(out) == ["Eins , zwei @-@ drei", "", "n\u00e4chste"]
    text.write_bytes(b"eins\nzwei \xff\n")
    assert f"{text}, line 2" in error_line(*options)
    assert len(read_lines(out)) == 3
    for words in (("--data", corpus), ("--language", "de")):
        assert "or only `--text` instead of them" in error_line(*options, *words)
    message = error_line("corpus", "monolingual", "--data", corpus, "--out", out)
    assert "give `--data`, `--src`, `--tgt` and `--language`, or only `--text`" in message


@pytest.mark.parametrize("workers", [1, 2])
def test_mixed(corpus: Path, tmp_path: Path, workers: int) -> None:
    pairs = [
        ("A 12, b!", "Ein 12, b."),
        ("", "nothing"),
        ("same 3", "Same 3"),
        ("1", "2 3 4 5"),
        ("a b c d e f g h i j k", "a b c d e f g h i j"),
        ("the last", "der letzte"),
    ]
    limits = ("--longest", 10, "--ratio", 3, "--workers", workers)
    options = (*limits, "--tag", "<BT>", "--copies", 2)
    output = script("mix", corpus, *texts(tmp_path, *pairs), *options)
    assert output.startswith("2 of 6 synthetic pairs kept; ")
    mixed = tmp_path / "mixed"
    for side, lines in (
        ("en", ["<BT> a 12 , b !", "<BT> t@@ h@@ e l@@ a@@ s@@ t"]),
        ("de", ["e@@ i@@ n 12 , b .", "d@@ e@@ r l@@ e@@ t@@ z@@ t@@ e"]),
    ):
        lines_before = read_lines(corpus / f"train.{side}")
        assert read_lines(mixed / f"train.{side}") == [*lines_before, *lines_before, *lines]
        for split in ("valid", "test"):
            name = f"{split}.{side}"
            assert (mixed / name).read_bytes() == (corpus / name).read_bytes()
    assert (mixed / "text.json").read_bytes() == (corpus / "text.json").read_bytes()
    report = json.loads((mixed / "synthetic.json").read_text())
    assert {fate: entry[0] for fate, entry in report["fates"].items()} == {
        "kept": 2,
        "empty side": 1,
        "both sides are the same": 1,
        "lengths differ more than 3-fold": 1,
        "more than 10 words": 1,
    }


def test_alone(corpus: Path, tmp_path: Path) -> None:
    words = (*texts(tmp_path, ("1", "4 5"), ("2 3", "6 7 8")), "--copies", 0)
    assert "no pair is left to train on" in refusal("mix", corpus, *words, "--ratio", 1)
    assert not (tmp_path / "mixed" / "train.en").exists()
    assert script("mix", corpus, *words) == "2 of 2 synthetic pairs kept\n"
    assert read_lines(tmp_path / "mixed" / "train.en") == ["1", "2 3"]
    for side in ("en", "de"):
        (corpus / f"test.{side}").unlink()
    assert script("mix", corpus, *words) == "2 of 2 synthetic pairs kept\n"


def test_a_last_line_without_its_end(corpus: Path, tmp_path: Path) -> None:
    train = corpus / "train.en"
    lines_before = read_lines(train)
    train.write_bytes(train.read_bytes().removesuffix(b"\n"))
    words = (*texts(tmp_path, ("1", "2")), "--copies", 2)
    script("mix", corpus, *words)
    assert read_lines(tmp_path / "mixed" / "train.en") == [*lines_before, *lines_before, "1"]
    write_lines(train, lines_before[:-1])
    assert "train.en has 3 lines but" in refusal("mix", corpus, *words)


def test_refused(corpus: Path, tmp_path: Path) -> None:
    words, train = texts(tmp_path, ("1", "1"), ("2", "2")), corpus / "train.de"
    over = "would be overwritten by the output; choose another output."
    assert over in refusal("mix", corpus, *words, "--out", corpus)
    assert over in refusal("monolingual", corpus, "--language", "de", "--out", train)
    assert len(read_lines(train)) == SPLITS["train"]
    assert "`--tag` must be one word" in refusal("mix", corpus, *words, "--tag", "a b")
    assert "is a symbol of fairseq's" in refusal("mix", corpus, *words, "--tag", "</s>")
    write_lines(tmp_path / "target", ["1"])
    assert "source has 2 lines but" in refusal("mix", corpus, *words)
    (corpus / "text.json").unlink()
    assert "has no text.json for en and de" in refusal("mix", corpus, *words)
    assert not (tmp_path / "mixed").exists()


# Noise in a test set: what each kind changes, and that it is the same for every run
SENTENCES = [
    "„Wo ist es?“, fragte Ana; es ist weg.",
    "",
    *(f"Satz {number} hat viele lange Wörter und keine Fehler." for number in range(500)),
]


def words_of(lines: list[str]) -> list[str]:
    return " ".join(lines).split(" ")


def test_typing_errors_are_single_edits_in_about_the_share_of_the_words():
    noisy = list(add_noise(SENTENCES, "typos", 0.2, seed=3))
    assert noisy == list(add_noise(SENTENCES, "typos", 0.2, seed=3))
    assert noisy != list(add_noise(SENTENCES, "typos", 0.2, seed=4))
    pairs = list(zip(words_of(SENTENCES), words_of(noisy), strict=True))
    for before, after in pairs:
        assert abs(len(before) - len(after)) <= 1
        assert set(after) <= set(before)
        assert before == after or sum(map(str.isalpha, before)) >= 3
    long_words = [(a, b) for a, b in pairs if sum(map(str.isalpha, a)) >= 3]
    changed = sum(a != b for a, b in long_words) / len(long_words)
    assert 0.18 < changed < 0.21


def test_each_word_that_gets_a_typing_error_changes():
    sentence = " ".join(["nennen", "aaa", "Anna's", "1ll1l", "so"] * 200)
    noisy = next(add_noise([sentence], "typos", 1))
    for before, after in zip(sentence.split(" "), noisy.split(" "), strict=True):
        assert (before != after) == (before != "so")


@pytest.mark.parametrize(
    ("kind", "language", "sentence", "expected"),
    [
        ("lower", "", SENTENCES[0], "„wo ist es?“, fragte ana; es ist weg."),
        ("upper", "", SENTENCES[0], "„WO IST ES?“, FRAGTE ANA; ES IST WEG."),
        ("punctuation", "", SENTENCES[0], "Wo ist es fragte Ana es ist weg"),
        *((kind, "", "", "") for kind in NOISE_KINDS),
        ("upper", "tr", "ılık içi", "ILIK İÇİ"),
        ("lower", "tr", "ILIK İÇİ", "ılık içi"),
        ("upper", "de", "öl ins", "ÖL INS"),
        ("lower", "de", "ÖL INS", "öl ins"),
    ],
)
def test_other_kinds(kind: str, language: str, sentence: str, expected: str):
    assert list(add_noise([sentence], kind, language=language)) == [expected]


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    write_lines(tmp_path / "test.de", SENTENCES)
    command = ("fairseq-ext", "corpus", "noise", "test.de", "-o", "noisy.de", "--kind")
    shown = run(*command, "typos", "--share", "0.3").stdout
    noisy = read_lines(tmp_path / "noisy.de")
    assert noisy == list(add_noise(SENTENCES, "typos", 0.3))
    assert f"{sum(a != b for a, b in zip(noisy, SENTENCES, strict=True))} of 502 lines" in shown
    for options, message in (
        (("lower", "--seed", "2"), "`--seed` goes with `--kind typos`"),
        (("typos", "--share", "0"), "`--share` must be above 0 and at most 1, but is 0.0"),
    ):
        assert message in error_line(*command[1:], *options)
