"""A job of splitting: what becomes of the pairs, and the names of its files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq_ext.corpora import SPLITS
from fairseq_ext.corpora.pair_texts import PairPart, Text
from fairseq_ext.text.pipeline import Pipeline
from fairseq_ext.utils.json_files import read_json

REPEATED, FURTHER, LEAKED = range(len(SPLITS), len(SPLITS) + 3)  # fates beside the splits'


@dataclass(frozen=True)
class Settings:
    """How pairs are cleaned, filtered and split.

    Attributes:
        texts: where they come from; of repeated pairs the first is kept.
        pipeline: from text to words.
        max_words: most words on either side; None for any number.
        rules: of :mod:`fairseq_ext.corpora.rules`, by which pairs are left out.
        valid, test: sentences held out.
        key: side that decides, ``source``, ``target``, or ``auto``: the one that repeats more.
        salt: hashed with each sentence; another salt gives another split.
        strict: also drop from train the pairs whose other side is held out.
        as_split: do not split, keep repeats: all pairs are this split.
    """

    texts: tuple[Text, ...]
    pipeline: Pipeline
    max_words: int | None = None
    rules: tuple[str, ...] = ()
    valid: int = 1000
    test: int = 1000
    key: str = "auto"
    salt: str = "1"
    strict: bool = True
    as_split: str | None = None


@dataclass(frozen=True)
class SplitJob:
    """One job.

    Attributes:
        settings: what becomes of the pairs.
        folder: where the files of the stages are.
        parts: of all texts.
        partitions: ranges of fingerprints.
    """

    settings: Settings
    folder: Path
    parts: tuple[PairPart, ...]
    partitions: int

    def of_parts(self, stage: str) -> list[str]:
        """The file of each part, written last."""
        return [f"{stage}-{part.number:06d}.json" for part in self.parts]

    def of_ranges(self, stage: str) -> list[str]:
        """The file of each range, written last."""
        return [f"{stage}-{number:06d}.json" for number in range(self.partitions)]

    def beside(self, name: str, ending: str) -> Path:
        """A file with the data of the one called ``name``."""
        return self.folder / f"{Path(name).stem}.{ending}"

    def load(self, name: str) -> Any:
        """Read the file called ``name``."""
        return read_json(self.folder / name)
