"""Splitting sentence pairs: no leaks, exact sizes, whatever the input's form; clear errors."""

import bz2
import contextlib
import functools
import gzip
import hashlib
import io
import itertools
import json
import lzma
import random
import re
import shlex
import zipfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_ext.corpora import SPLITS, pair_texts, split_pairs
from fairseq_ext.corpora.command_lines import SIDES, PairOptions
from fairseq_ext.corpora.near_duplicates import normalized
from fairseq_ext.corpora.pair_texts import Text
from fairseq_ext.text.cleaning import plain
from fairseq_ext.text.reading import lines, table_rows
from fairseq_ext.utils import locks
from fairseq_ext.utils.errors import DataError
from tests.support.fuzz_readers import pairs_of
from tests.support.harness import contents, ended, leaves_no_trace, read_lines, write_lines

Pairs = list[tuple[str, str]]

LANGS = ("--src-lang", "es", "--tgt-lang", "en")


def corpus() -> list[tuple[str, str]]:
    """Return 300 English sentences with one to three Spanish ones, some of these twice."""
    rng = random.Random(4)
    return [
        (f"oración {rng.randrange(2000)} .", f"Sentence {number}{'.!?'[ending]}")
        for number in range(300)
        for ending in range(rng.randint(1, 3))
    ]


def spanish_english(folder: Path) -> Path:
    """Write pairs as Tatoeba does: English first, and a column about the authors."""
    return write_lines(folder / "pairs.tsv", [f"{en}\t{es}\tCC-BY" for es, en in corpus()])


def split(
    pairs: Pairs, folder: Path, size: int = 97, ranges: int = 50, **how: object
) -> tuple[dict[str, Pairs], dict]:
    """Split pairs in parts of ``size`` and in ``ranges`` ranges; return the splits and counts."""
    (folder / "job").mkdir(parents=True)
    names = (folder / "source", folder / "target")
    files = tuple(write_lines(path, [pair[i] for pair in pairs]) for i, path in enumerate(names))
    options = PairOptions("es", "en", folder / "out", part_lines=size, workers=1, **how)
    job = split_pairs.prepare(options, (Text("pairs", files),), folder / "job", ranges)
    split_pairs.work(job)
    outputs = {name: (io.StringIO(), io.StringIO()) for name in SPLITS}
    report = job.write(outputs)
    splits = {}
    for name, sides in outputs.items():
        *sentences, rest = zip(*(side.getvalue().split("\n") for side in sides), strict=True)
        assert rest == ("", "")  # each line ends
        splits[name] = sentences
    return splits, report


def naive_cleaned(pairs: Pairs, max_words: int) -> tuple[Pairs, Counter[str]]:
    """Drop pairs with a side that is empty or too long, and repeated ones; count these."""
    distinct: dict[tuple[str, str], None] = {}
    dropped: Counter[str] = Counter()
    for pair in pairs:
        source, target = map(plain, pair)
        if not source or not target:
            dropped["empty side"] += 1
        elif max(source.count(" "), target.count(" ")) >= max_words:
            dropped[f"more than {max_words} words"] += 1
        elif (source, target) in distinct:
            dropped["repeated pair"] += 1
        else:
            distinct[source, target] = None
    return list(distinct), dropped


def naive_split(
    pairs: Pairs, side: int, valid: int, test: int, salt: str, strict: bool
) -> tuple[dict[str, Pairs], Counter[str]]:
    """Split ``pairs`` in memory, directly by the rules; also count dropped pairs.

    The distinct sentences of ``side`` are put in the order of their SHA-256 hashes; the first go
    into the test set, the next into the validation set, all others into train. If several pairs
    have the same sentence, valid and test keep the pair with the smallest hash, so sizes are exact.
    With ``strict``, training pairs whose *other* side is in valid or test are dropped.
    """

    def hashed(text: str) -> bytes:
        return hashlib.sha256(f"{salt}\n{text}".encode()).digest()

    keys, others = ([normalized(pair[i]) for pair in pairs] for i in (side, 1 - side))
    order = sorted({*keys}, key=lambda text: (hashed(text), text))
    place = dict.fromkeys(order[:test], "test") | dict.fromkeys(order[test : test + valid], "valid")
    best = {
        min(
            (index for index, text in enumerate(keys) if text == key),
            key=lambda index: (hashed("\t".join(pairs[index])), index),
        )
        for key in place
    }
    held_out = {others[i] for i in best}
    splits: dict[str, Pairs] = {name: [] for name in SPLITS}
    dropped: Counter[str] = Counter()
    for index, pair in enumerate(pairs):
        name = place.get(keys[index], "train")
        if strict and name == "train" and others[index] in held_out:
            dropped[f"{SIDES[1 - side]} sentence also in valid or test"] += 1
        elif name != "train" and index not in best:
            dropped["further pair of a held-out sentence"] += 1
        else:
            splits[name].append(pair)
    return splits, dropped


