"""Clean, deduplicate and split any number of pairs in bounded memory.

The pairs are cut into parts. Each stage writes files into a folder. Several processes and machines
may share the work of a stage (:mod:`fairseq_ext.utils.shared_folder`). If a process is killed,
another one does its work again::

    clean-000000   a part's pairs that are kept, and fingerprints of source, target and pair
    repeat-000000  the pairs of all parts that repeat an earlier pair, for one range of fingerprints
    held           the pairs of test and valid: those with the smallest fingerprints on the key
                   side, or whole groups of near-duplicates

A fingerprint is the first 64 bits of a SHA-256 hash. Only fingerprints are compared, a range at a
time. So memory holds one part or one range, and their number does not change the result.
"""

import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np

from fairseq_ext.corpora import SPLITS, near_duplicates, pair_texts, rules
from fairseq_ext.corpora.command_lines import SIDES, PairOptions
from fairseq_ext.corpora.near_duplicates import WordHashes, normalized
from fairseq_ext.corpora.pair_texts import PairPart, Text
from fairseq_ext.corpora.streams import ordered_map, processes, step
from fairseq_ext.text.pipeline import Pipeline
from fairseq_ext.utils.errors import DataError
from fairseq_ext.utils.files import atomic_write
from fairseq_ext.utils.json_files import read_json
from fairseq_ext.utils.shared_folder import SharedFolder

REPEATED, FURTHER, LEAKED = range(len(SPLITS), len(SPLITS) + 3)  # fates other than a split
GROUPS = "groups"  # the value of --key for groups of near-duplicates
HEAD = {"format": "fairseq-ext preparation", "version": 3}
PART_LINES = 200_000
RANGE = 1_000_000  # approximate number of fingerprints in a range
PAIR = 2  # row of the pairs' fingerprints, after the rows of both SIDES
HELD = np.dtype(
    [
        *((name, np.uint64) for name in ("key", "pair", "other")),
        *((name, np.int64) for name in ("part", "line")),
        ("split", np.uint8),
    ]
)


def text_pipeline(options: PairOptions) -> Pipeline:
    """Return the steps from text to words."""
    return Pipeline(
        options.src_lang,
        options.tgt_lang,
        clean=True,
        tokenize=options.tokenize,
        lowercase=options.lowercase,
    )


