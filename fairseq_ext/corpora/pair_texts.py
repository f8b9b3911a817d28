"""Texts of sentence pairs, which can be cut into parts that are read independently."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fairseq_ext.text.cleaning import one_spaced, plain
from fairseq_ext.text.reading import (
    COMPRESSED,
    Part,
    cells,
    cut,
    decoded,
    lines,
    raw_lines,
    table_rows,
)
from fairseq_ext.utils.errors import DataError
from fairseq_ext.utils.files import atomic_write

PACKED = (*COMPRESSED, ".zip")  # cannot be read from the middle


@dataclass(frozen=True)
class Text:
    """A text of sentence pairs: a file of pairs, or two aligned files."""

    name: str  # a name that no other text of the corpus has
    files: tuple[Path, ...]  # one file of pairs, tab-separated or CSV, or two aligned files
    # Numbers of the source and target columns in a file of pairs, from 1.
    columns: tuple[int, int] = (1, 2)
    table: bool = False  # whether the file of pairs is CSV
    header: bool = False  # whether the first row of the file of pairs names its columns
    member: str | None = None  # the file to read in a `.zip` with several
    # Copies of each pair in the training text; 0.3 keeps three of ten pairs.
    weight: float = 1.0
    licence: str = ""  # the licence of the text, for the record


@dataclass(frozen=True)
class PairPart:
    """A part of a text: successive pairs."""

    number: int  # number of this part, from 0
    text: int  # number of the text, from 0
    parts: tuple[Part, ...]  # the part of each of the text's files

    @property
    def lines(self) -> int:
        """The number of pairs."""
        return self.parts[0].lines


def unpacked_name(text: int, file: int) -> str:
    """Return the name of a text's unpacked file in the folder of a job."""
    return f"input-{text}-{file}.txt"


def is_packed(text: Text, path: Path) -> bool:
    """Return whether a file must go through :func:`unpack` before its parts can be read."""
    return path.suffix in PACKED or text.table or text.header


def rows(text: Text) -> Iterator[list[str]]:
    """Yield the rows of a table, including its header."""
    if text.table:
        return (row for _, row in table_rows(text.files[0], text.member))
    return (line.split("\t") for _, line in lines(text.files[0], text.member))


def unpack(text: Text, file: int, path: Path) -> None:
    """Unpack a compressed file or a table into ``path``, so that parts of it can be read."""
    if text.table or text.header:
        with atomic_write(path) as out:
            for row in itertools.islice(rows(text), int(text.header), None):
                out.write("\t".join(map(one_spaced, row)) + "\n")
        return
    with atomic_write(path, "wb") as out:
        out.writelines(raw_lines(text.files[file], text.member))


def cut_texts(texts: Sequence[Text], folder: Path, part_lines: int) -> list[PairPart]:
    """Cut texts into parts of ``part_lines`` pairs, each from a single text.

    ``folder`` has the unpacked files. Aligned files that differ in length are refused.
    """
    pair_parts: list[PairPart] = []
    for number, text in enumerate(texts):
        sides = []
        for place, path in enumerate(text.files):
            packed = is_packed(text, path)
            plain_path = folder / unpacked_name(number, place) if packed else path
            sides.append(cut([plain_path], part_lines))
        lines = [described[0]["lines"] for _, described in sides]
        if len({*lines}) > 1:
            raise DataError(
                f"`{text.files[0]}` has {lines[0]} lines, `{text.files[1]}` {lines[1]}; "
                "aligned files must have equally many."
            )
        for parts in zip(*(parts for parts, _ in sides), strict=True):
            pair_parts.append(PairPart(len(pair_parts), number, parts))
    return pair_parts


def read(text: Text, part: PairPart) -> Iterator[tuple[str, str]]:
    """Yield source and target of each pair of a part."""
    sides = [
        decoded(file_part.read(), path, file_part.first)
        for file_part, path in zip(part.parts, text.files, strict=True)
    ]
    if len(sides) == 1:
        return cells(sides[0], text.files[0], text.columns)
    return ((plain(source), plain(target)) for (_, source), (_, target) in zip(*sides, strict=True))