WORDS = st.sampled_from(["a", "A", "b", "c d", "e!", "f g h", "", " ", "i\u00a0j", "«k»"])


@settings(max_examples=30)
@given(
    pairs=st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=60),
    size=st.integers(1, 70),
    ranges=st.integers(1, 70),
    salt=st.sampled_from("12"),
    key=st.sampled_from(["auto", "source", "target"]),
    strict=st.booleans(),
    held=st.tuples(st.integers(0, 2), st.integers(0, 2)),
)
def test_parts_and_ranges_do_not_change_a_byte(
    tmp_path_factory, pairs, size, ranges, salt, key, strict, held
):
    cleaned, dropped = naive_cleaned(pairs, 2)
    distinct = [len({normalized(pair[side]) for pair in cleaned}) for side in (0, 1)]
    repeating = int(distinct[1] < distinct[0])  # the side with fewer distinct sentences
    side = repeating if key == "auto" else int(key == "target")
    if distinct[side] <= sum(held):
        return
    options = {"valid": held[0], "test": held[1], "salt": salt, "strict": strict}
    expected, further = naive_split(cleaned, side, **options)
    options = {"size": size, "ranges": ranges, "key": key, "max_words": 2, **options}
    splits, report = split(pairs, tmp_path_factory.mktemp("split"), **options)
    assert splits == expected
    assert report["dropped"] == dropped + further
    assert (report["read"], report["key"]) == (len(pairs), SIDES[side])
    for name, pair_count in report["splits"].items():
        words = [[w for pair in expected[name] for w in pair[side].split()] for side in (0, 1)]
        assert pair_count == len(expected[name])
        assert report["words"][name] == [len(words) for words in words]


def near_duplicates_of(rng: random.Random) -> Pairs:
    """Return pairs in families, in which each sentence is a word away from the next."""
    names = ["Tom", "Mary", "John", "Ana"]
    stems = [" ".join(rng.choices("abcdefghijkl", k=7)) for _ in range(60)]
    return [(f"{name} {stem}", f"{stem} {name} x{number}") for number, stem in enumerate(stems)
            for name in names[: 1 + number % 4]]  # fmt: skip


@pytest.mark.parametrize(("size", "ranges"), [(7, 5), (1000, 1000)])
def test_groups_of_near_duplicates_stay_on_one_side(size, ranges, tmp_path):
    pairs = near_duplicates_of(random.Random(3))
    pairs += pairs[:9]  # repeats
    splits, report = split(
        pairs, tmp_path, key="groups", valid=10, test=20, size=size, ranges=ranges
    )
    assert [len(splits[name]) for name in ("valid", "test")] == [10, 20]
    assert sum(map(len, splits.values())) == len({*pairs})
    families = {name: {pair[1].split()[-1] for pair in splits[name]} for name in splits}
    for first, other in itertools.combinations(families.values(), 2):
        assert not first & other
    assert (report["key"], report["groups"], report["largest"]) == ("groups", 60, 4)
    assert report["dropped"] == {"repeated pair": 9}
    second_split, _ = split(pairs, tmp_path / "again", key="groups", valid=10, test=20)
    assert second_split == splits


def test_the_same_sentence_is_one_whatever_case_and_punctuation():
    assert normalized("«Don't  GO!»") == normalized("don t go") == "don t go"
    assert normalized("¿Sí?") != normalized("si")
    assert normalized("कि") != normalized("की")  # vowel signs are no punctuation
    assert normalized("?!") == "?!"


