"""The WMT14 CSV files: every row in its place, both as text and as ids."""

import json
import random
import sys
import unicodedata
import zipfile
from fractions import Fraction
from pathlib import Path

import pytest
import wmt14_csv
from fairseq.data import Dictionary
from fairseq.data.encoders.gpt2_bpe_utils import get_encoder
from smoke import train
from wmt14_csv import CSV_NAMES, cut, dictionary_of, locate, rows

from fairseq_ext.text.byte_level import FILES, ByteBPE
from fairseq_ext.utils.errors import FairseqExtError
from fairseq_ext.utils.files import sha256
from tests.support.harness import REPO, contents_below, read_lines, run, write_lines
from tests.support.troubled_server import serving

COMMAND = (sys.executable, REPO / "preprocess" / "wmt14_csv.py")
COLUMNS = ("en", "de")
TRAIN, TEST = 203, 7  # odd, so that a half is not whole


def cells(number: int) -> tuple[str, str]:
    """The cells (de, en) of a row, with all that a CSV field may hold."""
    odd = ["", ' "Ja", sagte er', "\nzweite Zeile", "\u2028Öl\r", ' ""', ",,"][number % 6]
    return f"Satz {number}{odd}", f"Sentence, {number}{odd}"


def flat(cell: str) -> str:
    return " ".join(cell.split())


def write_csv(path: Path, table: list[tuple[str, ...]]):
    # Carriage returns stay outside quotes, as pandas writes them.
    quoted = [
        ",".join(f'"{c.replace(chr(34), chr(34) * 2)}"' if set(c) & set(',"\n') else c for c in row)
        for row in (("de", "en"), *table)
    ]
    return write_lines(path, quoted)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("csv")
    write_csv(folder / CSV_NAMES["train"], [cells(n) for n in range(TRAIN)])
    write_csv(folder / CSV_NAMES["valid"], [(f"v {n}", f"w {n}") for n in range(5)])
    write_csv(folder / CSV_NAMES["test"], [cells(n) for n in range(1000, 1000 + TEST)])
    text = write_lines(folder / "text", [flat(c) for n in range(TRAIN) for c in cells(n)])
    train([text], 400, folder)
    return folder


def words(data: Path, files: Path, out: Path, *options: object) -> list[str]:
    encoding = ("--vocabulary", files / FILES[0], "--merges", files / FILES[1])
    return [str(word) for word in ("--data", data, *encoding, "--out", out, *options)]


def convert(*arguments: object) -> str:
    """Convert in this process; return the summary."""
    return wmt14_csv.run(wmt14_csv.parser().parse_args(words(*arguments)))


def refused(message: str, data: Path, files: Path, out: Path, *options: object) -> None:
    """Require that converting ends in an error of one line, and writes nothing."""
    with pytest.raises(FairseqExtError, match=message) as error:
        convert(data, files, out, *options)
    assert "\n" not in str(error.value)
    assert not out.exists()


@pytest.mark.parametrize("place", ["folder", "zip", "nested zip", "zip in folder"])
def test_files_are_found_in_folders_and_archives(tmp_path: Path, files: Path, place: str) -> None:
    name, data = CSV_NAMES["test"], tmp_path
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
    with pytest.raises(ValueError, match=CSV_NAMES["train"]):
        locate(data, CSV_NAMES["train"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"de,fr\na,b\n", r"must name a column `en`, but is `de,fr`"),
        (b"", "must name a column `en`"),
        (b'de,en\na,b\n"c\nd",e,f\n', r"row 2 \(line 3\): 3 fields, but the heading has 2"),
        (b"de,en\na,b\n\nc,d\n", r"row 2 \(line 3\): 0 fields"),
        (b'de,en\n"a\nb",c\n"d,e\nf,g\n', "from line 4: .*quotation mark"),
        (b'de,en\na,b\nc,"d"e\n', "from line 3: .*quotation mark"),
        (b"de,en\na,b\nc,\xff\n", r"line 3: not UTF-8, byte 0xff at offset 2"),
        (b'de,en\na,b\n"c,d\n' + b"e,f\n" * 50_000, r"from line 3: not CSV \(field larger than"),
    ],
)
def test_malformed_files_are_named_with_row_and_line(tmp_path, text, message):
    path = tmp_path / "table.csv"
    path.write_bytes(text)
    with pytest.raises(ValueError, match=message) as caught:
        list(rows(path, COLUMNS))
    assert str(path) in str(caught.value)


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
    assert cut(total, Fraction(fraction), Fraction(valid)) == expected


