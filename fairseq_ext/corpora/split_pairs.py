"""Split sentence pairs into train, valid and test so that no sentence leaks between them.

A corpus often has several translations of one sentence; a random split then puts some into train
and others into test. Here a hash of the sentence, not of the pair, decides:

- The distinct sentences of one side (the *key side*), without case and punctuation, are put in the
  order of their SHA-256 hashes. The first go into the test set, the next into the validation set,
  all others into train. If several pairs have the same key sentence, valid and test keep only one
  of these pairs, so that their sizes are exact.
- If a pair is repeated, only its first occurrence is kept.
- ``--key groups`` holds out whole groups of near-duplicates instead
  (:mod:`fairseq_ext.corpora.near_duplicates`), so that no test sentence is one word away from a
  training sentence.
- ``--strict`` also drops training pairs whose other side is in valid or test.

The pairs are cut into parts. Sentences and pairs are compared by their *fingerprints*, the first 64
bits of their SHA-256 hashes. The fingerprints are divided into ranges, and only one range is
compared at a time. So memory holds one part or one range (with ``--key groups``, also a hash of
every word). The numbers of parts and ranges do not change the result.

The work has three stages, which write files into a folder. Several processes and machines may share
a stage (:mod:`fairseq_ext.utils.shared_folder`). If a process is killed, another one does its work
again. These are the files, in the order of the stages::

    clean-000000   a part's pairs that are kept, and fingerprints of source, target and pair
    repeat-000000  the pairs of all parts that repeat an earlier pair, for one range of fingerprints
    held           the pairs of test and valid: those with the smallest fingerprints on the key
                   side, or whole groups of near-duplicates
"""

import contextlib
import hashlib
import itertools
import json
import re
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np

from fairseq_ext.corpora import SPLITS, near_duplicates, pair_texts, rules
from fairseq_ext.corpora.command_lines import SIDES, PairOptions
from fairseq_ext.corpora.near_duplicates import hash_words, normalized
from fairseq_ext.corpora.pair_texts import PairPart, Text
from fairseq_ext.corpora.streams import KEPT, Encode, ordered_map, processes
from fairseq_ext.text import pipeline, reading
from fairseq_ext.text.bleu_tokenizers import suggest_pieces
from fairseq_ext.text.cleaning import plain
from fairseq_ext.text.pipeline import Pipeline
from fairseq_ext.utils import files, locks
from fairseq_ext.utils.errors import ConfigError, DataError, wrong_value
from fairseq_ext.utils.files import atomic_write, require_file, sha256, writers
from fairseq_ext.utils.json_files import read_json, write_json
from fairseq_ext.utils.shared_folder import SharedFolder

REPEATED, FURTHER, LEAKED = range(len(SPLITS), len(SPLITS) + 3)  # fates other than a split
GROUPS = "groups"  # the value of --key for groups of near-duplicates
HEAD = {"format": "fairseq-ext preparation", "version": 3}
RANGE = 1_000_000  # approximate number of fingerprints in a range
PAIR = 2  # the row of the pairs' fingerprints, which follows the rows of SIDES
# A held-out pair: fingerprints of its key sentence, the pair and the other sentence; place; split.
HELD = np.dtype(
    [
        *((name, np.uint64) for name in ("key", "pair", "other")),
        *((name, np.int64) for name in ("part", "line")),
        ("split", np.uint8),
    ]
)


def encoder(options: PairOptions) -> Encode:
    """Return the encoder that turns pairs into words and applies the rules of the options."""
    text_pipeline = Pipeline(
        options.src_lang,
        options.tgt_lang,
        clean=True,
        tokenize=options.tokenize,
        lowercase=options.lowercase,
    )
    longest = () if options.max_words is None else (f"length=1:{options.max_words}",)
    return Encode(text_pipeline, (*longest, *options.rule), words=True)