@pytest.mark.parametrize(
    ("pairs", "held_out", "message"),
    [
        (near_duplicates_of(random.Random(3)), ("groups", 75), "near-duplicates among 150 pairs"),
        (corpus(), ("target", 150), "more than 300 distinct target sentences, but there are 300"),
        ([("", "a"), ("b", "")], ("auto", 9), r"no pairs are left of 2 read; nothing to write\. "),
    ],
    ids=["groups", "sentences", "pairs"],
)
def test_too_few_pairs_are_an_error(tmp_path, pairs, held_out, message):
    key, count = held_out
    with pytest.raises(ValueError, match=message):
        split(pairs, tmp_path, key=key, valid=count, test=count)


def packed(folder: Path, form: str, content: bytes) -> Path:
    if form == "zip":
        with zipfile.ZipFile(folder / "f.zip", "w") as archive:
            archive.writestr("spa-eng/_about.txt", "about")
            archive.writestr("spa-eng/spa.txt", content)
        return folder / "f.zip"
    path = folder / f"f.{form}"
    compress = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}.get(form, bytes)
    path.write_bytes(compress(content))
    return path


@pytest.mark.parametrize("form", ["tsv", "gz", "bz2", "xz", "zip"])
def test_every_form_reads_alike_whatever_its_name(tmp_path, form):
    text = "\ufeffGo.\tVe.\tx\r\nI'm\u2028in\u00a0love.\tEstoy\renamorado.\ty\nlast\túltima"
    path = packed(tmp_path, form, text.encode()).rename(tmp_path / "pairs")
    texts = pairs_of(tmp_path, path, columns=(2, 1))
    assert texts == [("Ve.", "Go."), ("Estoy enamorado.", "I'm in love."), ("última", "last")]


def test_aligned_files(tmp_path):
    source = write_lines(tmp_path / "s", ["a", "b", "c"])
    target = packed(tmp_path, "gz", b"A\nB\nC\n")
    assert pairs_of(tmp_path, source, target) == [("a", "A"), ("b", "B"), ("c", "C")]
    write_lines(source, ["a", "b", "c", "d", "e"])
    with pytest.raises(ValueError, match=r"has 5 lines.*f\.gz` has 3"):
        pairs_of(tmp_path, source, target)
    with pytest.raises(ValueError, match=r"f\.gz` has 3 lines, `.*s` has 5"):
        pairs_of(tmp_path, target, source)


def test_unreadable_input_is_named(tmp_path):
    def refused(path: Path, message: str, *member: str) -> None:
        with pytest.raises(DataError, match=message):
            list(lines(path, *member))

    refused(tmp_path / "absent.tsv", r"absent\.tsv` does not exist")
    refused(packed(tmp_path, "tsv", b"a\nno\xff\n"), "line 2: not UTF-8, byte 0xff at offset 2")
    with pytest.raises(DataError, match=r"line 2: 1 column\(s\).* needs 2\.$"):
        pairs_of(tmp_path, packed(tmp_path, "tsv", b"a\tb\nc d\n"))
    with pytest.raises(DataError, match=r"line 1: 1 column\(s\).* If it is CSV, give --csv"):
        pairs_of(tmp_path, packed(tmp_path, "tsv", b"a;b\n"))
    with pytest.raises(DataError, match="if it is UTF-16, convert it: iconv -f utf-16le "):
        pairs_of(tmp_path, packed(tmp_path, "tsv", "a\tb\n".encode("utf-16le")))
    for form in ("csv", "gz", "zip"):
        with pytest.raises(DataError, match=r"without a line feed; convert it: tr '\\r'"):
            pairs_of(tmp_path, packed(tmp_path, form, b"a,b\rc,d\r"))
    for form in ("gz", "bz2", "xz"):
        path = packed(tmp_path, form, bytes(random.Random(1).randbytes(5000).hex(), "ascii"))
        for damaged in (path.read_bytes()[:-900], b"not compressed at all"):
            path.write_bytes(damaged)
            refused(path, "is damaged")
    path = packed(tmp_path, "zip", b"a\n")
    refused(path, r"no member `x`; it has .*spa-eng/spa\.txt", "x")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("second.txt", "a")
    refused(path, r"--member: .*second\.txt")
    path.write_bytes(b"PK no zip")
    refused(path, "is damaged")


