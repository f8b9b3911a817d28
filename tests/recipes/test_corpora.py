"""Corpora: from archives of the official shapes to subwords, against the papers' protocols."""

import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import regex

from fairseq_ext.corpora import SPLITS, downloads, official
from tests.support.harness import error_line, names, read_lines, run, start, wait_for, write_lines
from tests.support.moses_scripts import normalized, tokenized
from tests.support.troubled_server import Server, member, serving, sha256, tgz

import smoke_archives  # isort: skip
from fairseq_ext.corpora.catalogue import CORPORA

COMMAND = ("fairseq-ext", "corpus")


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as running:
        yield running


WORDS = [
    *("Hallo", "Welt", "E-Mail", "z.B.", "„ja“", "don't", "2,5 %", "Über\u00a0uns", "A&B"),
    *("»x«", "I"),
]


def talk(size: int, seed: int) -> list[list[str]]:
    """Return two sides of noisy sentences of unequal lengths, some empty."""
    dice = random.Random(seed)
    side = lambda: " ".join(dice.choices(WORDS, k=dice.choice([0, *range(1, 9)])))  # noqa: E731
    return [[side() for _ in range(size)] for _ in range(2)]


def complete(sides: list[list[str]]) -> list[list[str]]:
    return [[line or "leer" for line in side] for side in sides]


def iwslt14(train: list[list[str]], tests: list[list[list[str]]]) -> bytes:
    """Build ``de-en.tgz`` in the form of the evaluation of 2014."""
    members = []
    for place, side in enumerate(("de", "en")):
        text = "<url>u</url>\n<keywords>k</keywords>\n<talkid>7</talkid>\n"
        text += f"<title>{train[place][0]}</title>\n"
        text += f"<description>{train[place][1]}</description>\n"
        text += "".join(f"{line}\n" for line in train[place][2:])
        members.append((member(f"de-en/train.tags.de-en.{side}"), text.encode()))
        sets = ("TED.dev2010", "TED.tst2010", "TED.tst2011", "TED.tst2012", "TEDX.dev2012")
        for name, test in zip(sets, tests, strict=True):
            segments = "".join(f'<seg id="{i}"> {s} </seg>\n' for i, s in enumerate(test[place], 1))
            path = f"de-en/IWSLT14.{name}.de-en.{side}.xml"
            members.append((member(path), f"<mteval>\n<doc>\n{segments}</doc>\n".encode()))
    return tgz(*members)


def expected_iwslt14(
    train: list[list[str]], tests: list[list[list[str]]]
) -> dict[str, list[tuple[str, str]]]:
    """Compute the token pairs of each split, step by step as prepare-iwslt14.sh does."""
    pairs = []
    for source, target in zip(*train, strict=True):
        de, en = tokenized(source, "de"), tokenized(target, "en")
        sizes = [len(de.split()), len(en.split())]
        if min(sizes) >= 1 and max(sizes) <= 175 and max(sizes) / min(sizes) <= 1.5:
            pairs.append((de.lower(), en.lower()))
    test = []
    for place in (0, 4, 1, 2, 3):
        sides = zip(("de", "en"), tests[place], strict=True)
        texts = [
            [tokenized(s.replace("’", "'"), side).lower() for s in text] for side, text in sides
        ]
        test += zip(*texts, strict=True)
    return {
        "train": [pair for number, pair in enumerate(pairs, 1) if number % 23],
        "valid": pairs[22::23],
        "test": test,
    }


def talks_of(size: int) -> tuple[list[list[str]], list[list[list[str]]]]:
    """Return training text of some lines, and five sets of nine sentences."""
    return talk(size, 1), [complete(talk(9, seed)) for seed in range(2, 7)]


@pytest.fixture(scope="module")
def talks() -> tuple[list[list[str]], list[list[list[str]]]]:
    return talks_of(900)


def prepare(
    name: str, out: Path, mirror: object, *options: object, **how: object
) -> subprocess.CompletedProcess:
    """Run the command as a user does, with small encodings."""
    bpe = () if name == "iwslt15_en_vi" else ("--bpe", 120)
    return run(*COMMAND, name, "--out", out, *bpe, "--mirror", mirror, *options, **how)


