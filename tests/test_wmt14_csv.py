"""The WMT14 CSV files: every row in its place, GPT-2's ids, a dictionary of BART's size."""

from __future__ import annotations

import functools
import http.server
import json
import random
import sys
import threading
import unicodedata
import zipfile
from fractions import Fraction
from pathlib import Path

import pytest
from fairseq.data import Dictionary
from fairseq.data.encoders.gpt2_bpe_utils import get_encoder
from harness import REPO, run, write_lines

sys.path.insert(0, str(REPO / "preprocess"))

from byte_bpe import FILES, ByteBPE, train
from csv_pairs import locate, rows
from fetch import RECORD, fetch
from staging import sha256_of, staged, writers
from wmt14_csv import NAMES, plan

SCRIPT = REPO / "preprocess" / "wmt14_csv.py"
DECODE = REPO / "preprocess" / "byte_bpe.py"
COLUMNS = ("en", "de")
TRAIN, TEST = 203, 7  # odd, so that a half is not whole


def cells(number: int) -> tuple[str, str]:
    """The cells (de, en) of a row, with all that a CSV field may hold."""
    odd = ["", ' "Ja", sagte er', "\nzweite Zeile", "\u2028Öl\r", ' ""', ",,"][number % 6]
    return f"Satz {number}{odd}", f"Sentence, {number}{odd}"


def flat(cell: str) -> str:
    return " ".join(cell.split())