def test_every_row_is_in_its_split_and_every_line_in_both_forms(tmp_path, files):
    options = ("--data", files, "--out", tmp_path / "out", "--download", tmp_path / "gpt2")
    with serving() as server:
        server.files.update({name: (files / name).read_bytes() for name in FILES})
        output = run(*COMMAND, *options, "--url", server.address).stdout
    for folder in ("gpt2", "out/bpe"):
        for name in FILES:
            assert (tmp_path / folder / name).read_bytes() == (files / name).read_bytes()
    bpe = get_encoder(str(files / FILES[0]), str(files / FILES[1]))
    ranges = {"train": range(100), "valid": range(100, 101), "test": range(1000, 1000 + TEST)}
    for split, numbers in ranges.items():
        for side, language in enumerate(("de", "en")):
            text = [flat(cells(n)[side]) for n in numbers]
            assert read_lines(tmp_path / "out" / "text" / f"{split}.{language}") == text
            ids = [" ".join(map(str, bpe.encode(line))) for line in text]
            assert read_lines(tmp_path / "out" / "bpe" / f"{split}.{language}") == ids
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["training rows"] == TRAIN
    assert manifest["splits"]["test"]["pairs"] == TEST
    assert manifest["inputs"][CSV_NAMES["train"]] == sha256(files / CSV_NAMES["train"])
    for name, digest in manifest["sha256"].items():
        assert sha256(tmp_path / "out" / name) == digest
    assert len(manifest["sha256"]) == 13
    assert "training rows: 203, of which used (`--fraction`): 1/2" in output


def test_the_csv_validation_file_and_a_zip(tmp_path: Path, files: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for name in CSV_NAMES.values():
            archive.write(files / name, f"wmt14/{name}")
    convert(tmp_path / "a.zip", files, tmp_path / "out", "--csv-valid", "--fraction", 1)
    assert read_lines(tmp_path / "out" / "text" / "valid.en") == [f"w {n}" for n in range(5)]
    assert len(read_lines(tmp_path / "out" / "text" / "train.en")) == TRAIN


def test_empty_sides_are_counted_in_training_and_refused_in_the_test_set(tmp_path, files):
    table = [cells(n) for n in range(20)]
    table[3] = ("\n ", "x")
    write_csv(tmp_path / CSV_NAMES["train"], table)
    write_csv(tmp_path / CSV_NAMES["test"], table[4:])
    convert(tmp_path, files, tmp_path / "out")
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["splits"]["train"]["dropped"] == 1
    assert len(read_lines(tmp_path / "out" / "bpe" / "train.en")) == 8
    write_csv(tmp_path / CSV_NAMES["test"], table)
    refused(f"`{CSV_NAMES['test']}`, row 4: a side is empty", tmp_path, files, tmp_path / "new")


def test_endless_lines_are_cut_and_counted(tmp_path: Path, files: Path) -> None:
    table = [("kurz", "short"), ("x" + " y" * 15_000, "long"), ("c", "d"), ("e", "f")]
    write_csv(tmp_path / CSV_NAMES["train"], table)
    write_csv(tmp_path / CSV_NAMES["test"], table[:1])
    output = convert(tmp_path, files, tmp_path / "out", "--fraction", 1, "--max-ids", 77)
    lengths = [len(line.split()) for line in read_lines(tmp_path / "out" / "bpe" / "train.de")]
    assert lengths[1] == 77
    assert read_lines(tmp_path / "out" / "text" / "train.de")[1] == table[1][0]
    longest = json.loads((tmp_path / "out" / "manifest.json").read_text())["splits"]["train"]["de"]
    assert longest["longest"] > 10_000
    assert longest["cut"] == 1
    assert '"cut": 1' in output.splitlines()[0]


def test_a_bad_row_in_the_unused_half_leaves_a_former_result_alone(tmp_path, files):
    for name in ("train", "test"):
        write_csv(tmp_path / CSV_NAMES[name], [cells(n) for n in range(20)])
    convert(tmp_path, files, tmp_path / "out")
    before = contents_below(tmp_path / "out")
    write_csv(tmp_path / CSV_NAMES["train"], [*(cells(n) for n in range(19)), ("one field",)])
    output = run(*COMMAND, *words(tmp_path, files, tmp_path / "out"), ok=False).stderr
    (complaint,) = [line for line in output.splitlines() if line and "rows" not in line]
    assert f"{CSV_NAMES['train']}`, row 20 (line " in complaint
    assert contents_below(tmp_path / "out") == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--src", "de"], "are both `de`"),
        (["--download", "x"], "or `--download` alone"),
        (["--src", "fr"], "must name a column `fr`"),
        (["--fraction", "1/203"], r"1/203` of 203 training rows leaves 1, and 1 of them"),
    ],
)
def test_wrong_options_are_named(tmp_path: Path, files: Path, options, message) -> None:
    refused(message, files, files, tmp_path / "out", *options)


