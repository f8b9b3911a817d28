"""Clean, deduplicate and split any number of pairs in bounded memory.

The pairs are cut into parts. Each stage writes files into a folder. Several processes and machines
may share its work (:mod:`fairseq_ext.utils.shared_folder`); work that a killed process had begun is
done again::

    clean-000000   a part's pairs that are kept, and fingerprints of source, target and pair, sorted
    repeat-0000    the pairs that repeat an earlier one, for one range of fingerprints in all parts
    held           the sentences of test and valid: those with the smallest fingerprints on the key
                   side, or whole groups of near-duplicates
    fate-000000    for each pair of a part: its split, or why it is dropped; and its words
    types-0000     the number of different words, for one range of their fingerprints

Only fingerprints are compared, a range at a time. So memory holds one part or one range, and
the result does not depend on how many there are.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np

from fairseq_ext.corpora import SPLITS, fingerprints, near_duplicates, pair_texts, rules
from fairseq_ext.corpora.command_lines import SIDES, PairOptions
from fairseq_ext.corpora.fingerprints import as_array, fingerprint, normalized
from fairseq_ext.corpora.near_duplicates import WordHashes
from fairseq_ext.corpora.pair_texts import PairPart, Text
from fairseq_ext.corpora.parallel import ordered_map
from fairseq_ext.corpora.streams import step
from fairseq_ext.text.pipeline import Pipeline
from fairseq_ext.utils.errors import DataError
from fairseq_ext.utils.files import atomic_write
from fairseq_ext.utils.json_files import read_json
from fairseq_ext.utils.shared_folder import SharedFolder

REPEATED, FURTHER, LEAKED = range(len(SPLITS), len(SPLITS) + 3)  # fates other than a split
GROUPS = "groups"  # the value of --key for groups of near-duplicates
FURTHER_REASON = "further pair of a held-out sentence"
HEAD = {"format": "fairseq-ext preparation", "version": 1}
PART_LINES = 200_000
RANGE = 1_000_000  # approximate number of fingerprints in a range
PAIR = 2  # row of the fingerprints of pairs, after those of SIDES
HELD = np.dtype(
    [
        *((name, fingerprints.KIND) for name in ("key", "pair", "other")),
        *((name, np.int64) for name in ("part", "line")),
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
    """A split of some texts, computed in stages; can be sent to another process.

    Attributes:
        options: how to clean and split the pairs.
        texts: where the pairs come from; of repeated pairs the first is kept.
        folder: the folder with the files of the stages.
        parts: the parts of all texts.
        partitions: number of ranges of fingerprints.
    """

    options: PairOptions
    texts: tuple[Text, ...]
    folder: Path
    parts: tuple[PairPart, ...]
    partitions: int

    def of_parts(self, stage: str) -> list[str]:
        """Return the names of a stage's reports, one per part, which show that a part is done."""
        return [f"{stage}-{part.number:06d}.json" for part in self.parts]

    def of_ranges(self, stage: str) -> list[str]:
        """Return the names of a stage's reports, one per range, which show that a range is done."""
        return [f"{stage}-{number:06d}.json" for number in range(self.partitions)]

    def beside(self, name: str, ending: str) -> Path:
        """Return the path of the data file beside the report ``name``."""
        return self.folder / f"{Path(name).stem}.{ending}"

    def load(self, name: str) -> Any:
        """Read the report called ``name``."""
        return read_json(self.folder / name)

    # ---- the stages ----------------------------------------------------------------------------

    def _end(self, name: str, report: object) -> None:
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
        dropped: dict[str, list[int]] = {}
        line_count = read = 0
        with atomic_write(self.beside(name, "tsv")) as out:
            for pair in pair_texts.read(self.texts[part.text], part):
                read += 1
                source, target = (do(sentence) for do, sentence in zip(steps, pair, strict=True))
                if (reason := rules.why_left_out(source, target, checks)) is not None:
                    dropped.setdefault(reason, [0, line_count, read])[0] += 1
                    continue
                line = f"{source}\t{target}"
                out.write(f"{line}\n")
                line_count += 1
                if options.as_split is None:
                    texts = (normalized(source), normalized(target), line)
                    for row, text in zip(hashes, texts, strict=True):
                        row += fingerprint(options.salt, text)
        if options.as_split is None:
            rows = [as_array(row) for row in hashes]
            orders = [np.argsort(row, kind="stable") for row in rows]
            ordered = [row[order] for row, order in zip(rows, orders, strict=True)]
            fingerprints.save(self.beside(name, "hash.npy"), np.stack(ordered))
            fingerprints.save(self.beside(name, "line.npy"), np.stack(orders).astype(np.uint32))
        self._end(name, {"read": read, "kept": line_count, "dropped": dropped})

    def repeat(self, name: str) -> None:
        """Find the pairs of one range that repeat an earlier pair of any part."""
        bounds = [*fingerprints.ranges(self.partitions)][_number(name)]
        pieces: list[list[np.ndarray]] = [[], [], []]
        distinct: list[list[np.ndarray]] = [[], []]
        for number, clean in enumerate(self.of_parts("clean")):
            hashes = fingerprints.load(self.beside(clean, "hash.npy"))
            lines = fingerprints.load(self.beside(clean, "line.npy"))
            span = fingerprints.within(hashes[PAIR], *bounds)
            # Copied, because views would keep every part's file mapped until the range is done.
            pieces[0].append(np.array(hashes[PAIR, span]))
            pieces[1].append(np.full(span.stop - span.start, number, np.uint32))
            pieces[2].append(np.array(lines[PAIR, span]))
            if self.options.key == "auto":
                for side, arrays in enumerate(distinct):
                    arrays.append(
                        np.unique(hashes[side, fingerprints.within(hashes[side], *bounds)])
                    )
        pairs, parts, lines = map(np.concatenate, pieces)
        order = np.argsort(pairs, kind="stable")  # equal pairs stay in order of part and line
        repeats = order[1:][pairs[order[1:]] == pairs[order[:-1]]]
        places = np.stack([parts[repeats], lines[repeats]])
        by_place = np.lexsort(places[::-1])
        fingerprints.save(self.beside(name, "npy"), places[:, by_place])
        self._end(name, {"distinct": [fingerprints.distinct(arrays) for arrays in distinct]})

    @property
    def key(self) -> int:
        """The side by which pairs are split, 0 or 1; known once all repeats are counted."""
        if self.options.key != "auto":
            return SIDES.index(self.options.key)
        counts = [self.load(name)["distinct"] for name in self.of_ranges("repeat")]
        source, target = map(sum, zip(*counts, strict=True))
        return int(target < source)

    def hold(self, name: str) -> None:
        """Choose the sentences of test and valid, and one pair for each sentence.

        Raises:
            DataError: there are fewer distinct key sentences than ``valid + test + 1``.
        """
        if self.options.key == GROUPS:
            self._hold_groups(name)
            return
        options, key = self.options, self.key
        held_count = options.valid + options.test
        order = self._smallest(key, held_count + 1)
        if len(order) <= held_count:
            raise DataError(
                f"--valid {options.valid} and --test {options.test} together need more than "
                f"{held_count} distinct {SIDES[key]} sentences, but there are {len(order)}; ask "
                "for fewer."
            )
        best = np.empty(0, HELD)
        for number in range(len(self.parts) if held_count else 0):
            best = _best(np.concatenate([best, self._heads(number, key, order[held_count - 1])]))
        test = best["key"] <= order[options.test - 1] if options.test else best["key"] < b""
        leaks = np.intersect1d(best["other"][test], best["other"][~test])
        fingerprints.save(self.beside(name, "npy"), best)
        fingerprints.save(self.beside(name, "test.npy"), test)
        self._end(name, {"key": key, "leaks": len(leaks)})

    def _hold_groups(self, name: str) -> None:
        """Draw whole groups of near-duplicates for test and valid, leaving out repeated pairs.

        Raises:
            DataError: there are too few small groups.
        """
        options = self.options
        places: list[np.ndarray] = []  # part and line of each pair
        sides: tuple[list[WordHashes], list[WordHashes]] = ([], [])
        for number, clean in enumerate(self.of_parts("clean")):
            first = ~self._repeated(number, self.load(clean)["kept"])
            lines = np.flatnonzero(first)
            places.append(np.stack([np.full(len(lines), number), lines]))
            with self.beside(clean, "tsv").open(encoding="utf-8", newline="\n") as file:
                pairs = [line.split("\t") for line in itertools.compress(file, first)]
            for side, hashes in enumerate(sides):
                hashes.append(near_duplicates.hash_words(pair[side] for pair in pairs))
        rows = np.concatenate(places, axis=1)
        groups = near_duplicates.Groups(rows.shape[1])
        for hashes in sides:
            count = near_duplicates.range_count(np.concatenate([part.lengths for part in hashes]))
            for number in range(count):
                groups.join(near_duplicates.links(hashes, number, count))
        numbers = groups.numbers()
        test = near_duplicates.draw_groups(numbers, options.test, f"{options.salt} test")
        valid = near_duplicates.draw_groups(
            numbers, options.valid, f"{options.salt} valid", exclude=test
        )
        if test.sum() < options.test or valid.sum() < options.valid or (test | valid).all():
            raise DataError(
                f"--valid {options.valid} and --test {options.test} are more than the small "
                f"groups of near-duplicates among {rows.shape[1]} pairs give; ask for fewer, or "
                "split by sentences (`--key auto`)."
            )
        fingerprints.save(self.beside(name, "npy"), rows[:, test | valid])
        fingerprints.save(self.beside(name, "test.npy"), test[test | valid])
        sizes = near_duplicates.group_sizes(numbers)
        self._end(name, {"key": GROUPS, "groups": len(sizes), "largest": int(sizes[0])})

    def _smallest(self, key: int, count: int) -> np.ndarray:
        """Return the ``count`` smallest fingerprints of the key side over all parts."""
        smallest = np.empty(0, fingerprints.KIND)
        for clean in self.of_parts("clean"):
            hashes = fingerprints.load(self.beside(clean, "hash.npy"))[key]
            smallest = np.unique(np.concatenate([smallest, np.unique(hashes)[:count]]))[:count]
        return smallest

    def _heads(self, number: int, key: int, last: np.bytes_) -> np.ndarray:
        """Return the pairs of a part whose key sentence goes into test or valid."""
        clean = self.of_parts("clean")[number]
        hashes = fingerprints.load(self.beside(clean, "hash.npy"))
        lines = fingerprints.load(self.beside(clean, "line.npy"))
        count = int(np.searchsorted(hashes[key], last, "right"))
        heads = np.empty(count, HELD)
        heads["part"], heads["line"], heads["key"] = number, lines[key, :count], hashes[key, :count]
        for name, row in (("pair", PAIR), ("other", 1 - key)):
            by_line = np.empty(hashes.shape[1], fingerprints.KIND)
            by_line[lines[row]] = hashes[row]
            heads[name] = by_line[heads["line"]]
        return heads

    def decide(self, name: str) -> None:
        """Decide the fate of every pair of a part, and fingerprint the words of pairs that stay."""
        number = _number(name)
        clean = self.of_parts("clean")[number]
        pair_count = self.load(clean)["kept"]
        report: dict[str, Any] = {"first": {}, "leaks": 0}
        if self.options.as_split is not None:
            fates = np.full(pair_count, SPLITS.index(self.options.as_split), np.uint8)
        else:
            fates, report["leaks"] = self._fates(number, clean, pair_count)
            for fate in (REPEATED, FURTHER, LEAKED):
                places = np.flatnonzero(fates == fate)
                if len(places):
                    report["first"][str(fate)] = int(places[0])
        copies = self._copies(number, clean, fates)
        fingerprints.save(self.beside(name, "npy"), np.stack([fates, copies]))
        report["counts"] = np.bincount(fates, minlength=LEAKED + 1).tolist()
        report["copies"] = int(copies[fates == 0].sum())
        report["words"], report["offsets"] = self._words(name, clean, fates, copies)
        self._end(name, report)

    def _fates(self, number: int, clean: str, pair_count: int) -> tuple[np.ndarray, int]:
        """Return each pair's fate, and the number of train pairs whose other side is held out."""
        best = fingerprints.load(self.folder / "held.npy")
        test = fingerprints.load(self.folder / "held.test.npy")
        held_out = np.where(test, SPLITS.index("test"), SPLITS.index("valid"))
        key = self.load("held.json")["key"]
        fates = np.zeros(pair_count, np.uint8)
        repeated = self._repeated(number, pair_count)
        if key == GROUPS:
            fates[repeated] = REPEATED
            fates[best[1, best[0] == number]] = held_out[best[0] == number]
            return fates, 0
        hashes = fingerprints.load(self.beside(clean, "hash.npy"))
        lines = fingerprints.load(self.beside(clean, "line.npy"))
        held = np.zeros(pair_count, bool)
        held[lines[key, fingerprints.where(hashes[key], np.unique(best["key"]))]] = True
        leaked = np.zeros(pair_count, bool)
        other_sides = np.unique(best["other"])
        leaked[lines[1 - key, fingerprints.where(hashes[1 - key], other_sides)]] = True
        leaked &= ~(held | repeated)
        if self.options.strict:
            fates[leaked] = LEAKED
        fates[held] = FURTHER
        fates[repeated] = REPEATED
        in_part = best["part"] == number
        fates[best["line"][in_part]] = held_out[in_part]
        return fates, int(leaked.sum())

    def _repeated(self, number: int, pair_count: int) -> np.ndarray:
        """Return True for each pair of a part that repeats an earlier pair of any part."""
        repeated = np.zeros(pair_count, bool)
        for name in self.of_ranges("repeat"):
            places = fingerprints.load(self.beside(name, "npy"))
            span = slice(*np.searchsorted(places[0], np.array([number, number + 1], np.uint32)))
            repeated[places[1, span]] = True
        return repeated

    def _copies(self, number: int, clean: str, fates: np.ndarray) -> np.ndarray:
        """Return how often each pair is written: the weight, rounded up or down by a draw.

        The last bytes of a pair's fingerprint, which have no other use, serve as the draw.
        """
        weight = self.texts[self.parts[number].text].weight
        copies = np.ones(len(fates), np.uint8)
        if weight == 1:
            return copies
        whole_copies, share = int(weight), weight - int(weight)
        hashes = np.array(fingerprints.load(self.beside(clean, "hash.npy"))[PAIR])
        ends = hashes.view(np.uint8).reshape(-1, fingerprints.BYTES)[:, 8:].copy().view(">u8")[:, 0]
        drawn = np.empty(len(fates), bool)
        drawn[fingerprints.load(self.beside(clean, "line.npy"))[PAIR]] = ends < share * 2.0**64
        train = fates == 0
        copies[train] = whole_copies + drawn[train]
        return copies

    def _words(
        self, name: str, clean: str, fates: np.ndarray, copies: np.ndarray
    ) -> tuple[list[int], list[int]]:
        """Save fingerprints of the words of each split and side.

        Returns:
            Numbers of words, and the end of each split and side's fingerprints.
        """
        counts = [0] * len(SPLITS) * 2
        types: list[set[str]] = [set() for _ in counts]
        with self.beside(clean, "tsv").open(encoding="utf-8", newline="\n") as file:
            for line, fate, times in zip(file, fates.tolist(), copies.tolist(), strict=True):
                if fate < len(SPLITS) and times:
                    for side, text in enumerate(line.rstrip("\n").split("\t")):
                        tokens = text.split()
                        counts[2 * fate + side] += len(tokens) * times
                        types[2 * fate + side].update(tokens)
        groups = [np.sort(as_array(b"".join(map(_word, word_set)))) for word_set in types]
        fingerprints.save(self.beside(name, "words.npy"), np.concatenate(groups))
        return counts, np.cumsum([len(group) for group in groups]).tolist()

    def types(self, name: str) -> None:
        """Count the different words of each split and side in one range, over all parts."""
        bounds = [*fingerprints.ranges(self.partitions)][_number(name)]
        pieces: list[list[np.ndarray]] = [[] for _ in range(2 * len(SPLITS))]
        for fate in self.of_parts("fate"):
            array = fingerprints.load(self.beside(fate, "words.npy"))
            ends = self.load(fate)["offsets"]
            for group, start, end in zip(pieces, [0, *ends], ends, strict=False):
                part_words = array[start:end]
                group.append(np.array(part_words[fingerprints.within(part_words, *bounds)]))
        self._end(name, {"types": [fingerprints.distinct(group) for group in pieces]})

    def steps(self) -> Iterator[tuple[list[str], Callable[[str], None]]]:
        """Yield each stage's files and the method that makes one; a stage needs earlier stages."""
        yield self.of_parts("clean"), self.clean
        if self.options.as_split is None:
            yield self.of_ranges("repeat"), self.repeat
            yield ["held.json"], self.hold
        yield self.of_parts("fate"), self.decide
        yield self.of_ranges("types"), self.types

    # ---- the results, once all stages are done ----------------------------------------

    def read(self) -> int:
        """The number of pairs read."""
        return sum(self.load(name)["read"] for name in self.of_parts("clean"))

    def kept(self) -> int:
        """The number of pairs left after cleaning, repeats included."""
        return sum(self.load(name)["kept"] for name in self.of_parts("clean"))

    def dropped(self) -> dict[str, int]:
        """Count dropped pairs by reason, in the order in which the reasons first occur."""
        counts: dict[str, int] = {}
        first: dict[str, tuple[float, ...]] = {}
        late = {}
        if self.options.as_split is None and (key := self._key()) != GROUPS:
            late = {FURTHER: FURTHER_REASON, LEAKED: leak(SIDES[1 - SIDES.index(key)])}

        def add(reason: str, count: int, *place: float) -> None:
            counts[reason] = counts.get(reason, 0) + count
            first[reason] = min(first.get(reason, place), place)

        for number, (clean, fate) in enumerate(
            zip(self.of_parts("clean"), self.of_parts("fate"), strict=True)
        ):
            for reason, (count, kept_before, read) in self.load(clean)["dropped"].items():
                add(reason, count, 0, number, kept_before, read)
            report = self.load(fate)
            for code, place in report["first"].items():
                reason = "repeated pair" if int(code) == REPEATED else late[int(code)]
                stage = 0 if int(code) == REPEATED else 1
                add(reason, report["counts"][int(code)], stage, number, place, math.inf)
        return {reason: counts[reason] for reason in sorted(counts, key=first.__getitem__)}

    def _key(self) -> str:
        key = self.load("held.json")["key"]
        return key if key == GROUPS else SIDES[key]

    def leaks(self) -> tuple[str | None, dict[str, int]]:
        """Return the key side, and how many sentences of the other side are in two splits."""
        if self.options.as_split is not None:
            return None, {}
        held = self.load("held.json")
        if held["key"] == GROUPS:
            return GROUPS, {name: held[name] for name in ("groups", "largest")}
        train = sum(self.load(name)["leaks"] for name in self.of_parts("fate"))
        return self._key(), {"train": train, "valid and test": held["leaks"]}

    def sizes(self) -> dict[str, dict[str, Any]]:
        """Count the pairs of each written split, and the words and types of both sides."""
        reports = [self.load(name) for name in self.of_parts("fate")]
        pairs = np.sum([report["counts"][: len(SPLITS)] for report in reports], axis=0).tolist()
        pairs[0] = sum(report["copies"] for report in reports)
        words = np.sum([report["words"] for report in reports], axis=0).tolist()
        types = np.sum([self.load(name)["types"] for name in self.of_ranges("types")], axis=0)
        splits = SPLITS if self.options.as_split is None else (self.options.as_split,)
        return {
            name: {
                "pairs": pairs[place],
                "words": words[2 * place : 2 * place + 2],
                "types": types.tolist()[2 * place : 2 * place + 2],
            }
            for place, name in enumerate(SPLITS)
            if name in splits
        }

    def of_texts(self) -> list[dict[str, int]]:
        """Count the pairs read from each text, and its lines in the training text."""
        counts = [{"read": 0, "train": 0} for _ in self.texts]
        for part, clean, fate in zip(
            self.parts, self.of_parts("clean"), self.of_parts("fate"), strict=True
        ):
            counts[part.text]["read"] += self.load(clean)["read"]
            counts[part.text]["train"] += self.load(fate)["copies"]
        return counts

    def write(self, files: Sequence[Sequence[IO[str]]]) -> None:
        """Write every pair into the two files of its split, in the order of the texts.

        Args:
            files: the source and target file of each of ``SPLITS``.
        """
        for clean, fate in zip(self.of_parts("clean"), self.of_parts("fate"), strict=True):
            fates, copies = fingerprints.load(self.beside(fate, "npy")).tolist()
            with self.beside(clean, "tsv").open(encoding="utf-8", newline="\n") as file:
                for line, code, times in zip(file, fates, copies, strict=True):
                    if code < len(SPLITS) and times:
                        source, _, target = line.partition("\t")
                        files[code][0].write(f"{source}\n" * times)
                        files[code][1].write(target * times)