def write_csv(path: Path, table: list[tuple[str, ...]], heading: tuple[str, ...] = ("de", "en")):
    # Carriage returns stay outside quotes, as pandas writes them.
    quoted = [
        ",".join(f'"{c.replace(chr(34), chr(34) * 2)}"' if set(c) & set(',"\n') else c for c in row)
        for row in (heading, *table)
    ]
    return write_lines(path, quoted)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The three CSV files and a small encoding."""
    folder = tmp_path_factory.mktemp("csv")
    write_csv(folder / NAMES["train"], [cells(n) for n in range(TRAIN)])
    write_csv(folder / NAMES["valid"], [(f"v {n}", f"w {n}") for n in range(5)])
    write_csv(folder / NAMES["test"], [cells(n) for n in range(1000, 1000 + TEST)])
    text = write_lines(folder / "text", [flat(c) for n in range(TRAIN) for c in cells(n)])
    train([text], 400, folder)
    return folder


def encoding(folder: Path) -> tuple[object, ...]:
    return ("--vocabulary", folder / FILES[0], "--merges", folder / FILES[1])


def convert(data: Path, out: Path, *options: object, files: Path | None = None, ok: bool = True):
    words = (sys.executable, SCRIPT, "--data", data, *encoding(files or data), "--out", out)
    return run(*words, *options, ok=ok)


def refused(data: Path, out: Path, *options: object, files: Path) -> str:
    """The one line of an error after which nothing has been written."""
    done = convert(data, out, *options, files=files, ok=False)
    said = [line for line in done.stderr.splitlines() if line and "rows" not in line]
    assert len(said) == 1, done.stderr
    assert not out.exists()
    return said[0]


def read(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").split("\n")[:-1]


# ---- rows ----------------------------------------------------------------------------------------


def test_rows_are_those_of_the_csv_module(files: Path) -> None:
    found = list(rows(files / NAMES["train"], COLUMNS))
    assert found == [(flat(en), flat(de)) for de, en in map(cells, range(TRAIN))]
    assert list(rows(files / NAMES["train"], ("de", "en"))) == [(de, en) for en, de in found]


@pytest.mark.parametrize("place", ["folder", "zip", "nested zip", "zip in folder"])
def test_files_are_found_in_folders_and_archives(tmp_path: Path, files: Path, place: str) -> None:
    name, data = NAMES["test"], tmp_path
    if place == "folder":
        write_csv(tmp_path / name, [("a", "b")])
    else:
        data = tmp_path / ("archive.zip" if place != "zip in folder" else f"{name}.zip")
        with zipfile.ZipFile(data, "w") as archive:
            archive.writestr(f"{'deep/' if place == 'nested zip' else ''}{name}", "de,en\na,b\n")
            archive.writestr("other.txt", "")
        data = tmp_path if place == "zip in folder" else data
    path, member = locate(data, name)
    assert list(rows(path, COLUMNS, member)) == [("b", "a")]
    with pytest.raises(ValueError, match=NAMES["train"]):
        locate(data, NAMES["train"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"de,fr\na,b\n", r"must name a column `en`, but is `de,fr`"),
        (b"", "must name a column `en`"),
        (b'de,en\na,b\n"c\nd",e,f\n', r"row 2 \(line 3\): 3 fields, but the heading has 2"),
        (b"de,en\na,b\n\nc,d\n", r"row 2 \(line 3\): 0 fields"),
        (b'de,en\n"a\nb",c\n"d,e\nf,g\n', r"row 2 \(from line 4\): .*quotation mark"),
        (b'de,en\na,b\nc,"d"e\n', r"row 2 \(from line 3\): .*quotation mark"),
        (b"de,en\na,b\nc,\xff\n", r"line 3, byte 3 \(0xff\): not UTF-8"),
    ],
)
def test_malformed_files_are_named_with_row_and_line(
    tmp_path: Path, text: bytes, message: str
) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(text)
    with pytest.raises(ValueError, match=message) as caught:
        list(rows(path, COLUMNS))
    assert str(path) in str(caught.value)


def test_a_quotation_mark_that_never_closes_does_not_swallow_the_file(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text('de,en\na,b\n"c,d\n' + "e,f\n" * 50_000)
    with pytest.raises(ValueError, match=r"row 2 \(from line 3\): field larger than"):
        list(rows(path, COLUMNS))


# ---- splits --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("total", "fraction", "valid", "expected"),
    [
        (4_508_785, "1/2", "0.01", (2_231_849, 22_543)),
        (203, "0.5", "1/100", (100, 1)),
        (1000, "0.3", "1/10", (270, 30)),  # 0.3 as a float would give 299 rows
        (10, "1", "0", (10, 0)),
    ],
)
def test_rows_are_cut_by_exact_arithmetic(total, fraction, valid, expected) -> None:
    cut = plan(total, Fraction(fraction), Fraction(valid))
    assert (cut.train, cut.valid) == expected


def test_too_few_rows_are_an_error() -> None:
    with pytest.raises(ValueError, match=r"1/2` of 3 training rows leaves 1, and 1 of them"):
        plan(3, Fraction(1, 2), Fraction(1, 100))


def test_every_row_is_in_its_split_and_every_line_in_both_forms(
    tmp_path: Path, files: Path
) -> None:
    done = convert(files, tmp_path / "out")
    bpe = get_encoder(str(files / FILES[0]), str(files / FILES[1]))
    ranges = {"train": range(100), "valid": range(100, 101), "test": range(1000, 1000 + TEST)}
    for split, numbers in ranges.items():
        for side, language in enumerate(("de", "en")):
            text = [flat(cells(n)[side]) for n in numbers]
            assert read(tmp_path / "out" / "text" / f"{split}.{language}") == text
            ids = [" ".join(map(str, bpe.encode(line))) for line in text]
            assert read(tmp_path / "out" / "bpe" / f"{split}.{language}") == ids
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["training rows"] == {"rows": TRAIN, "train": 100, "valid": 1}
    assert manifest["splits"]["test"]["pairs"] == TEST
    assert manifest["inputs"][NAMES["train"]] == sha256_of(files / NAMES["train"])
    for name, digest in manifest["sha256"].items():
        assert sha256_of(tmp_path / "out" / name) == digest
    assert len(manifest["sha256"]) == 13
    assert "training rows: 203, of which unused (`--fraction`): 102" in done.stdout


def test_the_csv_validation_file_and_a_zip(tmp_path: Path, files: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for name in NAMES.values():
            archive.write(files / name, f"wmt14/{name}")
    convert(tmp_path / "a.zip", tmp_path / "out", "--csv-valid", "--fraction", 1, files=files)
    assert read(tmp_path / "out" / "text" / "valid.en") == [f"w {n}" for n in range(5)]
    assert len(read(tmp_path / "out" / "text" / "train.en")) == TRAIN


def test_empty_sides_are_counted_in_training_and_refused_in_the_test_set(
    tmp_path: Path, files: Path
) -> None:
    table = [cells(n) for n in range(20)]
    table[3] = ("\n ", "x")
    write_csv(tmp_path / NAMES["train"], table)
    write_csv(tmp_path / NAMES["test"], table[4:])
    done = convert(tmp_path, tmp_path / "out", files=files)
    assert "train, dropped, empty side: 1" in done.stdout
    assert len(read(tmp_path / "out" / "bpe" / "train.en")) == 8
    write_csv(tmp_path / NAMES["test"], table)
    said = refused(tmp_path, tmp_path / "new", files=files)
    assert f"`{NAMES['test']}`, row 4: a side is empty" in said


def test_endless_lines_are_cut_and_counted(tmp_path: Path, files: Path) -> None:
    table = [("kurz", "short"), ("x" + " y" * 15_000, "long"), ("c", "d"), ("e", "f")]
    write_csv(tmp_path / NAMES["train"], table)
    write_csv(tmp_path / NAMES["test"], table[:1])
    done = convert(tmp_path, tmp_path / "out", "--fraction", 1, "--max-ids", 77, files=files)
    assert "train.de, cut to 77 ids: 1" in done.stdout
    lengths = [len(line.split()) for line in read(tmp_path / "out" / "bpe" / "train.de")]
    assert lengths[1] == 77
    assert read(tmp_path / "out" / "text" / "train.de")[1] == table[1][0]
    longest = json.loads((tmp_path / "out" / "manifest.json").read_text())["splits"]["train"]["de"]
    assert longest["longest"] > 10_000


def test_a_bad_row_in_the_unused_half_leaves_a_former_result_alone(
    tmp_path: Path, files: Path
) -> None:
    for name in ("train", "test"):
        write_csv(tmp_path / NAMES[name], [cells(n) for n in range(20)])
    convert(tmp_path, tmp_path / "out", files=files)
    before = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    write_csv(tmp_path / NAMES["train"], [*(cells(n) for n in range(19)), ("one field",)])
    said = convert(tmp_path, tmp_path / "out", files=files, ok=False).stderr
    assert f"{NAMES['train']}`, row 20 (line " in said
    after = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert after == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--src", "de"], "are both `de`"),
        (["--download", "x"], "or `--download` alone"),
        (["--src", "fr"], "must name a column `fr`"),
    ],
)
def test_wrong_options_are_named(tmp_path: Path, files: Path, options, message) -> None:
    assert message in refused(files, tmp_path / "out", *options, files=files)


@pytest.mark.parametrize("fraction", ["0", "1.1", "-1/2", "1/0", "half"])
def test_a_fraction_must_be_one(tmp_path: Path, files: Path, fraction: str) -> None:
    said = convert(files, tmp_path / "out", f"--fraction={fraction}", ok=False).stderr
    assert "must be above 0 and at most 1" in said


# ---- ids -----------------------------------------------------------------------------------------


def odd_texts() -> list[str]:
    """Text in many scripts, contractions, digits, runs of spaces, and combining marks."""
    generator = random.Random(3)
    letters = [chr(c) for c in range(0x20, 0x3000) if unicodedata.category(chr(c))[0] in "LNPSMZ"]
    letters += list("中文字日本語😀🇩🇪") + [" "] * 500
    made = ["".join(generator.choices(letters, k=generator.randrange(1, 60))) for _ in range(300)]
    return [*made, "I'm  sure they'LL've 3,141 € <|endoftext|> <s> ", "a", "\u0085 "]


def test_ids_and_text_are_those_of_fairseqs_own_encoder(files: Path) -> None:
    ours = ByteBPE.load(files / FILES[0], files / FILES[1])
    theirs = get_encoder(str(files / FILES[0]), str(files / FILES[1]))
    texts = odd_texts()
    encoded = ours.encode(texts)
    assert encoded == [theirs.encode(text) for text in texts]
    for text, ids in zip(texts, encoded, strict=True):
        assert ours.decode(map(str, ids)) == flat(text)
        broken = ids[: len(ids) // 2 + 1]  # may end inside a character
        assert ours.decode(map(str, broken)) == flat(theirs.decode(broken))


def test_what_a_model_may_write_becomes_one_line(tmp_path: Path, files: Path) -> None:
    bpe = ByteBPE.load(files / FILES[0], files / FILES[1])
    broken = " ".join(map(str, bpe.encode(["a\n\nb\u2028c"])[0]))
    ids = write_lines(
        tmp_path / "ids", [f"<unk> {broken} madeupword0002 <mask> 99999", "", "<unk>"]
    )
    done = run(sys.executable, DECODE, "decode", ids, *encoding(files))
    assert done.stdout == "a b c\n\n\n"


def vocabulary(folder: Path, *more: str) -> ByteBPE:
    """An encoding as large as GPT-2's, with ``more`` entries."""
    train([write_lines(folder / "text", ["a b"])], 257, folder)
    ids = json.loads((folder / FILES[0]).read_text(encoding="utf-8"))
    for piece in (*(f"piece{n}" for n in range(50_257 - len(ids))), *more):
        ids[piece] = len(ids)
    (folder / FILES[0]).write_text(json.dumps(ids), encoding="utf-8")
    return ByteBPE.load(folder / FILES[0], folder / FILES[1])


