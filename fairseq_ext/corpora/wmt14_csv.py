"""Convert the CSV files of WMT14 English–German to text and byte-level BPE for fairseq.

The first half of the training rows is used, the last 1 % of that half for validation, and the
test file to test, as in the Linformer paper's section 2.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import IO

from tqdm import tqdm

from fairseq_ext.corpora import SPLITS
from fairseq_ext.corpora.command_lines import CSV_NAMES, CsvOptions
from fairseq_ext.corpora.csv_pairs import locate, rows
from fairseq_ext.corpora.downloads import fetch
from fairseq_ext.text.byte_level import FILES, ByteBPE
from fairseq_ext.text.pipeline import Pipeline
from fairseq_ext.text.writing import staged, write_all, writers
from fairseq_ext.utils.errors import ConfigError, DataError
from fairseq_ext.utils.files import sha256

CHUNK = 2_000  # rows encoded at a time; the library spreads them over the cores
SentencePair = tuple[str, str]


@dataclass(frozen=True)
class Plan:
    """Numbers of training rows: first those of ``train``, then ``valid``, the rest unused."""

    rows: int
    train: int
    valid: int


@dataclass
class Side:
    """Lengths in ids of one side of a split, without <s> and </s>, before truncation."""

    total: int = 0
    shortest: int | None = None
    longest: int = 0
    cut: int = 0

    def add(self, length: int, limit: int) -> None:
        """Count one sentence, of which at most ``limit`` ids are kept."""
        self.total += length
        self.shortest = length if self.shortest is None else min(self.shortest, length)
        self.longest = max(self.longest, length)
        self.cut += length > limit


@dataclass
class Split:
    """The counts of one split."""

    pairs: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    sides: tuple[Side, Side] = field(default_factory=lambda: (Side(), Side()))


def plan(total: int, fraction: Fraction, valid_fraction: Fraction) -> Plan:
    """Cut ``total`` rows: the first ``fraction`` of them, of that the last ``valid_fraction``.

    Both are rounded down, by exact arithmetic, but validation has at least one row unless
    ``valid_fraction`` is 0.

    Raises:
        DataError: no row is left to train on.
    """
    used = int(total * fraction)
    valid = max(1, int(used * valid_fraction)) if valid_fraction else 0
    if used <= valid:
        raise DataError(
            f"`--fraction {fraction}` of {total} training rows leaves {used}, and {valid} of them "
            "validate; nothing is left to train on."
        )
    return Plan(total, used - valid, valid)


def encode_split(
    pairs: Iterable[SentencePair],
    bpe: ByteBPE,
    limit: int,
    files: Sequence[IO[str]],
    split: Split,
    drop_empty: bool,
    source: str,
) -> None:
    """Write the text and the ids of each pair.

    Args:
        limit: most ids in a line.
        files: source text, target text, source ids, target ids.
        split: counts what was kept, dropped and cut.
        drop_empty: leave out a pair with an empty side; otherwise it is an error.
        source: the name of the file the pairs come from, for that error.
    """
    complete_pairs = _complete(pairs, split, drop_empty, source)
    while chunk := list(islice(complete_pairs, CHUNK)):
        split.pairs += len(chunk)
        for place, lines in enumerate(zip(*chunk, strict=True)):
            encoded = bpe.encode(lines)
            for ids in encoded:
                split.sides[place].add(len(ids), limit)
            files[place].writelines(f"{line}\n" for line in lines)
            files[place + 2].writelines(f"{' '.join(map(str, ids[:limit]))}\n" for ids in encoded)


def _complete(
    pairs: Iterable[SentencePair], split: Split, drop_empty: bool, source: str
) -> Iterator[SentencePair]:
    for number, pair in enumerate(pairs, 1):
        if all(pair):
            yield pair
        elif drop_empty:
            split.dropped["empty side"] = split.dropped.get("empty side", 0) + 1
        else:
            raise DataError(
                f"`{source}`, row {number}: a side is empty. A test set is never shortened; "
                "complete or delete the row."
            )


def convert(
    options: CsvOptions, bpe: ByteBPE, origins: tuple[Path, Path]
) -> tuple[Plan, dict[str, Split]]:
    """Read the CSV files and write ``text/`` and ``bpe/`` of ``options.out``, whole or not at all.

    Raises:
        DataError: unusable input, named by file and row; nothing has been written then.
    """
    locations = {name: locate(options.data, CSV_NAMES[name]) for name in _files_used(options)}
    columns = (options.src, options.tgt)

    def read(name: str) -> Iterator[SentencePair]:
        path, member = locations[name]
        return rows(path, columns, member)

    total = sum(1 for _ in tqdm(read("train"), desc="count", unit=" rows", disable=None))
    cut = plan(
        total, options.fraction, Fraction(0) if options.csv_valid else options.valid_fraction
    )
    splits = {name: Split() for name in SPLITS}
    names = [f"{name}.{side}" for name in SPLITS for side in columns]
    used = tqdm(
        islice(read("train"), cut.train + cut.valid),
        total=cut.train + cut.valid,
        desc="encode",
        unit=" rows",
        disable=None,
    )
    held_out = used if cut.valid else read("valid")
    streams = {"train": islice(used, cut.train), "valid": held_out, "test": read("test")}
    with staged(options.out / "text", options.out / "bpe") as (text, ids):
        paths = {name: [text / name, ids / name] for name in names}
        for name, pairs in streams.items():
            sides = [paths[f"{name}.{side}"] for side in columns]
            with writers([side[place] for place in (0, 1) for side in sides]) as files:
                drop_empty = name != "test"
                encode_split(
                    pairs, bpe, options.max_ids, files, splits[name], drop_empty, CSV_NAMES[name]
                )
            if not splits[name].pairs:
                raise DataError(f"no pair is left for `{name}`; check the CSV files.")
        with writers([ids / "dict.txt", ids / FILES[0], ids / FILES[1]]) as files:
            files[0].writelines(f"{line}\n" for line in bpe.dictionary(options.pad_to_multiple))
            for file, origin in zip(files[1:], origins, strict=True):
                file.write(origin.read_text(encoding="utf-8"))
        text_pipeline = Pipeline(*columns)
        text_pipeline.save(text)
        encoding = tuple(ids / name for name in FILES)
        replace(text_pipeline, subwords="byte-level", files=encoding).save(ids)
    return cut, splits


def _files_used(options: CsvOptions) -> list[str]:
    return ["train", *(["valid"] if options.csv_valid else []), "test"]


def write_manifest(
    options: CsvOptions, cut: Plan, splits: dict[str, Split], origins: tuple[Path, Path]
) -> None:
    """Record options, counts and checksums as ``manifest.json``."""
    inputs = {locate(options.data, CSV_NAMES[name])[0] for name in _files_used(options)}
    inputs |= {*origins}
    outputs = [options.out / folder / f"{split}.{side}" for folder in ("text", "bpe")
               for split in SPLITS for side in (options.src, options.tgt)]  # fmt: skip
    outputs.append(options.out / "bpe" / "dict.txt")
    record = {
        "options": {name: str(value) for name, value in vars(options).items() if name != "out"},
        "libraries": {"tokenizers": version("tokenizers")},
        "inputs": {path.name: sha256(path) for path in sorted(inputs)},
        "training rows": vars(cut),
        "splits": {
            name: {
                "pairs": split.pairs,
                "dropped": split.dropped,
                options.src: vars(split.sides[0]),
                options.tgt: vars(split.sides[1]),
            }
            for name, split in splits.items()
        },
        "sha256": {str(path.relative_to(options.out)): sha256(path) for path in outputs},
    }
    text = json.dumps(record, indent=2, ensure_ascii=False, sort_keys=True)
    write_all(options.out, {"manifest.json": [text]})


def summary(options: CsvOptions, bpe: ByteBPE, cut: Plan, splits: dict[str, Split]) -> str:
    """Return a table of the splits' lengths, and counts of dropped, cut and dictionary entries."""
    rows = [f"{'split':6} {'pairs':>9} {'side':>5} {'ids':>11} {'mean':>6} {'min':>5} {'max':>6}"]
    for name, split in splits.items():
        for code, side in zip((options.src, options.tgt), split.sides, strict=True):
            rows.append(
                f"{name:6} {split.pairs:9} {code:>5} {side.total:11} "
                f"{side.total / split.pairs:6.1f} {side.shortest:5} {side.longest:6}"
            )
    unused = cut.rows - cut.train - cut.valid
    size = len(bpe.dictionary(options.pad_to_multiple)) + 4
    rows += [
        "lengths in ids, without <s> and </s> (the paper's Table 1 counts these two as well)",
        f"training rows: {cut.rows}, of which unused (`--fraction`): {unused}",
        *(f"{name}, dropped, {reason}: {count}"
          for name, split in splits.items() for reason, count in split.dropped.items()),
        *(f"{name}.{code}, cut to {options.max_ids} ids: {side.cut}"
          for name, split in splits.items()
          for code, side in zip((options.src, options.tgt), split.sides, strict=True) if side.cut),
        f"dictionary: {len(bpe.ids)} ids; {size} entries with fairseq's 4 special symbols",
    ]  # fmt: skip
    return "\n".join(rows)


def run(options: CsvOptions) -> str:
    """Convert the CSV files as the options say; returns the summary.

    Raises:
        DataError: an option or input that cannot be used.
    """
    if options.src == options.tgt:
        raise ConfigError(f"`--src` and `--tgt` are both `{options.src}`; choose two columns.")
    vocabulary, merges = options.vocabulary, options.merges
    if options.download and vocabulary is None and merges is None:
        vocabulary, merges = (fetch(f"{options.url}/{f}", options.download) for f in FILES)
    elif options.download or vocabulary is None or merges is None:
        raise ConfigError("give both `--vocabulary` and `--merges`, or `--download` alone.")
    options, origins = replace(options, vocabulary=vocabulary, merges=merges), (vocabulary, merges)
    bpe = ByteBPE.load(*origins)
    cut, splits = convert(options, bpe, origins)
    write_manifest(options, cut, splits, origins)
    return summary(options, bpe, cut, splits)