@pytest.mark.parametrize("fraction", ["0", "1.1", "-1/2", "1/0", "half"])
def test_a_fraction_must_be_one(tmp_path: Path, fraction: str, capsys) -> None:
    with pytest.raises(SystemExit):
        convert(tmp_path, tmp_path, tmp_path / "out", f"--fraction={fraction}")
    assert "must be above 0 and at most 1" in capsys.readouterr().err


# GPT-2's encoding as fairseq writes it, its dictionary, and downloads
@pytest.fixture(scope="module")
def bpe(files: Path) -> ByteBPE:
    return ByteBPE(files / FILES[0], files / FILES[1])


def odd_texts() -> list[str]:
    """Text in many scripts, contractions, digits, runs of spaces, and combining marks."""
    generator = random.Random(3)
    letters = [chr(c) for c in range(0x20, 0x3000) if unicodedata.category(chr(c))[0] in "LNPSMZ"]
    letters += list("中文字日本語😀🇩🇪") + [" "] * 500
    texts = ["".join(generator.choices(letters, k=generator.randrange(1, 60))) for _ in range(300)]
    return [*texts, "I'm  sure they'LL've 3,141 € <|endoftext|> <s> ", "a", "\u0085 "]


def test_ids_and_text_are_those_of_fairseqs_own_encoder(bpe: ByteBPE, files: Path) -> None:
    theirs = get_encoder(str(files / FILES[0]), str(files / FILES[1]))
    texts = odd_texts()
    encoded = bpe.encode(texts)
    assert encoded == [theirs.encode(text) for text in texts]
    for text, ids in zip(texts, encoded, strict=True):
        assert bpe.decode(map(str, ids)) == flat(text)
        broken = ids[: len(ids) // 2 + 1]  # may end inside a character
        assert bpe.decode(map(str, broken)) == flat(theirs.decode(broken))


def test_what_a_model_may_write_becomes_one_line(bpe: ByteBPE) -> None:
    broken = " ".join(map(str, bpe.encode(["a\n\nb\u2028c"])[0]))
    written = f"<unk> {broken} madeupword0002 <mask> 99999"
    assert [bpe.decode(line.split()) for line in (written, "", "<unk>")] == ["a b c", "", ""]


def vocabulary(folder: Path, *options: str) -> ByteBPE:
    """An encoding as large as GPT-2's, and further entries."""
    train([write_lines(folder / "text", ["a b"])], 257, folder)
    ids = json.loads((folder / FILES[0]).read_text(encoding="utf-8"))
    for piece in (*(f"piece{n}" for n in range(50_257 - len(ids))), *options):
        ids[piece] = len(ids)
    (folder / FILES[0]).write_text(json.dumps(ids), encoding="utf-8")
    return ByteBPE(folder / FILES[0], folder / FILES[1])


@pytest.mark.parametrize(
    "options", [(), ("<s>", "<pad>", "</s>", "<unk>", "<mask>", "madeupword0000", "madeupword0001")]
)
def test_gpt2_and_bart_both_give_the_papers_dictionary(tmp_path: Path, options) -> None:
    path = write_lines(tmp_path / "dict.txt", dictionary_of(vocabulary(tmp_path, *options).ids))
    words = Dictionary.load(str(path))
    assert len(words) == 50_272
    assert words.symbols[4:6] == ["0", "1"]
    assert words.index("50256") == 50_260
    assert words.index("madeupword0002") == 50_263
    assert words.index("<mask>") == 50_264  # BART's own index
    assert len(set(words.symbols)) == 50_272


@pytest.mark.parametrize("multiple", [1, 8, 64])
def test_a_dictionary_is_filled_up_to_the_multiple(bpe: ByteBPE, multiple: int) -> None:
    size = len(dictionary_of(bpe.ids, multiple)) + 4
    assert size % multiple == 0
    assert 0 <= size - (len(bpe.ids) + 5) < 2 * multiple


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (FILES[0], "{", r"line 1: not JSON"),
        (FILES[0], '{"a": "b"}', "must map pieces to ids"),
        (FILES[0], '{"a": 1, "b": 1}', "one id to two pieces"),
        (FILES[0], '{"a": 1}', "must have all 256 bytes as pieces, but lacks 255"),
        (FILES[1], "#version: 0.2\na b c\n", r"Merges text file invalid at line 1"),
        (FILES[1], "#version: 0.2\nq zz\n", r"Token `zz` out of vocabulary"),
    ],
)
def test_files_that_are_no_encoding_are_refused(tmp_path, files, name, text, message) -> None:
    for file in FILES:
        (tmp_path / file).write_text((files / file).read_text("utf-8"), encoding="utf-8")
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=message) as caught:
        ByteBPE(tmp_path / FILES[0], tmp_path / FILES[1])
    assert str(tmp_path / name) in str(caught.value)
