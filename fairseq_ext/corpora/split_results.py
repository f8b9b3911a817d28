"""Results of :mod:`fairseq_ext.corpora.splitting`, read from the files of its stages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import IO

import numpy as np

from fairseq_ext.corpora import SPLITS, fingerprints
from fairseq_ext.corpora.command_lines import SIDES
from fairseq_ext.corpora.split_job import FURTHER, LEAKED, REPEATED, SplitJob

FURTHER_REASON = "further pair of a held-out sentence"


class SplitResults(SplitJob):
    """Counts, and the splits themselves, once all stages are done."""

    def read(self) -> int:
        """Pairs read."""
        return sum(self.load(name)["read"] for name in self.of_parts("clean"))

    def kept(self) -> int:
        """Pairs that cleaning has kept, repeats too."""
        return sum(self.load(name)["kept"] for name in self.of_parts("clean"))

    def dropped(self) -> dict[str, int]:
        """Pairs dropped by reason, in the order in which the reasons came up."""
        counts: dict[str, int] = {}
        first: dict[str, tuple[float, ...]] = {}
        key = SIDES.index(self._key()) if self.settings.as_split is None else 0
        late = {FURTHER: FURTHER_REASON, LEAKED: leak(SIDES[1 - key])}

        def add(reason: str, count: int, *place: float) -> None:
            counts[reason] = counts.get(reason, 0) + count
            first[reason] = min(first.get(reason, place), place)

        for number, (clean, fate) in enumerate(
            zip(self.of_parts("clean"), self.of_parts("fate"), strict=True)
        ):
            for reason, (count, kept, read) in self.load(clean)["dropped"].items():
                add(reason, count, 0, number, kept, read)
            found = self.load(fate)
            for code, place in found["first"].items():
                reason = "repeated pair" if int(code) == REPEATED else late[int(code)]
                stage = 0 if int(code) == REPEATED else 1
                add(reason, found["counts"][int(code)], stage, number, place, math.inf)
        return {reason: counts[reason] for reason in sorted(counts, key=first.__getitem__)}

    def _key(self) -> str:
        return SIDES[self.load("held.json")["key"]]

    def leaks(self) -> tuple[str, dict[str, int]]:
        """The key side, and how many sentences of the other side are in two splits."""
        train = sum(self.load(name)["leaks"] for name in self.of_parts("fate"))
        return self._key(), {"train": train, "valid and test": self.load("held.json")["leaks"]}

    def sizes(self) -> dict[str, dict[str, list[int]]]:
        """Count, for each split that is written: pairs, and words and types of both sides."""
        reports = [self.load(name) for name in self.of_parts("fate")]
        pairs = np.sum([one["counts"][: len(SPLITS)] for one in reports], axis=0).tolist()
        pairs[0] = sum(one["copies"] for one in reports)
        words = np.sum([one["words"] for one in reports], axis=0).tolist()
        types = np.sum([self.load(one)["types"] for one in self.of_ranges("types")], axis=0)
        splits = SPLITS if self.settings.as_split is None else (self.settings.as_split,)
        return {
            name: {
                "pairs": [pairs[place]],
                "words": words[2 * place : 2 * place + 2],
                "types": types.tolist()[2 * place : 2 * place + 2],
            }
            for place, name in enumerate(SPLITS)
            if name in splits
        }

    def of_texts(self) -> list[dict[str, int]]:
        """Count, for each text: pairs read, and lines that are written of it as train."""
        found = [{"read": 0, "train": 0} for _ in self.settings.texts]
        for part, clean, fate in zip(
            self.parts, self.of_parts("clean"), self.of_parts("fate"), strict=True
        ):
            found[part.text]["read"] += self.load(clean)["read"]
            found[part.text]["train"] += self.load(fate)["copies"]
        return found

    def write(self, files: Sequence[Sequence[IO[str]]]) -> None:
        """Write every pair into the two files of its split, in the order of the texts.

        Args:
            files: of each of ``SPLITS``, source and target.
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
    """Name the fault of a pair of train whose sentence on this side is held out too."""
    return f"{side} sentence also in valid or test"