@dataclass(frozen=True)
class SplitJob:
    """A job that splits texts in stages; other processes can receive it."""

    options: PairOptions  # how to clean and split the pairs
    texts: tuple[Text, ...]  # where the pairs come from; only the first of repeated pairs is kept
    folder: Path  # the folder with the files of the stages
    parts: tuple[PairPart, ...]  # the parts of all texts
    partitions: int  # number of ranges of fingerprints

    @property
    def clean_names(self) -> list[str]:
        """The names of the parts' reports; a part is cleaned once its report exists."""
        return [f"clean-{part.number:06d}.json" for part in self.parts]

    @property
    def repeat_names(self) -> list[str]:
        """The names of the ranges' reports; a range is compared once its report exists."""
        return [f"repeat-{number:06d}.json" for number in range(self.partitions)]

    def beside(self, name: str, ending: str) -> Path:
        """Return the path of the data file beside the report ``name``."""
        return self.folder / f"{Path(name).stem}.{ending}"

    def load(self, name: str) -> Any:
        """Read the report called ``name``."""
        return read_json(self.folder / name)

    def total(self, count: str) -> int:
        """Sum a count over the reports of all parts: pairs ``read``, or ``kept`` after cleaning."""
        return sum(self.load(name)[count] for name in self.clean_names)

    # ---- the stages ----------------------------------------------------------------------------

    def steps(self) -> Iterator[tuple[list[str], Callable[[str], None]]]:
        """Yield each stage's files and the method that makes one of them, in the order needed."""
        yield self.clean_names, self.clean
        if self.options.as_split is None:
            yield self.repeat_names, self.repeat
            yield ["held.json"], self.hold_groups if self.options.key == GROUPS else self.hold

    def _finish(self, name: str, array: np.ndarray, report: object) -> None:
        """Write an array, and then the report ``name``, which says that the array is there."""
        with atomic_write(self.beside(name, "npy"), "wb") as file:
            np.save(file, array)
        with atomic_write(self.folder / name) as file:
            json.dump(report, file)

    def clean(self, name: str) -> None:
        """Clean one part; save the pairs that pass all rules, with their fingerprints."""
        part = self.parts[_number(name)]
        options, pipeline = self.options, text_pipeline(self.options)
        langs = (pipeline.src, pipeline.tgt)
        steps = [step(pipeline, lang) for lang in langs]
        checks = rules.checks(tuple(options.rule), langs, options.max_words)
        hashes = [bytearray() for _ in range(PAIR + 1)]
        dropped = Counter[str]()
        kept = 0
        with atomic_write(self.beside(name, "tsv")) as out:
            for pair in pair_texts.read(self.texts[part.text], part):
                source, target = (do(sentence) for do, sentence in zip(steps, pair, strict=True))
                if (reason := rules.why_left_out(source, target, checks)) is not None:
                    dropped[reason] += 1
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

    def _fingerprints(self, clean: str) -> np.ndarray:
        """Read the fingerprints of a part's sources, targets and pairs, ``[3, N]``."""
        return np.load(self.beside(clean, "npy"), allow_pickle=False)

    def repeat(self, name: str) -> None:
        """Find the pairs of all parts that repeat an earlier pair, in one range of fingerprints."""
        number = _number(name)
        places: list[np.ndarray] = []  # part and line of each pair in the range
        rows: tuple[list[np.ndarray], ...] = ([], [], [])
        for part, clean in enumerate(self.clean_names):
            hashes = self._fingerprints(clean)
            inside = near_duplicates.in_range(hashes, number, self.partitions)
            lines = np.flatnonzero(inside[PAIR])
            places.append(np.stack([np.full_like(lines, part), lines]))
            for row, prints, mask in zip(rows, hashes, inside, strict=True):
                row.append(prints[mask])
        *sides, pairs = map(np.concatenate, rows)
        is_repeated = np.ones(len(pairs), bool)
        is_repeated[np.unique(pairs, return_index=True)[1]] = False  # the first by part and line
        report = {"distinct": [len(np.unique(side)) for side in sides]}
        self._finish(name, np.concatenate(places, axis=1)[:, is_repeated], report)

    @property
    def key(self) -> int:
        """The side by which pairs are split, 0 or 1; known once all repeats are counted."""
        if self.options.key != "auto":
            return SIDES.index(self.options.key)
        counts = [self.load(name)["distinct"] for name in self.repeat_names]
        source, target = map(sum, zip(*counts, strict=True))
        return int(target < source)

    def hold(self, name: str) -> None:
        """Choose the sentences for test and valid, and one pair for each of them."""
        options, key = self.options, self.key
        held_count = options.valid + options.test
        smallest = np.empty(0, np.uint64)
        for clean in self.clean_names:
            keys = self._fingerprints(clean)[key]
            smallest = np.unique(np.concatenate([smallest, keys]))[: held_count + 1]
        if len(smallest) <= held_count:
            raise DataError(
                f"--valid {options.valid} and --test {options.test} together need more than "
                f"{held_count} distinct {SIDES[key]} sentences, but there are {len(smallest)}; ask "
                "for fewer."
            )
        candidates = []
        for number, clean in enumerate(self.clean_names):
            hashes = self._fingerprints(clean)
            lines = np.flatnonzero(np.isin(hashes[key], smallest[:held_count]))
            rows = np.zeros(len(lines), HELD)
            rows["part"], rows["line"] = number, lines
            rows["key"], rows["other"], rows["pair"] = hashes[[key, 1 - key, PAIR]][:, lines]
            candidates.append(rows)
        # Per sentence, keep the pair with the smallest fingerprint, or the first of equal pairs.
        best = np.sort(np.concatenate(candidates), order=["key", "pair", "part", "line"])
        best = best[np.unique(best["key"], return_index=True)[1]]
        best["split"] = SPLITS.index("valid")
        best["split"][: options.test] = SPLITS.index("test")
        test, valid = np.split(best["other"], [options.test])
        report = {"key": SIDES[key], "leaks": len(np.intersect1d(test, valid))}
        self._finish(name, best, report)

    def hold_groups(self, name: str) -> None:
        """Draw whole groups of near-duplicates for test and valid, leaving out repeated pairs."""
        options = self.options
        places: list[np.ndarray] = []  # part and line of each pair
        sides: tuple[list[WordHashes], list[WordHashes]] = ([], [])
        for number, clean in enumerate(self.clean_names):
            first = ~self._repeated(number, self.load(clean)["kept"])
            lines = np.flatnonzero(first)
            places.append(np.stack([np.full(len(lines), number), lines]))
            with self.beside(clean, "tsv").open(encoding="utf-8", newline="\n") as file:
                pairs = [line.split("\t") for line in itertools.compress(file, first)]
            for side, hashes in enumerate(sides):
                hashes.append(near_duplicates.hash_words(pair[side] for pair in pairs))
        groups = near_duplicates.group_sides(sides)
        test = near_duplicates.draw_groups(groups, options.test, f"{options.salt} test")
        valid = near_duplicates.draw_groups(
            groups, options.valid, f"{options.salt} valid", exclude=test
        )
        if test.sum() < options.test or valid.sum() < options.valid or (test | valid).all():
            raise DataError(
                f"--valid {options.valid} and --test {options.test} are more than the small "
                f"groups of near-duplicates among {len(groups)} pairs give; ask for fewer, or "
                "split by sentences (`--key auto`)."
            )
        held = np.zeros(options.test + options.valid, HELD)
        held["part"], held["line"] = np.concatenate(places, axis=1)[:, test | valid]
        held["split"] = np.where(test, SPLITS.index("test"), SPLITS.index("valid"))[test | valid]
        sizes = near_duplicates.group_sizes(groups)
        report = {"key": GROUPS, "groups": len(sizes), "largest": int(sizes[0])}
        self._finish(name, held, report)

    # ---- the result, once all stages are done ----------------------------------------------------

    def write(self, files: Sequence[Sequence[IO[str]]]) -> dict[str, Any]:
        """Write every pair into the source and target file of its split, in the order of the texts.

        Returns:
            Counts: pairs ``read``; pairs ``dropped`` by reason; pairs in each of the ``splits``;
            ``words`` on both sides of each split; the ``key`` side; ``leaks`` between splits; and
            for each of the ``texts`` the pairs read and the lines in train.
        """
        key, late = None, dict[int, str]()
        leaks: dict[str, int] = {}
        if self.options.as_split is None:
            held = self.load("held.json")
            key = held.pop("key")
            leaks = held if key == GROUPS else {"train": 0, "valid and test": held["leaks"]}
            late = {REPEATED: "repeated pair", FURTHER: "further pair of a held-out sentence"}
            if key != GROUPS:
                late[LEAKED] = leak(SIDES[1 - SIDES.index(key)])
        dropped, fate_counts = Counter[str](), Counter[int]()
        pairs, words = [0] * len(SPLITS), [[0, 0] for _ in SPLITS]
        texts = [{"read": 0, "train": 0} for _ in self.texts]
        for part, clean in zip(self.parts, self.clean_names, strict=True):
            report, before = self.load(clean), pairs[0]
            dropped.update(report["dropped"])
            fates, leak_count = self._fates(part.number, clean, report["kept"])
            if "train" in leaks:
                leaks["train"] += leak_count
            fate_counts.update(fates.tolist())
            copies = self._copies(part, clean, fates)
            with self.beside(clean, "tsv").open(encoding="utf-8", newline="\n") as file:
                for line, fate, times in zip(file, fates.tolist(), copies.tolist(), strict=True):
                    if fate >= len(SPLITS):
                        continue
                    pairs[fate] += times
                    for side, sentence in enumerate(line.rstrip("\n").split("\t")):
                        files[fate][side].write(f"{sentence}\n" * times)
                        words[fate][side] += len(sentence.split()) * times
            texts[part.text]["read"] += report["read"]
            texts[part.text]["train"] += pairs[0] - before
        dropped.update({why: fate_counts[fate] for fate, why in late.items() if fate_counts[fate]})
        return {
            "read": self.total("read"),
            "dropped": dict(dropped),
            "splits": dict(zip(SPLITS, pairs, strict=True)),
            "words": dict(zip(SPLITS, words, strict=True)),
            "key": key,
            "leaks": leaks,
            "texts": texts,
        }

    def _fates(self, number: int, clean: str, pair_count: int) -> tuple[np.ndarray, int]:
        """Return each pair's split or reason to drop it, and the number of leaks into train."""
        fates = np.zeros(pair_count, np.uint8)
        if self.options.as_split is not None:
            fates[:] = SPLITS.index(self.options.as_split)
            return fates, 0
        held = np.load(self.folder / "held.npy", allow_pickle=False)
        repeated = self._repeated(number, pair_count)
        leaked = np.zeros(pair_count, bool)
        if self.options.key != GROUPS:
            hashes = self._fingerprints(clean)
            key = SIDES.index(self.load("held.json")["key"])
            fates[np.isin(hashes[key], held["key"])] = FURTHER
            leaked = np.isin(hashes[1 - key], held["other"]) & (fates != FURTHER) & ~repeated
            if self.options.strict:
                fates[leaked] = LEAKED
        fates[repeated] = REPEATED
        in_part = held["part"] == number
        fates[held["line"][in_part]] = held["split"][in_part]
        return fates, int(leaked.sum())

    def _repeated(self, number: int, pair_count: int) -> np.ndarray:
        """Return True for each pair of a part that repeats an earlier pair of any part."""
        repeated = np.zeros(pair_count, bool)
        for name in self.repeat_names:
            places = np.load(self.beside(name, "npy"), mmap_mode="r", allow_pickle=False)
            span = slice(*np.searchsorted(places[0], [number, number + 1]))
            repeated[places[1, span]] = True
        return repeated

    def _copies(self, part: PairPart, clean: str, fates: np.ndarray) -> np.ndarray:
        """Return how often each pair is written: the weight, rounded up or down at random.

        The pair's fingerprint is the random number. Pairs of valid and test are written once.
        """
        weight = self.texts[part.text].weight
        if weight == 1:
            return np.ones(len(fates), np.uint8)
        drawn = self._fingerprints(clean)[PAIR] < (weight - int(weight)) * 2.0**64
        return np.where(fates == 0, int(weight) + drawn, 1)


