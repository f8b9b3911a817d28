#!/usr/bin/env python
"""Convert the CSV files of WMT14 English–German to text and byte-level BPE for fairseq.

    python preprocess/wmt14_csv.py --data archive.zip --download gpt2 --out data/wmt14.en-de

As in section 2 of the Linformer paper, only the first half of the training rows is used. The last
1 % of these rows is for validation. The test file is the test set.
"""

import argparse
import json
import sys
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import count, islice
from pathlib import Path
from typing import IO, Any

from tqdm import tqdm

from fairseq_ext.corpora import SPLITS
from fairseq_ext.corpora.command_lines import positive
from fairseq_ext.corpora.downloads import fetch
from fairseq_ext.text.byte_level import FILES, ByteBPE
from fairseq_ext.text.cleaning import one_spaced
from fairseq_ext.text.pipeline import Pipeline
from fairseq_ext.text.reading import table_rows
from fairseq_ext.utils.archives import archive_errors
from fairseq_ext.utils.errors import ConfigError, DataError, FairseqExtError
from fairseq_ext.utils.files import sha256, staged_folder, write_all, writers

CSV_NAMES = {
    "train": "wmt14_translate_de-en_train.csv",
    "valid": "wmt14_translate_de-en_validation.csv",
    "test": "wmt14_translate_de-en_test.csv",
}
GPT2_URL = "https://dl.fbaipublicfiles.com/fairseq/gpt2_bpe"  # the default of `--bpe gpt2`
CHUNK = 2_000  # rows encoded at a time; the library spreads them over the cores
FAIRSEQ_SPECIALS = 4  # <s>, <pad>, </s>, <unk>: every fairseq dictionary begins with them
SentencePair = tuple[str, str]
Location = tuple[Path, str | None]  # a file, or an archive and the name of a file in it


# ---- rows ----------------------------------------------------------------------------------------


def locate(data: Path, name: str) -> Location:
    """Find the file ``name`` in a folder or a zip archive.

    Return ``(path, None)`` for a file in a folder, or ``(archive, member)`` for one in an archive.
    """
    if data.is_dir():
        for path in (data / name, data / f"{name}.zip"):  # the site packs single files, too
            if path.is_file():
                return locate(path, name) if path.suffix == ".zip" else (path, None)
        raise DataError(f"the folder `{data}` has no file `{name}`; check the path.")
    if not (data.is_file() and zipfile.is_zipfile(data)):
        raise DataError(f"`{data}` must be a folder or a .zip with `{name}`, but is neither.")
    with archive_errors(data), zipfile.ZipFile(data) as archive:
        members = [member for member in archive.namelist() if Path(member).name == name]
    if len(members) != 1:
        listed = ", ".join(members)[:500] or "none"
        raise DataError(f"`{data}` must have one file `{name}`, but has {listed}.")
    return data, members[0]


def rows(path: Path, columns: tuple[str, str], member: str | None = None) -> Iterator[SentencePair]:
    """Yield the two named columns of every row, in the order of the file, with single spaces.

    ``member`` is the name of the file in a ``.zip``.
    """
    table = table_rows(path, member)
    heading = [name.strip() for name in next(table, (1, []))[1]]
    for name in columns:
        if name not in heading:
            raise DataError(
                f"`{path}`: the first row must name a column `{name}`, but is "
                f"`{','.join(heading)[:60]}`."
            )
    source, target = map(heading.index, columns)
    for number, (line, row) in enumerate(table, 1):
        if len(row) != len(heading):
            raise DataError(
                f"`{member or path}`, row {number} (line {line}): {len(row)} fields, but the "
                f"heading has {len(heading)}; correct or delete the row."
            )
        yield one_spaced(row[source]), one_spaced(row[target])


def cut(total: int, fraction: Fraction, valid_fraction: Fraction) -> tuple[int, int]:
    """Return how many of ``total`` rows are for training, and how many after these for validation.

    The first ``fraction`` of all rows is used, and the last ``valid_fraction`` of the used rows is
    for validation: at least one row, unless ``valid_fraction`` is 0. Both numbers are rounded down,
    by exact arithmetic.
    """
    used = int(total * fraction)
    valid = max(1, int(used * valid_fraction)) if valid_fraction else 0
    if used <= valid:
        raise DataError(
            f"`--fraction {fraction}` of {total} training rows leaves {used}, and {valid} of them "
            "are for validation, so nothing is left to train on; use a larger fraction."
        )
    return used - valid, valid


# ---- conversion ----------------------------------------------------------------------------------