JAPANESE = [f"これは文です{number}。" for number in range(30)]
CSV = "\ufeffid;ja;en\r\n" + "".join(
    f'{number};{line};"He said ""{number}"";\r\nand went."\r\n'
    for number, line in enumerate(JAPANESE)
)


def corpus_pairs(*arguments: object, ok: bool = True) -> str:
    """Run the command in this process; return all that it prints."""
    status, output, errors = ended("corpus", "pairs", *arguments)
    assert (status == 0) == ok, errors
    assert "Traceback" not in errors
    return output + errors


FROM_JAPANESE = ("--src-lang", "ja", "--tgt-lang", "en", "--valid", 3, "--test", 3)
pairs_command = functools.partial(corpus_pairs, *FROM_JAPANESE)
command = functools.partial(corpus_pairs, *LANGS)


@pytest.mark.parametrize("name", ["pairs.csv", "pairs.csv.gz"])
def test_csv_with_a_header_as_excel_writes_it(tmp_path, name):
    content = CSV.encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    options = ("--header", "--columns", "ja,en", "--out", tmp_path / "out", "--part-lines", 7)
    assert "warning" not in pairs_command(tmp_path / name, *options)
    text = {
        side: [line for split in SPLITS for line in read_lines(tmp_path / f"out/{split}.{side}")]
        for side in ("ja", "en")
    }
    expected = {(line, f'He said "{number}"; and went.') for number, line in enumerate(JAPANESE)}
    assert {*zip(text["ja"], text["en"], strict=True)} == expected