def leak(side: str) -> str:
    """Return the reason to drop a training pair whose ``side`` is also in valid or test."""
    return f"{side} sentence also in valid or test"


def prepare(
    options: PairOptions,
    texts: tuple[Text, ...],
    folder: Path,
    part_lines: int,
    range_size: int = RANGE,
) -> SplitJob:
    """Unpack and cut the texts in an existing folder; the first worker does it for all."""
    packed = {
        pair_texts.unpacked_name(number, place): (text, place)
        for number, text in enumerate(texts)
        for place, path in enumerate(text.files)
        if pair_texts.is_packed(text, path)
    }
    shared(folder).work([*packed], lambda name: pair_texts.unpack(*packed[name], folder / name))
    parts = pair_texts.cut_texts(texts, folder, part_lines)
    total = sum(part.lines for part in parts)
    return SplitJob(options, texts, folder, tuple(parts), max(1, -(-total // range_size)))


def shared(folder: Path) -> SharedFolder:
    """Return the shared folder of a job."""
    return SharedFolder(folder, HEAD)


def work(job: SplitJob, workers: int | None) -> None:
    """Do all stages, together with other workers."""
    folder = shared(job.folder)
    spread = partial(_spread, processes(workers))
    for stage, (names, do) in enumerate(job.steps()):
        folder.work(names, do, spread=spread)
        if stage == 0 and not job.total("kept"):
            raise DataError(f"no pairs are left of {job.total('read')} read; nothing to write.")


def _spread(workers: int, do: Callable[[str], bool], names: Iterable[str]) -> Iterator[bool]:
    names = [*names]
    return ordered_map(do, names, min(workers, len(names)) or 1)


def _number(name: str) -> int:
    """Return the number of the part or range that a file belongs to."""
    return int(Path(name).stem.rpartition("-")[2])