@dataclass
class Split:
    """The counts of one split: pairs written, pairs dropped for an empty side, and lengths."""

    pairs: int = 0
    dropped: int = 0
    # The length of each sentence before truncation, in ids without <s> and </s>, on both sides.
    lengths: tuple[list[int], list[int]] = field(default_factory=lambda: ([], []))

    def sides(self, limit: int) -> list[dict[str, int]]:
        """Return a dict for each side that summarizes the lengths of its sentences, in ids.

        The dict has the ``total`` length, the ``shortest`` and ``longest``, and ``cut``, the number
        of sentences of more than ``limit`` ids.
        """
        return [
            {
                **{"total": sum(lengths), "shortest": min(lengths), "longest": max(lengths)},
                "cut": sum(length > limit for length in lengths),
            }
            for lengths in self.lengths
        ]

    def complete(self, pairs: Iterable[SentencePair], name: str) -> Iterator[SentencePair]:
        """Yield pairs without an empty side; count others, or refuse them if ``name`` is test."""
        for number, pair in enumerate(pairs, 1):
            if all(pair):
                yield pair
            elif name == "test":
                raise DataError(
                    f"`{CSV_NAMES[name]}`, row {number}: a side is empty. No row of a test set is "
                    "left out silently; complete or delete the row."
                )
            else:
                self.dropped += 1

    def encode(
        self, pairs: Iterable[SentencePair], bpe: ByteBPE, limit: int, files: Sequence[IO[str]]
    ) -> None:
        """Write each pair as text and as ids, and count the pair and its lengths in this object.

        Only the first ``limit`` ids of a sentence are written, but all are counted. ``files`` are
        the files for source text, target text, source ids and target ids.
        """
        pairs = iter(pairs)
        while chunk := list(islice(pairs, CHUNK)):
            self.pairs += len(chunk)
            for place, lines in enumerate(zip(*chunk, strict=True)):
                encoded = bpe.encode(lines)
                self.lengths[place].extend(map(len, encoded))
                files[place].writelines(f"{line}\n" for line in lines)
                files[place + 2].writelines(
                    f"{' '.join(map(str, ids[:limit]))}\n" for ids in encoded
                )


def convert(
    args: argparse.Namespace, locations: dict[str, Location], bpe: ByteBPE, origins: Sequence[Path]
) -> tuple[int, dict[str, Split]]:
    """Write ``text/`` and ``bpe/``; return the number of training rows, and each split's counts.

    ``locations`` has the CSV file of each split, and ``origins`` are the two files of GPT-2's
    encoding. If anything fails, nothing is written.
    """
    columns = (args.src, args.tgt)

    def read(name: str) -> Iterator[SentencePair]:
        path, member = locations[name]
        return rows(path, columns, member)

    total = sum(1 for _ in tqdm(read("train"), desc="count", unit=" rows", disable=None))
    train, valid = cut(total, args.fraction, Fraction(0) if args.csv_valid else args.valid_fraction)
    used = islice(read("train"), train + valid)
    used = tqdm(used, total=train + valid, desc="encode", unit=" rows", disable=None)
    streams = {
        "train": islice(used, train),
        "valid": used if valid else read("valid"),
        "test": read("test"),
    }
    splits = {name: Split() for name in SPLITS}
    with staged_folder(args.out / "text") as text, staged_folder(args.out / "bpe") as ids:
        for name, pairs in streams.items():
            paths = [folder / f"{name}.{side}" for folder in (text, ids) for side in columns]
            split = splits[name]
            with writers(paths) as files:
                split.encode(split.complete(pairs, name), bpe, args.max_ids, files)
            if not split.pairs:
                raise DataError(f"no pair is left for `{name}`; check the CSV files.")
        dictionary = "".join(f"{line}\n" for line in dictionary_of(bpe.ids, args.pad_to_multiple))
        (ids / "dict.txt").write_text(dictionary, encoding="utf-8")
        for name, origin in zip(FILES, origins, strict=True):
            (ids / name).write_bytes(origin.read_bytes())
        Pipeline(*columns).save(text)
        encoding = tuple(ids / name for name in FILES)
        replace(Pipeline(*columns), subwords="byte-level", files=encoding).save(ids)
    return total, splits


def write_manifest(
    args: argparse.Namespace, total: int, splits: dict[str, Split], inputs: set[Path]
) -> str:
    """Write options, the ``total`` of training rows, counts and checksums to ``manifest.json``.

    Return the counts of each split as text, and how many training rows were used.
    """
    names = [f"{name}.{side}" for name in SPLITS for side in (args.src, args.tgt)]
    outputs = [args.out / folder / name for folder in ("text", "bpe") for name in names]
    outputs.append(args.out / "bpe" / "dict.txt")
    record: dict[str, Any] = {
        "options": {name: str(value) for name, value in vars(args).items() if name != "out"},
        "inputs": {path.name: sha256(path) for path in sorted(inputs)},
        "training rows": total,
        "splits": {
            name: {
                "pairs": split.pairs,
                "dropped": split.dropped,
                **dict(zip((args.src, args.tgt), split.sides(args.max_ids), strict=True)),
            }
            for name, split in splits.items()
        },
        "sha256": {str(path.relative_to(args.out)): sha256(path) for path in outputs},
    }
    text = json.dumps(record, indent=2, ensure_ascii=False, sort_keys=True)
    write_all(args.out, {"manifest.json": [text]})
    counts = [f"{name}: {json.dumps(split)}" for name, split in record["splits"].items()]
    rows_used = f"training rows: {total}, of which used (`--fraction`): {args.fraction}"
    return "\n".join([*counts, rows_used])