@pytest.mark.parametrize("table", [True, False])
def test_a_row_with_too_few_columns_is_named_by_its_line_in_the_file(tmp_path, table):
    """Behind a header and, in CSV, a line end within a cell."""
    rows = ["es;en", "uno;one", '"dos\ny medio";two', "tres", "cuatro;four"]
    if not table:
        rows = [row.replace(";", "\t").replace("\n", " ") for row in rows]
    text = Text("", (write_lines(tmp_path / "pairs", rows),), table=table, header=True)
    with pytest.raises(DataError, match=rf"pairs`, line {5 if table else 4}: 1 column\(s\)"):
        pair_texts.unpack(text, 0, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_delimiter_of_csv_is_as_frequent_in_every_line(tmp_path):
    path = write_lines(tmp_path / "pairs.csv", ["a, b, c;d", "e;f", "g, h;i"])
    assert [row for _, row in table_rows(path)] == [["a, b, c", "d"], ["e", "f"], ["g, h", "i"]]
    for top in (["sep=|", "a, b|c;d"], ["a, b|c", "e|f"]):
        rows = [row for _, row in table_rows(write_lines(path, top))]
        assert rows[-1] == top[-1].split("|")
    write_lines(path, ['"a\n, b"\t "c"', "", '5" of, d\te', ""])
    filled = [(1, ["a\n, b", "c"]), (4, ['5" of, d', "e"])]
    assert list(table_rows(path)) == [filled[0], (3, []), filled[1], (5, [])]
    assert list(pair_texts.rows(Text("", (path,), table=True))) == filled


FRENCH = ["Où est-elle ?", "Elle a été là.", "C’est l’été.", "Très bien !"]


@pytest.mark.parametrize(
    ("cells", "remark"),
    [
        ([f"'{line}'" for line in FRENCH], "is in quotation marks (`'`), which become part"),
        ([f"« {line} »" for line in FRENCH], "is in quotation marks (`«`), which become part"),
        (
            [line.encode().decode("cp1252") for line in FRENCH],
            "seems to be UTF-8 that was read as Windows-1252 (`Ã©`); convert it: "
            "iconv -f utf-8 -t cp1252 < a.csv > a.csv.new",
        ),
        (["Source text", *FRENCH[1:]], "(`source text / target sentence`) looks like a header"),
        (["Text source.", *FRENCH[1:]], ""),
        (FRENCH, ""),
        (["l'eau d'ici'", *FRENCH[1:]], ""),
    ],
)
def test_what_a_column_seems_to_hold_is_remarked_on(cells, remark, capsys):
    text = split_pairs.Text("", (Path("a.csv"),), table=True)
    others = ["Target sentence" if "ource" in cells[0] else "Where is she?", *FRENCH[1:]]
    split_pairs._warn_of_columns(text, [*map(list, zip(cells, others, strict=True))], ("x", "y"))
    output = capsys.readouterr().err
    assert remark in output if remark else not output


def test_wrong_encodings_of_two_files_are_remarked_on(tmp_path, capsys):
    wrong = [line.encode().decode("cp1252") for line in FRENCH]
    source, target = write_lines(tmp_path / "a", wrong), write_lines(tmp_path / "b", FRENCH)
    split_pairs._texts(PairOptions("x", "y", tmp_path / "out", source=source, target=target))
    assert f"{source} seems to be UTF-8 that was read" in (output := capsys.readouterr().err)
    assert f"{target} seems" not in output


def test_a_header_and_an_id_column_are_remarked_on(tmp_path):
    rows = ["id\tja\ten", *(f"{n}\t{line}\tline {n}" for n, line in enumerate(JAPANESE))]
    table = write_lines(tmp_path / "pairs.tsv", rows)
    options = ("--columns", "2,3", "--out", tmp_path / "out")
    assert "line 1 of" in (output := pairs_command(table, *options))
    assert "(`ja / en`) looks like a header, and becomes a pair; give --header" in output
    assert "warning" not in pairs_command(table, "--header", *options, "--overwrite")
    output = pairs_command(table, "--header", "--out", tmp_path / "ids")
    assert "column 1 of" in output
    assert "holds numbers or names (`0` …), not sentences; choose other columns" in output
    output = pairs_command(table, "--out", tmp_path / "ids", "--overwrite")
    assert "(`id / ja`) looks like a header" in output
    assert "holds numbers or names (`0` …)" in output
    lines = ["Quelle\ttext_en", *(f"s{n}.1\tline {n}" for n in range(20)), ""]
    output = pairs_command(write_lines(tmp_path / "b.tsv", lines), "--out", tmp_path / "b")
    assert "(`quelle / text_en`) looks like a header" in output
    assert "holds numbers or names (`s0.1` …)" in output
    quoted = write_lines(tmp_path / "quoted.tsv", [f'"b ""{n}"""\t"a {n}"' for n in range(20)])
    output = pairs_command(quoted, "--out", tmp_path / "quoted")
    assert "column 1 of" in output
    assert "column 2 of" in output
    assert "is in quotation marks, which become part of the text; remove them with --csv" in output


def test_a_corpus_that_was_made_otherwise_is_not_overwritten(tmp_path):
    table = write_lines(tmp_path / "pairs.tsv", [f"{s}\tline {n}" for n, s in enumerate(JAPANESE)])
    options = (table, "--out", tmp_path / "out")
    pairs_command(*options)
    before = (tmp_path / "out/test.ja").read_bytes()
    pairs_command(*options)  # the same again
    output = pairs_command(*options, "--salt", 2, ok=False)
    assert "has a corpus already, made of other text or with other options" in output
    assert (tmp_path / "out/test.ja").read_bytes() == before
    pairs_command(*options, "--salt", 2, "--overwrite")
    assert (tmp_path / "out/test.ja").read_bytes() != before


def test_a_corpus_that_another_run_has_just_written_is_not_overwritten(tmp_path, monkeypatch):
    @contextlib.contextmanager
    def other_run_first(path, *, wait):
        write_lines(tmp_path / "out" / "train.es", ["of the other run"])
        yield True

    monkeypatch.setattr(locks, "held", other_run_first)
    table = write_lines(tmp_path / "pairs.tsv", [f"a {n}\tb {n}" for n in range(9)])
    options = PairOptions("es", "en", tmp_path / "out", pairs=table, valid=1, test=1)
    with pytest.raises(DataError, match="has a corpus already"):
        split_pairs.run(options)


def test_command_splits_a_tab_separated_file(tmp_path):
    out = tmp_path / "out"
    options = ("--valid", 20, "--test", 30, "--columns", "2,1", "--lowercase", "--tokenize")
    output = command(spanish_english(tmp_path), *options, "--out", out)
    assert "split by the target sentence" in output
    dropped = re.search(r"dropped, source sentence also in valid or test: (\d+)", output)
    assert int(dropped[1]) > 0
    assert "are not for training" not in output
    words = (tmp_path / "pairs.tsv", *options, "--no-strict", "--out", tmp_path / "lenient")
    assert "dropped, source sentence" not in command(*words)
    sizes = [len(read_lines(folder / "train.es")) for folder in (tmp_path / "lenient", out)]
    assert sizes[0] - sizes[1] == int(dropped[1])
    text = {path.name: read_lines(path) for path in out.iterdir() if path.suffix != ".json"}
    assert sorted(text) == [f"{s}.{x}" for s in ("test", "train", "valid") for x in ("en", "es")]
    for name, size in (("valid", 20), ("test", 30)):
        assert len(text[f"{name}.en"]) == len(text[f"{name}.es"]) == size
    assert not set(text["train.en"]) & set(text["test.en"] + text["valid.en"])
    tokenized = {(es, f"{en[:-1].lower()} {en[-1]}") for es, en in corpus()}
    assert set(zip(text["train.es"], text["train.en"], strict=True)) <= tokenized
    manifest = json.loads((out / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["report"]["splits"]["test"] == 30
    large_sizes = ("--valid", 150, "--test", 30, "--overwrite")
    swapped = command(tmp_path / "pairs.tsv", *large_sizes, "--columns", "1,2", "--out", out)
    assert "180 pairs are not for training; smaller --valid and --test leave" in swapped
    assert "split by the source sentence" in swapped
    assert (out / "train.es").read_text(encoding="utf-8").startswith("Sentence")
    # An error leaves what is there as it was.
    before = contents(out)
    words = (tmp_path / "pairs.tsv", "--columns", "1,4", "--out", out, "--overwrite")
    output = command(*words, ok=False)
    assert "fairseq-ext: error:" in output
    assert "line 1: 3 column(s)" in output
    assert contents(out) == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--corpora list.json --columns 2,1", "`--columns` goes with "),
        ("--corpora list.json --member x", "`--member` goes with "),
        ("--source a --target b --columns 2,1", "`--columns` goes with "),
        ("--source a --target b --member x", "`--member` goes with "),
        ("table --member x", "`--member` goes with "),
        ("--source a --target a", "are the same file"),
        ("--source a --as valid", "both --source and --target"),
        *(
            (f"--source a --target b --as test {option} {value}", f"`{option}` does not go with ")
            for option, value in (("--valid", 2), ("--test", 0), ("--key", "source"), ("--salt", 2))
        ),
        ("--source a --target b --as test --no-strict", "with `--as`, which does not split."),
        *(
            (
                f"a --src-lang '{language}'",
                "`--src` must be a language, such as en or pt-BR, but is",
            )
            for language in ("a/b", "", "../en", "e n")
        ),
        ("table --header --columns ja,de", "must have one column `de`; it has ja, en."),
        ("table --columns ja,en", "`--columns` has names, which `--header` reads; give `--header`"),
        ("a.xlsx", "`a.xlsx` is no text; save it as CSV"),
    ],
)
def test_command_lines_that_are_refused(tmp_path, words, message):
    (tmp_path / "list.json").write_text('[{"name": "a", "pairs": "table", "licence": "CC0"}]')
    for name, text in (("a", "a ."), ("b", "b ."), ("table", "ja\ten\nb\tc"), ("a.xlsx", "PK")):
        write_lines(tmp_path / name, [text])
    arguments = ("corpus", "pairs", *LANGS, *shlex.split(words), "--out", "out")
    leaves_no_trace(tmp_path, message, *arguments)


def test_aligned_files_become_splits_of_one_folder_that_are_made_alike(tmp_path):
    source = write_lines(tmp_path / "s", ["b .", "a .", "b ."])
    target = write_lines(tmp_path / "t", ["B .", "A .", "B ."])
    words = ("--source", source, "--target", target, "--out", tmp_path / "out", "--as")
    command(*words, "valid", "--tokenize")
    assert (tmp_path / "out/valid.es").read_bytes() == source.read_bytes()
    assert (tmp_path / "out/valid.en").read_bytes() == target.read_bytes()
    output = command(*words, "train", ok=False)
    assert "says that its text was made by other steps" in output
    assert not (tmp_path / "out/train.es").exists()
    command(*words, "train", "--tokenize")