@pytest.mark.parametrize(
    "more", [(), ("<s>", "<pad>", "</s>", "<unk>", "<mask>", "madeupword0000", "madeupword0001")]
)
def test_gpt2_and_bart_both_give_the_papers_dictionary(tmp_path: Path, more) -> None:
    path = write_lines(tmp_path / "dict.txt", vocabulary(tmp_path, *more).dictionary())
    words = Dictionary.load(str(path))
    assert len(words) == 50_272
    assert words.symbols[4:6] == ["0", "1"]
    assert words.index("50256") == 50_260
    assert words.index("madeupword0002") == 50_263
    assert words.index("<mask>") == 50_264  # BART's own index
    assert len(set(words.symbols)) == 50_272


@pytest.mark.parametrize("multiple", [1, 8, 64])
def test_a_dictionary_is_filled_up_to_the_multiple(files: Path, multiple: int) -> None:
    bpe = ByteBPE.load(files / FILES[0], files / FILES[1])
    size = len(bpe.dictionary(multiple)) + 4
    assert size % multiple == 0
    assert 0 <= size - (len(bpe.ids) + 5) < 2 * multiple


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (FILES[0], "{", r"line 1: not JSON"),
        (FILES[0], '{"a": "b"}', "must map pieces to ids"),
        (FILES[0], '{"a": 1, "b": 1}', "one id to two pieces"),
        (FILES[0], '{"a": 1}', "must have all 256 bytes as pieces, but lacks 255"),
        (FILES[1], "#version: 0.2\na b c\n", r"line 2: `a b c` is not two pieces"),
        (FILES[1], "#version: 0.2\n\nq zz\n", r"line 3: the piece `zz` is not in"),
    ],
)
def test_files_that_are_no_encoding_are_refused(tmp_path, files, name, text, message) -> None:
    for each in FILES:
        (tmp_path / each).write_text((files / each).read_text("utf-8"), encoding="utf-8")
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=message) as caught:
        ByteBPE.load(tmp_path / FILES[0], tmp_path / FILES[1])
    assert str(tmp_path / name) in str(caught.value)