def read(folder: Path, split: str, sides: tuple[str, str]) -> list[tuple[str, str]]:
    return list(zip(*(read_lines(folder / f"{split}.{side}") for side in sides), strict=True))


def test_iwslt14_is_fairseqs_protocol_from_download_to_subwords(tmp_path, server, talks):
    server.files["de-en.tgz"] = iwslt14(*talks)
    server.troubles = ["truncate", "truncate"]
    out = tmp_path / "out"
    words = ("iwslt14_de_en", out, server.address, "--any-counts")
    done = prepare(*words, "--workers", 2)
    expected = expected_iwslt14(*talks)
    for split, pairs in expected.items():
        assert read(out / "text", split, ("de", "en")) == pairs
    assert 0 < len(expected["train"]) < 850
    # the subwords are those of the subword-nmt commands
    lines = [side for column in zip(*expected["train"], strict=True) for side in column]
    joined, codes = write_lines(tmp_path / "both", lines), tmp_path / "codes"
    run("subword-nmt", "learn-bpe", "-s", 120, "-i", joined, "-o", codes)
    assert (out / "bpe" / "codes").read_text() == codes.read_text()
    for name in ("train.de", "valid.en", "test.en"):
        apply = ("subword-nmt", "apply-bpe", "-c", codes, "-i", out / "text" / name)
        assert run(*apply).stdout == (out / "bpe" / name).read_text()
    # references as they were, but for case
    first = talks[1][0][1][0].replace("\u00a0", " ").lower()
    assert read(out / "reference", "test", ("de", "en"))[0][1] == first

    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["archives"]["de-en.tgz"]["sha256"] == sha256(server.files["de-en.tgz"])
    fates = manifest["fates"]["train"]
    assert sum(numbers[0] for numbers in fates.values()) == 900
    assert set(fates) == {"kept", "empty side", "lengths differ more than 1.5-fold"}
    assert manifest["splits"]["train"]["words"][0] == len(expected["train"])
    assert manifest["sha256"]["bpe/codes"] == sha256(codes.read_bytes())
    assert "train read: 900 pairs, but 174,443 are known" in done.stdout
    assert "fairseq-preprocess --source-lang de --target-lang en --trainpref" in done.stdout

    # again: nothing is asked for, nothing written; also with the intermediate files deleted
    request_count = len(server.requests)
    for folder in ("raw", "download"):
        shutil.rmtree(out / folder)
    second_run = prepare(*words, "--workers", 2)
    assert second_run.stdout == done.stdout
    assert len(server.requests) == request_count
    assert "subwords.train: done before" in second_run.stderr
    # known numbers of pairs
    (out / "manifest.json").unlink()
    done = prepare(*words[:3], ok=False)
    wrong = "train read: 900 pairs instead of 174,443; test: 45 pairs instead of 6,750"
    assert wrong in done.stderr
    assert "`--any-counts` accepts it" in done.stderr
    assert json.loads((out / "manifest.json").read_text()) == manifest
    # another process count, another folder: the same bytes
    prepare(words[0], tmp_path / "o2", *words[2:], "--workers", 1)
    assert json.loads((tmp_path / "o2" / "manifest.json").read_text()) == manifest


@pytest.mark.parametrize(
    ("counts", "wrong"),
    [
        ((160_239, 7_283, 6_750, 174_443), 0),
        ((160_200, 7_281, 6_750, 174_443), 0),  # another release of the tokenizer
        ((160_000, 7_272, 6_750, 174_443), 2),
        ((160_239, 7_283, 6_749, 174_443), 1),
        ((160_239, 7_283, 6_750, 174_444), 1),
    ],
)
def test_known_numbers(counts: tuple[int, ...], wrong: int) -> None:
    *sizes, lines = counts
    text = {
        "parts": {"train": {"origin": {}, "fates": {"kept": [lines, 1, 1]}}},
        "splits": {name: [size, 1, 1] for name, size in zip(SPLITS, sizes, strict=True)},
    }
    manifest = official.describe("iwslt14_de_en", CORPORA["iwslt14_de_en"], text, {})
    assert len(official.wrong_counts(manifest)) == wrong
    assert "known" in official.summary(manifest, Path("text"))