def dictionary_of(ids: Sequence[int], multiple: int = 8) -> list[str]:
    """Return the lines of a fairseq dictionary (``<symbol> <count>``), padded like BART's.

    The lines are the ids, padding symbols, ``<mask>``, and more padding symbols. When fairseq reads
    them, it puts 4 special symbols before them. With GPT-2's 50,257 ids and ``multiple=8``, the
    dictionary has 50,272 entries, as in the paper:

    1. ids and special symbols: 50,257 + 4 = 50,261;
    2. padding to a multiple of 8, as in fairseq: 50,264;
    3. the symbol ``<mask>``, as in BART: 50,265;
    4. padding to a multiple of 8 once more: 50,272.
    """
    symbols = [str(id_) for id_ in ids]
    padding = (f"madeupword{number:04d}" for number in count())
    symbols += islice(padding, -(len(symbols) + FAIRSEQ_SPECIALS) % multiple)
    symbols.append("<mask>")
    symbols += islice(padding, -(len(symbols) + FAIRSEQ_SPECIALS) % multiple)
    return [f"{symbol} 1" for symbol in symbols]


# ---- the command ---------------------------------------------------------------------------------


def share(text: str) -> Fraction:
    """Parse a fraction above 0 and at most 1, such as ``0.5`` or ``1/2``."""
    try:
        value = Fraction(text)
    except (ValueError, ZeroDivisionError):
        value = Fraction(0)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(
            f"`{text}` must be above 0 and at most 1, such as 0.5 or 1/2"
        )
    return value


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    option = options.add_argument
    csv_files = f"folder or .zip with the CSV files, such as {CSV_NAMES['train']}"
    option("--data", type=Path, required=True, help=csv_files)
    option("--out", type=Path, required=True, help="folder to write into")
    for name, default in (("--src", "en"), ("--tgt", "de")):
        option(name, default=default, help="column and file ending (%(default)s)")
    option("--vocabulary", type=Path, help="GPT-2's encoder.json, or BART's vocab.json")
    option("--merges", type=Path, help="GPT-2's vocab.bpe, or BART's merges.txt")
    instead = "folder to download GPT-2's files to, instead of --vocabulary and --merges"
    option("--download", type=Path, help=instead)
    option("--url", default=GPT2_URL, help="address of encoder.json and vocab.bpe (%(default)s)")
    shares = {"type": share, "metavar": "F"}
    option("--fraction", default="1/2", help="use the first F of the rows (%(default)s)", **shares)
    last = "validate on the last F of the rows used (%(default)s)"
    option("--valid-fraction", default="1/100", help=last, **shares)
    option("--csv-valid", action="store_true", help="validate on the CSV validation file instead")
    counts = {"type": positive, "metavar": "N"}
    option("--max-ids", default=1000, help="cut lines to this many ids (%(default)s)", **counts)
    multiple = "pad the dictionary to a multiple of N entries (%(default)s)"
    option("--pad-to-multiple", default=8, help=multiple, **counts)
    return options


def run(args: argparse.Namespace) -> str:
    """Convert the CSV files as the options say; return the counts as text."""
    if args.src == args.tgt:
        raise ConfigError(f"`--src` and `--tgt` are both `{args.src}`; choose two columns.")
    origins = [args.vocabulary, args.merges]
    if args.download and not any(origins):
        origins = [fetch(f"{args.url}/{name}", args.download) for name in FILES]
    elif args.download or not all(origins):
        raise ConfigError("give both `--vocabulary` and `--merges`, or `--download` alone.")
    bpe = ByteBPE(*origins)
    names = SPLITS if args.csv_valid else ("train", "test")
    locations = {name: locate(args.data, CSV_NAMES[name]) for name in names}
    total, splits = convert(args, locations, bpe, origins)
    return write_manifest(
        args, total, splits, {path for path, _ in locations.values()} | {*origins}
    )


def main() -> None:
    try:
        print(run(parser().parse_args()))
    except (FairseqExtError, OSError) as error:
        sys.exit(f"wmt14_csv: error: {error}")


if __name__ == "__main__":
    main()