def test_training_again_gives_the_same_files(tmp_path: Path, files: Path) -> None:
    assert train([files / "text"], 400, tmp_path / "again") == 400
    for name in FILES:
        assert (tmp_path / "again" / name).read_bytes() == (files / name).read_bytes()
    with pytest.raises(ValueError, match="at least 257, but is 256"):
        train([files / "text"], 256, tmp_path)


# ---- downloads and folders -----------------------------------------------------------------------


@pytest.fixture
def address(files: Path):
    """A web server with the encoding; a name with ``broken`` in it breaks off."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

        def do_GET(self) -> None:
            if "broken" not in self.path:
                return super().do_GET()
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b"short")

    handler = functools.partial(Handler, directory=str(files))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_the_first_download_is_recorded_and_another_file_refused(tmp_path, files, address) -> None:
    path = fetch(f"{address}/{FILES[1]}", tmp_path / "gpt2")
    assert path.read_bytes() == (files / FILES[1]).read_bytes()
    record = json.loads((tmp_path / "gpt2" / RECORD).read_text())
    assert record == {FILES[1]: sha256_of(path)}
    assert fetch("http://127.0.0.1:9/" + FILES[1], tmp_path / "gpt2") == path  # no network needed
    path.write_text("other")
    with pytest.raises(ValueError, match="when it was first downloaded"):
        fetch(f"{address}/{FILES[1]}", tmp_path / "gpt2")


@pytest.mark.parametrize("name", ["broken.bpe", "absent.bpe"])
def test_a_failed_download_leaves_nothing(tmp_path: Path, address: str, name: str) -> None:
    with pytest.raises(ValueError, match=name):
        fetch(f"{address}/{name}", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_command_downloads(tmp_path: Path, files: Path, address: str) -> None:
    words = (sys.executable, SCRIPT, "--data", files, "--out", tmp_path / "out", "--url", address)
    run(*words, "--download", tmp_path / "gpt2")
    for folder in ("gpt2", "out/bpe"):
        for name in FILES:
            assert (tmp_path / folder / name).read_bytes() == (files / name).read_bytes()


def write_both(one: Path, two: Path, fail: bool) -> None:
    with staged(one, two) as (first, second), writers([first / "x", second / "y"]) as files:
        files[0].write("text")
        if fail:
            raise ValueError("stop")


def test_folders_appear_whole_or_not_at_all(tmp_path: Path) -> None:
    one, two = tmp_path / "a" / "one", tmp_path / "two"
    two.mkdir()
    with pytest.raises(ValueError, match="stop"):
        write_both(one, two, fail=True)
    assert [path.name for path in tmp_path.rglob("*")] == ["two"]
    write_both(one, two, fail=False)
    assert [path.name for path in sorted(tmp_path.rglob("*"))] == ["a", "one", "x", "two", "y"]