def test_the_papers_numbers_add_up() -> None:
    corpus = CORPORA["iwslt14_de_en"]
    pair_count = sum(corpus.expected.values())
    assert pair_count == 167_522  # what the scripts print: 174,443 in, 167,522 out
    assert corpus.expected["valid"] == pair_count // corpus.valid


def test_a_killed_preparation_goes_on(tmp_path: Path, server: Server) -> None:
    texts = talks_of(3_000)
    server.files["de-en.tgz"] = iwslt14(*texts)
    out = tmp_path / "out"
    words = (*COMMAND, "iwslt14_de_en", "--out", out, "--mirror", server.address, "--bpe", 120)
    process = start(*words, "--any-counts", "--workers", 2, start_new_session=True)
    wait_for((out / ".steps" / "unpack.de-en.tgz.json").exists, process)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not (out / "text" / "train.de").exists()
    done = prepare("iwslt14_de_en", out, server.address, "--any-counts")
    assert "unpack.de-en.tgz: done before" in done.stderr
    assert len(server.requests) == 1
    expected = expected_iwslt14(*texts)
    assert read(out / "text", "valid", ("de", "en")) == expected["valid"]
    assert not list(out.glob("*/.partial-*"))


def archives_of(name: str, tmp_path: Path, *lines_at_end: str) -> Path:
    """Write a corpus's archives into ``mirror``; the training text ends with ``lines_at_end``."""
    corpus = CORPORA[name]
    for split, size in (("train", 500), ("valid", 31), ("test", 20)):
        texts = talk(size, size) if split == "train" else complete(talk(size, size))
        for side, lines in zip((corpus.src, corpus.tgt), texts, strict=True):
            lines += lines_at_end if split == "train" else ()
            write_lines(tmp_path / "pairs" / f"{split}.{side}", lines)
    smoke_archives.write_archives(name, tmp_path / "pairs", tmp_path / "mirror")
    return tmp_path / "mirror"


def training_tokens(
    folder: Path, sides: tuple[str, str], archive_count: int, tokens: Callable[[str, str], str]
) -> list[tuple[str, ...]]:
    """Return the token pairs of the training text in the archives' order, without empty sides."""
    pairs = read(folder / "pairs", "train", sides)
    order = [pair for first in range(archive_count) for pair in pairs[first::archive_count]]
    rows = [tuple(map(tokens, pair, sides)) for pair in order]
    return [row for row in rows if all(row)]


def without_marks(pairs: list[tuple[str, str]]) -> list[tuple[str, ...]]:
    """Return pairs of subwords as pairs of words."""
    return [tuple(side.replace("@@ ", "") for side in pair) for pair in pairs]


def test_archives_of_two_splits_need_no_third_and_are_compressed_like_their_names(tmp_path: Path):
    for name in ("train.de", "train.en", "test.de", "test.en"):
        write_lines(tmp_path / name, ["a", "b"])
    smoke_archives.write_archives("iwslt14_de_en", tmp_path, tmp_path / "mirror")
    for name in ("a.tgz", "a.tar.gz"):
        smoke_archives.pack(tmp_path / name, {"file": b"text"})
        tarfile.open(tmp_path / name, "r:gz").close()


def test_wmt17_drops_only_what_is_empty_or_too_long(tmp_path: Path) -> None:
    sides, out = ("de", "en"), tmp_path / "out"
    mirror = archives_of("wmt17_de_en", tmp_path, " ".join(["Wort"] * 300), "kurz")
    parts = ("commoncrawl", "europarl-v7", "nc-v12")
    training = [f"training-parallel-{part}.tgz" for part in parts]
    assert names(mirror) == ["dev.tgz", "test-full.tgz", *training]
    done = prepare("wmt17_de_en", out, mirror, "--any-counts")
    assert "--joined-dictionary --nwordssrc 32000 --nwordstgt 32000 --trainpref" in done.stdout
    expected = training_tokens(tmp_path, sides, 3, tokenized)
    assert read(out / "text", "train", sides) == expected
    short = [pair for pair in expected if len(pair[0].split()) < 300]
    assert without_marks(read(out / "bpe", "train", sides)) == short
    assert len(short) == len(expected) - 1
    assert [len(read(out / "text", split, sides)) for split in ("valid", "test")] == [31, 20]