@dataclass(frozen=True)
class SplitJob:
    """A job that splits texts in stages, and can be sent to other processes.

    Each stage is a method that takes the name of a report. The method writes this report (JSON),
    and a data file with the same name but another ending.
    """

    options: PairOptions  # how to clean and split the pairs
    texts: tuple[Text, ...]  # where the pairs come from; only the first of repeated pairs is kept
    folder: Path  # the folder with the files of the stages
    parts: tuple[PairPart, ...]  # the parts of all texts
    partitions: int  # number of ranges of fingerprints

    @property
    def clean_names(self) -> list[str]:
        """The names of the parts' reports; a report is written when its part has been cleaned."""
        return [self.part_file(number, "json").name for number in range(len(self.parts))]

    @property
    def repeat_names(self) -> list[str]:
        """The file names of the reports on repeated pairs, one for each range of fingerprints."""
        return [f"repeat-{number:06d}.json" for number in range(self.partitions)]

    def part_file(self, number: int, ending: str) -> Path:
        """Return the path of a part's report (json), kept pairs (tsv) or fingerprints (npy)."""
        return self.folder / f"clean-{number:06d}.{ending}"

    def load(self, name: str) -> Any:
        return read_json(self.folder / name)

    def total(self, count: str) -> int:
        """Add up a count of all parts: the pairs ``read``, or those ``kept`` by the rules."""
        return sum(self.load(name)[count] for name in self.clean_names)

    # ---- the stages ----------------------------------------------------------------------------

    def _finish(self, name: str, array: np.ndarray, report: object) -> None:
        """Write ``array``, then ``report`` as file ``name``, which shows that all is complete."""
        path = self.folder / name
        with atomic_write(path.with_suffix(".npy"), "wb") as file:
            np.save(file, array)
        write_json(path, report, indent=None)

    def clean(self, name: str) -> None:
        """Clean the part whose report is ``name``; save its kept pairs and fingerprints."""
        options, number = self.options, self.clean_names.index(name)
        hashes = [bytearray() for _ in range(PAIR + 1)]
        dropped = Counter[str]()
        kept = 0
        with atomic_write(self.part_file(number, "tsv")) as out:
            part = self.parts[number]
            pairs = pair_texts.read(self.texts[part.text], part)
            for fate, source, target in encoder(options)(pairs):
                if fate != KEPT:
                    dropped[fate] += 1
                    continue
                kept += 1
                line = f"{source}\t{target}"
                out.write(f"{line}\n")
                if options.as_split is None:
                    texts = (normalized(source), normalized(target), line)
                    for row, text in zip(hashes, texts, strict=True):
                        salted = f"{options.salt}\n{text}"
                        row += hashlib.sha256(salted.encode()).digest()[:8]
        prints = np.stack([np.frombuffer(row, ">u8") for row in hashes])
        report = {"read": kept + dropped.total(), "kept": kept, "dropped": dropped}
        self._finish(name, prints.astype(np.uint64), report)

    def _fingerprints(self, number: int) -> np.ndarray:
        """Read the fingerprints ``[3, N]`` of the N sources, targets and pairs of a part."""
        return np.load(self.part_file(number, "npy"), allow_pickle=False)

    def repeat(self, name: str) -> None:
        """Find the repeated pairs of all parts that have a fingerprint in one range.

        The number in ``name`` is that of the range. The data file gets the part and line of each
        repeated pair. The report gets the numbers of distinct sources and of distinct targets in
        the range.
        """
        number = self.repeat_names.index(name)
        places: list[np.ndarray] = []  # part and line of each pair in the range
        rows: tuple[list[np.ndarray], ...] = ([], [], [])
        for part in range(len(self.parts)):
            hashes = self._fingerprints(part)
            inside = near_duplicates.in_range(hashes, number, self.partitions)
            lines = np.flatnonzero(inside[PAIR])
            places.append(np.stack([np.full_like(lines, part), lines]))
            for row, prints, mask in zip(rows, hashes, inside, strict=True):
                row.append(prints[mask])
        *sides, pairs = map(np.concatenate, rows)
        # All but the first of equal pairs, in the order of parts and lines.
        first = np.unique(pairs, return_index=True)[1]
        repeated = np.delete(np.concatenate(places, axis=1), first, axis=1)
        report = {"distinct": [len(np.unique(side)) for side in sides]}
        self._finish(name, repeated, report)

    @property
    def key(self) -> int:
        """The side whose sentences decide the split: 0 for source, 1 for target.

        With ``--key auto`` it is the side with fewer distinct sentences, as counted by
        :meth:`repeat`, or the source if both have equally many.
        """
        if self.options.key != "auto":
            return SIDES.index(self.options.key)
        counts = [self.load(name)["distinct"] for name in self.repeat_names]
        source, target = map(sum, zip(*counts, strict=True))
        return int(target < source)

    def hold(self, name: str) -> None:
        """Choose pairs for test and valid, all with different sentences on the side :attr:`key`.

        Save them as the data of the report ``name``. Refuse a corpus with too few different
        sentences on this side.
        """
        options, key = self.options, self.key
        held_count = options.valid + options.test
        best = np.empty(0, HELD)
        for number in range(len(self.parts)):
            hashes = self._fingerprints(number)
            rows = np.zeros(hashes.shape[1], HELD)
            rows["part"], rows["line"] = number, np.arange(len(rows))
            rows["key"], rows["other"], rows["pair"] = hashes[[key, 1 - key, PAIR]]
            rows = np.concatenate([best, rows])
            # Per sentence, keep the pair with the smallest fingerprint, or the first equal pair.
            rows = rows[np.lexsort((rows["pair"], rows["key"]))]
            best = rows[np.unique(rows["key"], return_index=True)[1][: held_count + 1]]
        if len(best) <= held_count:
            raise DataError(
                f"--valid {options.valid} and --test {options.test} together need more than "
                f"{held_count} distinct {SIDES[key]} sentences, but there are {len(best)}; ask "
                "for fewer."
            )
        best = best[:held_count]
        best["split"] = SPLITS.index("valid")
        best["split"][: options.test] = SPLITS.index("test")
        self._finish(name, best, {"key": SIDES[key]})

    def hold_groups(self, name: str) -> None:
        """Draw groups of near-duplicates for test and valid; refuse a corpus with too few pairs.

        Save their pairs, without repeated ones, as the data of the report ``name``.
        """
        options = self.options
        kept = [self.load(name)["kept"] for name in self.clean_names]
        first = [~self._repeated(number, count) for number, count in enumerate(kept)]

        def sentences(side: int) -> Iterator[str]:
            for number, mask in enumerate(first):
                with self.part_file(number, "tsv").open(encoding="utf-8", newline="\n") as file:
                    for pair in itertools.compress(file, mask):
                        yield pair.split("\t")[side]

        groups = near_duplicates.group_sides(*map(hash_words, map(sentences, (0, 1))))
        test = near_duplicates.draw_groups(groups, options.test, f"{options.salt} test")
        valid = near_duplicates.draw_groups(
            groups, options.valid, f"{options.salt} valid", exclude=test
        )
        if test.sum() < options.test or valid.sum() < options.valid or (test | valid).all():
            raise DataError(
                f"--valid {options.valid} and --test {options.test} need more than the pairs in "
                f"small groups of near-duplicates among {len(groups)} pairs; ask for fewer, or "
                "split by sentences (`--key auto`)."
            )
        held = np.zeros(options.test + options.valid, HELD)
        lines = np.concatenate([np.flatnonzero(mask) for mask in first])
        parts = np.repeat(np.arange(len(first)), [mask.sum() for mask in first])
        held["part"], held["line"] = parts[test | valid], lines[test | valid]
        held["split"] = np.where(test, SPLITS.index("test"), SPLITS.index("valid"))[test | valid]
        sizes = np.unique(groups, return_counts=True)[1]
        report = {"key": GROUPS, "groups": len(sizes), "largest": int(sizes.max())}
        self._finish(name, held, report)

    # ---- the result, once all stages are done ----------------------------------------------------

    def write(self, files: Mapping[str, Sequence[IO[str]]]) -> dict[str, Any]:
        """Write each pair into the files of its split, in the order of the texts; return a report.

        ``files`` maps each split to its source file and target file. The report is a dict:

        - ``read``: the number of pairs read;
        - ``dropped``: the number of dropped pairs, by the reason to drop them;
        - ``splits``: the number of pairs, by split;
        - ``words``: the numbers of source and target words, by split;
        - ``texts``: for each text, the numbers of pairs ``read`` and of lines in ``train``;
        - ``key``: ``source``, ``target`` or ``groups``, which decides the split of a pair; None
          with the option ``--as``, which puts all pairs into one split;
        - ``groups`` and ``largest``, if the key is ``groups``: the number of groups, and the number
          of pairs in the largest group.
        """
        held = {"key": None} if self.options.as_split else self.load("held.json")
        late = {REPEATED: "repeated pair", FURTHER: "further pair of a held-out sentence"}
        if held["key"] in SIDES:
            other = SIDES[1 - SIDES.index(held["key"])]
            late[LEAKED] = f"{other} sentence also in valid or test"
        dropped, fate_counts = Counter[str](), Counter[int]()
        pairs, words = dict.fromkeys(files, 0), {split: [0, 0] for split in files}
        texts = [{"read": 0, "train": 0} for _ in self.texts]
        for number, (part, name) in enumerate(zip(self.parts, self.clean_names, strict=True)):
            report, before = self.load(name), pairs.get("train", 0)
            dropped.update(report["dropped"])
            fates = self._fates(number, report["kept"])
            fate_counts.update(fates.tolist())
            copies = self._copies(number, fates)
            with self.part_file(number, "tsv").open(encoding="utf-8", newline="\n") as file:
                for line, fate, times in zip(file, fates.tolist(), copies.tolist(), strict=True):
                    if fate >= len(SPLITS):
                        continue
                    split = SPLITS[fate]
                    pairs[split] += times
                    for side, sentence in enumerate(line.rstrip("\n").split("\t")):
                        files[split][side].write(f"{sentence}\n" * times)
                        words[split][side] += len(sentence.split()) * times
            texts[part.text]["read"] += report["read"]
            texts[part.text]["train"] += pairs.get("train", 0) - before
        dropped.update({why: fate_counts[fate] for fate, why in late.items() if fate_counts[fate]})
        return {
            "read": self.total("read"),
            "dropped": dict(dropped),
            "splits": pairs,
            "words": words,
            "texts": texts,
            **held,
        }

    def _fates(self, number: int, pair_count: int) -> np.ndarray:
        """Decide what becomes of each of the ``pair_count`` pairs in part ``number``.

        Return the pairs' fates: the number of a split, or of a reason to drop the pair, such as
        :data:`REPEATED`.
        """
        fates = np.zeros(pair_count, np.uint8)
        if self.options.as_split is not None:
            fates[:] = SPLITS.index(self.options.as_split)
            return fates
        held = np.load(self.folder / "held.npy", allow_pickle=False)
        if self.options.key != GROUPS:
            hashes = self._fingerprints(number)
            key = SIDES.index(self.load("held.json")["key"])
            if self.options.strict:
                fates[np.isin(hashes[1 - key], held["other"])] = LEAKED
            fates[np.isin(hashes[key], held["key"])] = FURTHER
        fates[self._repeated(number, pair_count)] = REPEATED
        in_part = held["part"] == number
        fates[held["line"][in_part]] = held["split"][in_part]
        return fates

    def _repeated(self, number: int, pair_count: int) -> np.ndarray:
        """Return a mask ``[pair_count]``: which pairs of part ``number`` repeat an earlier pair."""
        repeated = np.zeros(pair_count, bool)
        for name in self.repeat_names:
            path = (self.folder / name).with_suffix(".npy")
            places = np.load(path, mmap_mode="r", allow_pickle=False)
            span = slice(*np.searchsorted(places[0], [number, number + 1]))
            repeated[places[1, span]] = True
        return repeated

    def _copies(self, number: int, fates: np.ndarray) -> np.ndarray:
        """Return how often to write each pair of part ``number``, whose ``fates`` are known.

        Pairs of valid and test are written once. For pairs of train the number is the weight of
        their text, rounded up or down at random; a pair's fingerprint serves as random number.
        """
        weight = self.texts[self.parts[number].text].weight
        if weight == 1:
            return np.ones(len(fates), np.uint8)
        drawn = self._fingerprints(number)[PAIR] < (weight - int(weight)) * 2.0**64
        return np.where(fates == 0, int(weight) + drawn, 1)