def leak(side: str) -> str:
    """Name the fault of a training pair whose sentence on this side is also in valid or test."""
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
    return SplitJob(options, texts, folder, tuple(parts), max(1, math.ceil(total / range_size)))


def shared(folder: Path) -> SharedFolder:
    """Return the shared folder of a job."""
    return SharedFolder(folder, HEAD, "corpus pairs --parts", called={"part_lines": "--part-lines"})


def work(job: SplitJob, workers: int, shard: tuple[int, int] = (0, 1)) -> list[str]:
    """Do all stages, side by side with other workers.

    Args:
        job: the job, from :func:`prepare`.
        workers: processes on this machine.
        shard: number and count of the share of the parts to clean. The worker that finds all
            parts cleaned does the rest.

    Returns:
        The parts that other shards have not cleaned yet; none once everything is done.

    Raises:
        DataError: a text cannot be used, or cleaning leaves nothing of it.
    """
    folder = shared(job.folder)
    spread = partial(_spread, workers)
    for stage, (names, do) in enumerate(job.steps()):
        share = names[shard[0] :: shard[1]] if stage == 0 else names
        folder.work(share, do, spread=spread)
        if stage == 0:
            if missing := folder.missing(names):
                return missing
            if not job.kept():
                raise DataError(f"no pairs are left of {job.read()} read; nothing to write.")
    return []


def _spread(workers: int, do: Callable[[str], bool], names: Iterable[str]) -> Iterator[bool]:
    names = [*names]
    return ordered_map(do, names, min(workers, len(names)) or 1)


def _best(pairs: np.ndarray) -> np.ndarray:
    """Keep one pair of each key: the one with the smallest fingerprint, or the first of equals."""
    pairs = pairs[np.lexsort([pairs[name] for name in ("line", "part", "pair", "key")])]
    first = np.ones(len(pairs), bool)
    first[1:] = pairs["key"][1:] != pairs["key"][:-1]
    return pairs[first]


def _number(name: str) -> int:
    """Return the number of the part or range that a file belongs to."""
    return int(Path(name).stem.rpartition("-")[2])


def _word(word: str) -> bytes:
    return hashlib.blake2b(word.encode(), digest_size=fingerprints.BYTES).digest()