def test_wmt14_english_french_cleans_subwords(tmp_path: Path) -> None:
    mirror, out = archives_of("wmt14_en_fr", tmp_path), tmp_path / "out"
    parallel = ("commoncrawl", "europarl-v7", "nc-v9", "un")
    archives = [f"training-parallel-{name}.tgz" for name in parallel]
    assert names(mirror) == ["dev.tgz", "test-full.tgz", "training-giga-fren.tar", *archives]
    done = prepare("wmt14_en_fr", out, mirror, "--any-counts")
    assert "--joined-dictionary --trainpref" in done.stdout

    def tokens(text: str, side: str) -> str:
        text = regex.sub(r"\p{C}", " ", normalized(text, side))
        return tokenized(text, side, aggressive_dash_splits=True)

    sides = ("en", "fr")
    expected = training_tokens(tmp_path, sides, 5, tokens)
    assert read(out / "text", "train", sides) == expected
    assert any("E @-@ Mail" in en for en, _ in expected)
    pieces = read(out / "bpe", "train", sides)
    words = without_marks(pieces)
    lengths = [[side.count(" ") + 1 for side in pair] for pair in pieces]
    assert all(max(pair) <= 1.5 * min(pair) for pair in lengths)
    assert [pair for pair in expected if pair in set(words)] == words
    assert 0 < len(pieces) < len(expected)
    assert len(read(out / "bpe", "valid", sides)) <= 31
    assert len(read(out / "bpe", "test", sides)) == 20


def test_iwslt15_stays_words_and_subwords_are_an_option(tmp_path: Path) -> None:
    mirror, out = archives_of("iwslt15_en_vi", tmp_path), tmp_path / "out"
    done = prepare("iwslt15_en_vi", out, mirror, "--any-counts")
    assert f"--thresholdsrc 5 --thresholdtgt 5 --trainpref {out / 'text' / 'train'}" in done.stdout
    assert not (out / "bpe").exists()
    source = [line.split() for line in (mirror / "tst2013.en").read_text().split("\n")[:-1]]
    assert [en.split() for en, _ in read(out / "text", "test", ("en", "vi"))] == source
    done = prepare("iwslt15_en_vi", out, mirror, "--any-counts", "--bpe", 9)
    assert "--threshold" not in done.stdout
    assert "@@ " in (out / "bpe" / "test.en").read_text()


def test_a_member_that_is_missing_is_named(tmp_path: Path) -> None:
    (tmp_path / "de-en.tgz").write_bytes(tgz((member("de-en/train.tags.de-en.de"), b"x\n")))
    done = prepare("iwslt14_de_en", tmp_path / "out", tmp_path, ok=False)
    assert done.stderr.splitlines()[-1].startswith("fairseq-ext: error: `")
    assert "train.tags.de-en.en` does not exist: the archive is not" in done.stderr


def test_without_a_network_the_command_says_what_to_do(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(downloads, "PAUSE", 0.01)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{closed.getsockname()[1]}"
        words = ("corpus", "iwslt15_en_vi", "--out", tmp_path / "out", "--mirror", address)
        line = error_line(*words)
    assert line.startswith(f"fairseq-ext: error: `{address}/train.en` cannot be downloaded")
    assert "get the file elsewhere and put it into" in line


def test_memory_stays_bounded(tmp_path: Path) -> None:
    """Seven times as many pairs take no more memory, except for their words."""
    peaks = []
    for size in (2_000, 14_000):
        folder = tmp_path / str(size)
        folder.mkdir()
        (folder / "de-en.tgz").write_bytes(iwslt14(*talks_of(size)))
        script = (
            "from fairseq_ext.cli import main\n"
            "try: main()\n"
            "finally: print(*[line for line in open('/proc/self/status') if 'VmHWM' in line])"
        )
        options = ("--mirror", folder, "--workers", 1, "--bpe", 120, "--any-counts")
        command = (sys.executable, "-c", script, "corpus", "iwslt14_de_en", "--out", folder / "out")
        done = run(*command, *options)
        peaks.append(int(re.search(r"VmHWM:\s+(\d+) kB", done.stdout)[1]))
    assert peaks[1] < peaks[0] + 15_000  # kB
    assert peaks[1] < 150_000