def prepare(
    options: PairOptions, texts: tuple[Text, ...], folder: Path, range_size: int = RANGE
) -> SplitJob:
    """Unpack texts into an existing folder, cut them into parts, and return the job to split them.

    If several workers share the folder, each file is unpacked by only one of them. The job compares
    fingerprints in ranges of about ``range_size`` fingerprints each.
    """
    packed = {
        pair_texts.unpacked_name(number, place): (text, place)
        for number, text in enumerate(texts)
        for place, path in enumerate(text.files)
        if pair_texts.is_packed(text, path)
    }
    shared = SharedFolder(folder, HEAD)
    shared.work([*packed], lambda name: pair_texts.unpack(*packed[name], folder / name))
    parts = pair_texts.cut_texts(texts, folder, options.part_lines)
    total = sum(part.parts[0].lines for part in parts)
    return SplitJob(options, texts, folder, tuple(parts), max(1, -(-total // range_size)))


def work(job: SplitJob) -> None:
    """Do all stages of a job; processes that work in its folder at the same time share the work.

    Raise DataError if the rules leave no pairs, or too few for ``--valid`` and ``--test``.
    """
    shared, workers = SharedFolder(job.folder, HEAD), processes(job.options.workers)

    def spread(do: Callable[[str], bool], names: Iterable[str]) -> Iterator[bool]:
        names = [*names]
        return ordered_map(do, names, min(workers, len(names)))

    shared.work(job.clean_names, job.clean, spread=spread)
    if not job.total("kept"):
        raise DataError(
            f"no pairs are left of {job.total('read')} read; nothing to write. Check the texts, or "
            "allow more by `--rule` and `--max-words`."
        )
    if job.options.as_split is None:
        shared.work(job.repeat_names, job.repeat, spread=spread)
        hold = job.hold_groups if job.options.key == GROUPS else job.hold
        shared.work(["held.json"], hold)


# Options that do not influence the result.
ELSEWHERE = {"out", "overwrite", "workers", "parts", "part_lines"}
LOCK = ".preparing.lock"
HEADER_WORDS = ("source", "target", "src", "tgt", "text", "sentence", "translation", "id")
IDENTIFIER = re.compile(r"[!-~]*\d[!-~]*")  # such as 17, 0.5 or s17.1
COLUMN_NAME = re.compile(r"[\w-]+")
WORDS_OF_NAME = re.compile(r"([\w-]+[ _(])*(" + "|".join(HEADER_WORDS[:-1]) + r")s?([ _][\w()-]+)*")
OTHER_QUOTES = re.compile("'.*'|‘.*’|“.*”|„.*“|«.*»", re.DOTALL)  # quotes that are not CSV's
MISREAD = re.compile("Ã[\x80-\xbf]|Â[\xa0-\xbf]|â€")  # UTF-8 é, ¿ or ’ read as Windows-1252


def summary(report: dict[str, Any], langs: tuple[str, str]) -> str:
    """Return the report of :meth:`SplitJob.write` as text: a table of the splits, and counts."""
    key, dropped, splits = (report[name] for name in ("key", "dropped", "splits"))
    rows = [f"{'split':6} {'pairs':>8} {'side':>6} {'words':>9} {'words/line':>11}"]
    for name, pairs in splits.items():
        for lang, words in zip(langs, report["words"][name], strict=True):
            rows.append(f"{name:6} {pairs:8} {lang:>6} {words:9} {words / max(1, pairs):11.1f}")
    held = sum(count for name, count in splits.items() if name != "train")
    if 4 * held > splits.get("train", 4 * held):
        rows.append(f"{held} pairs are not for training; smaller --valid and --test leave more")
    rows.append(f"pairs read: {report['read']}")
    rows += [f"dropped, {reason}: {count}" for reason, count in dropped.items()]
    if key == GROUPS:
        rows.append(
            f"split by {report['groups']} groups of near-duplicates, the largest of "
            f"{report['largest']} pairs; no group is in two splits"
        )
    elif key:
        rows.append(f"split by the {key} sentence; no {key} sentence is in two splits")
    return "\n".join(rows)


def _texts(options: PairOptions) -> tuple[Text, ...]:
    """Return the texts that the options name; warn if one seems to be read wrongly."""
    origins = (options.pairs, options.source, options.corpora)
    if origins.count(None) != 2 or (options.source is None) != (options.target is None):
        raise ConfigError("give either PAIRS, or both --source and --target, or --corpora.")
    zipped = options.pairs is not None and options.pairs.suffix.lower() == ".zip"
    for option, is_set, used, partner in (
        ("--columns", options.columns != (1, 2), options.pairs is not None, "PAIRS"),
        ("--header", options.header, options.pairs is not None, "PAIRS"),
        ("--csv", options.csv, options.pairs is not None, "PAIRS"),
        ("--member", options.member is not None, zipped, "PAIRS that are a .zip"),
    ):
        if is_set and not used:
            raise ConfigError(f"`{option}` goes with {partner}, which is missing; leave it out.")
    if options.corpora is not None:
        return pair_texts.read_list(options.corpora)
    inputs = (options.pairs, options.source, options.target)
    paths = tuple(require_file(path, "text file") for path in inputs if path is not None)
    for path in paths:
        reading.refuse_document(path)
    if options.pairs is None:
        if paths[0].samefile(paths[1]):
            raise ConfigError(f"`--source` and `--target` are the same file, {paths[0]}.")
        for path in paths:
            lines = [line for _, line in itertools.islice(reading.lines(path), reading.LOOKED_AT)]
            if fault := _encoding_fault(path, lines):
                print(f"warning: {path} {fault}.", file=sys.stderr)
        return (Text("", paths),)
    table = options.csv or pair_texts.is_csv(options.member or options.pairs.name)
    text = Text("", paths, table=table, header=options.header, member=options.member)
    top = [row for _, row in itertools.islice(pair_texts.rows(text), reading.LOOKED_AT)]
    text = replace(text, columns=_column_numbers(options, top[0] if top else []))
    _warn_of_columns(text, top, (options.src_lang, options.tgt_lang))
    return (text,)


def _column_numbers(options: PairOptions, first: list[str]) -> tuple[int, int]:
    """Return the source and target column, from 1; names are looked up in the header ``first``."""
    if isinstance(options.columns[0], int):
        return options.columns
    if not options.header:
        raise ConfigError("`--columns` has names, which `--header` reads; give `--header`, too.")
    names = [plain(name) for name in first]
    for name in options.columns:
        if names.count(name) != 1:
            listed = ", ".join(names)
            raise DataError(
                f"`{options.pairs}` must have one column `{name}`; it has {listed}."
                f"{'' if options.csv or len(names) > 1 else reading.UNCUT}"
            )
    return names.index(options.columns[0]) + 1, names.index(options.columns[1]) + 1


def _warn_of_columns(text: Text, top: list[list[str]], languages: tuple[str, str]) -> None:
    """Warn if a text's first line looks like a header, or a column does not look like sentences.

    ``top`` has the first rows of the text, each as a list of cells.
    """
    columns = [[row[number - 1] for row in top if len(row) >= number] for number in text.columns]
    firsts = [plain(column[0]).lower() for column in columns if column]
    is_header = bool({*firsts} & {*HEADER_WORDS, *map(str.lower, languages)})
    if len(top) > 2 and all(map(COLUMN_NAME.fullmatch, firsts)):  # single words above sentences
        is_header |= any(all(" " in cell.strip() for cell in column[1:]) for column in columns)
    is_header |= len(top) > 2 and all(map(WORDS_OF_NAME.fullmatch, firsts))  # as in `source text`
    if not text.header and is_header:
        print(
            f"warning: line 1 of {text.files[0]} (`{' / '.join(firsts)}`) looks like a header, and "
            "becomes a pair; give --header if it is one.",
            file=sys.stderr,
        )
    for number, column in zip(text.columns, columns, strict=True):
        cells = [cell.strip() for cell in column[1:]]  # row 1 may be a header
        if len(cells) < 2:
            continue
        fault = ""
        if all(IDENTIFIER.fullmatch(cell.strip('"')) for cell in cells):
            fault = (
                f"holds numbers or names (`{cells[0]}` …), not sentences; choose other columns "
                "with --columns"
            )
        elif not text.table and all(reading.QUOTED.fullmatch(cell) for cell in cells):
            fault = "is in quotation marks, which become part of the text; remove them with --csv"
        elif all(OTHER_QUOTES.fullmatch(cell) for cell in cells):
            fault = (
                f"is in quotation marks (`{cells[0][:1]}`), which become part of the text; only "
                'those of CSV (`"`) can be removed'
            )
        if fault := fault or _encoding_fault(text.files[0], cells):
            print(f"warning: column {number} of {text.files[0]} {fault}.", file=sys.stderr)


def _encoding_fault(path: Path, sentences: Sequence[str]) -> str:
    """Return a message if sentences look as if they were read in a wrong encoding, else ""."""
    strange = [match[0] for sentence in sentences if (match := MISREAD.search(sentence))]
    if len(strange) < 2:
        return ""
    return (
        f"seems to be UTF-8 that was read as Windows-1252 (`{strange[0]}`); convert it: "
        f"{reading.through(path, 'iconv -f utf-8 -t cp1252')}"
    )


def _checked_texts(options: PairOptions) -> tuple[Text, ...]:
    """Check that the options fit together, and return the texts that they name."""
    for option, language in (("--src", options.src_lang), ("--tgt", options.tgt_lang)):
        if not re.fullmatch(r"[\w-]+", language):  # the language is the ending of file names
            raise wrong_value(option, "a language, such as en or pt-BR", language)
    if options.src_lang == options.tgt_lang:
        raise ConfigError("`--src` and `--tgt` are the same; their files would collide.")
    langs = (options.src_lang, options.tgt_lang)
    rules.checks(encoder(options).rules, langs)  # refuses impossible rules
    texts = _texts(options)
    for name in ("valid", "test", "key", "strict", "salt"):
        if options.as_split is not None and getattr(options, name) != getattr(PairOptions, name):
            option = "--no-strict" if name == "strict" else f"--{name}"
            raise ConfigError(f"`{option}` does not go with `--as`, which does not split.")
    if options.as_split is not None and any(text.weight != 1 for text in texts):
        raise ConfigError("`--as` writes every pair once; leave the weights of the corpora out.")
    return texts


def run(options: PairOptions) -> str:
    """Read, clean, split and write the pairs as the options say; return the summary."""
    texts = _checked_texts(options)
    files.keep_inputs([path for text in texts for path in text.files], _files(options))
    if options.as_split is not None:
        pipeline.require_same(options.out, encoder(options).pipeline)
    if options.parts is not None and files.twice([options.parts, options.out]):
        raise ConfigError("`--parts` and `--output` are the same; name two folders.")
    record = _record(options, texts)
    job_record = {**record, "part_lines": options.part_lines}
    with _folder(options) as folder:
        if not options.overwrite:  # now that no other run is writing there
            _keep_others(options, record)
        SharedFolder(folder, HEAD).begin(job_record)
        job = prepare(options, texts, folder)
        work(job)
        return _write(job, record)


def _files(options: PairOptions) -> list[Path]:
    langs = (options.src_lang, options.tgt_lang)
    return [options.out / f"{split}.{lang}" for split in _splits(options) for lang in langs]


def _splits(options: PairOptions) -> Sequence[str]:
    return SPLITS if options.as_split is None else (options.as_split,)


def _keep_others(options: PairOptions, record: dict[str, Any]) -> None:
    """Refuse to write over a corpus that was made with other options or inputs."""
    manifest = options.out / _manifest(options)
    if not any(path.exists() for path in _files(options)):
        return
    try:
        former = json.loads(manifest.read_text(encoding="utf-8"))
        former_record = {name: former.get(name) for name in record}
    except (OSError, ValueError, AttributeError):
        former_record = {}
    if former_record != record:
        raise DataError(
            f"{options.out} has a corpus already, made of other text or with other options; choose "
            "another --output, or give --overwrite."
        )


def _manifest(options: PairOptions) -> str:
    return "manifest.json" if options.as_split is None else f"manifest.{options.as_split}.json"


def _record(options: PairOptions, texts: Sequence[Text]) -> dict[str, Any]:
    """Return the manifest's record of options and inputs; paths, which may change, are left out."""
    recorded = {
        name: value
        for name, value in vars(options).items()
        if name not in ELSEWHERE and not isinstance(value, Path)
    }
    inputs = [
        {"name": f"{text.name}/{path.name}".lstrip("/"), "sha256": sha256(path)}
        for text in texts
        for path in text.files
    ]
    record = {"options": recorded, "inputs": inputs}
    if options.corpora is not None:
        record["corpora"] = [
            {
                **{"name": text.name, "licence": text.licence, "weight": text.weight},
                **{"columns": text.columns, "header": text.header, "member": text.member},
            }
            for text in texts
        ]
    return json.loads(json.dumps(record))


@contextlib.contextmanager
def _folder(options: PairOptions) -> Iterator[Path]:
    """Yield the folder for the parts: ``--parts``, or a temporary one in ``--output``."""
    if options.parts is not None:
        yield options.parts
        return
    with files.no_empty_folder(options.out):
        options.out.mkdir(parents=True, exist_ok=True)
        with locks.held(options.out / LOCK, wait=True):
            for left in options.out.glob(".partial*"):  # folders that a killed run left
                shutil.rmtree(left, ignore_errors=True)
            with files.scratch_folder(options.out / "partial") as folder:
                yield folder


def _write(job: SplitJob, record: dict[str, Any]) -> str:
    """Write all splits, ``text.json`` and the manifest; return the summary."""
    options = job.options
    langs = (options.src_lang, options.tgt_lang)
    splits, names = _splits(options), [path.name for path in _files(options)]
    with files.staged_folder(options.out) as stage:
        with writers([stage / name for name in names]) as opened:
            pairs = dict(zip(splits, zip(opened[::2], opened[1::2], strict=True), strict=True))
            report = job.write(pairs)
        sums = {name: sha256(stage / name) for name in names}
        record = {**record, "report": report, "sha256": sums}
        write_json(stage / _manifest(options), record, indent=2, sort_keys=True)
        encoder(options).pipeline.save(stage)
        hints = [suggest_pieces(lang, stage / f"{splits[0]}.{lang}") for lang in langs]
    listed = [
        f"{corpus['name']}: {counts['read']} pairs read, {counts['train']} in train, weight "
        f"{corpus['weight']:g}; licence: {corpus['licence']}"
        for corpus, counts in zip(record.get("corpora", ()), report["texts"], strict=False)
    ]
    return "\n".join([summary(report, langs), *listed, *filter(None, hints)])
