"""Read sentence pairs from files, cut into parts that different processes can read.

A JSON list (``--corpora``) names several texts, each as one file of pairs or as two aligned files.
``docs/corpora.md`` has an example.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, TypeAdapter, ValidationError

from fairseq_ext.text import reading
from fairseq_ext.text.cleaning import one_spaced, plain
from fairseq_ext.utils.errors import DataError
from fairseq_ext.utils.files import atomic_write, require_file
from fairseq_ext.utils.json_files import read_json

MOST_COPIES = 100
ORIGINS = ({"pairs"}, {"source", "target"})
EXAMPLE = '[{"name": "a", "pairs": "a.tsv", "licence": "CC0"}]'


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


class Entry(BaseModel):
    """A text in a JSON list of texts: name, licence, weight, and a file of pairs or two files."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str = Field(min_length=1)
    licence: str = Field(min_length=1)
    pairs: str = ""
    columns: list[PositiveInt] = Field([1, 2], min_length=2, max_length=2)
    header: bool = False
    member: str | None = None
    source: str = ""
    target: str = ""
    weight: float = Field(1.0, gt=0, le=MOST_COPIES)

    def text(self, folder: Path) -> Text:
        """Return the entry as a :class:`Text`; its files must exist, relative to ``folder``."""
        names = (self.pairs, self.source, self.target)
        files = (require_file(folder / name, "text file") for name in names if name)
        columns = (self.columns[0], self.columns[1])
        named = self.model_dump(include={"header", "member", "weight", "licence"})
        table = is_csv(self.member or self.pairs)
        return Text(self.name, tuple(files), columns=columns, table=table, **named)


def is_csv(name: str) -> bool:
    """Return whether a file's name says that it is CSV, perhaps compressed."""
    return ".csv" in name.lower()


def read_list(path: Path) -> tuple[Text, ...]:
    """Read and check a JSON list of texts, whose paths are relative to the list's folder."""
    content = read_json(path)
    try:
        entries = TypeAdapter(list[Entry]).validate_python(content)
    except ValidationError as error:
        fault = error.errors()[0]
        number, *names = fault["loc"] or (None,)
        place = "" if number is None else f", corpus {int(number) + 1}"
        name = f"`{names[0]}`: " if names else ""
        raise DataError(
            f"`{path}`{place}: {name}{fault['msg']}. It must be a JSON list such as {EXAMPLE}."
        ) from None
    for number, entry in enumerate(entries, start=1):
        if {name for name in ("pairs", "source", "target") if getattr(entry, name)} not in ORIGINS:
            raise DataError(f"`{path}`, corpus {number} needs `pairs`, or `source` and `target`.")
    if len({entry.name for entry in entries}) < max(1, len(entries)):
        raise DataError(f"`{path}` must have at least one corpus, and no name twice.")
    return tuple(entry.text(path.parent) for entry in entries)


@dataclass(frozen=True)
class PairPart:
    """Successive pairs of a text, which can be read without the pairs before them."""

    text: int  # number of the text, from 0
    parts: tuple[reading.Part, ...]  # the part of each of the text's files


def unpacked_name(text: int, file: int) -> str:
    """Return the name of the uncompressed copy of a text's file; both numbers count from 0."""
    return f"input-{text}-{file}.txt"


def is_packed(text: Text, path: Path) -> bool:
    """Return whether a file must go through :func:`unpack` before its parts can be read."""
    packed = reading.compression(path) is not None or path.suffix.lower() in reading.MAGIC
    return packed or text.table or text.header


def rows(text: Text) -> Iterator[tuple[int, list[str]]]:
    """Yield ``(line number, cells)`` of each nonempty row of a table, including the header."""
    if text.table:
        table = reading.table_rows(text.files[0], text.member)
        return ((number, row) for number, row in table if row)
    lines = reading.lines(text.files[0], text.member)
    return ((number, line.split("\t")) for number, line in lines if line)


def unpack(text: Text, file: int, path: Path) -> None:
    """Write file number ``file`` (from 0) of a text to ``path``, uncompressed, to cut it in parts.

    CSV, and text with a header, becomes tab-separated lines without the header.
    """
    if text.table or text.header:
        with atomic_write(path) as out:
            for line, row in itertools.islice(rows(text), int(text.header), None):
                reading.require_columns(row, text.files[0], line, text.columns)
                out.write("\t".join(map(one_spaced, row)) + "\n")
        return
    with atomic_write(path, "wb") as out:
        out.writelines(reading.raw_lines(text.files[file], text.member))


def cut_texts(texts: Sequence[Text], folder: Path, part_lines: int) -> list[PairPart]:
    """Cut texts into parts of at most ``part_lines`` pairs; no part has pairs of two texts.

    ``folder`` has the files that :func:`unpack` wrote. Raise DataError if two aligned files have
    different numbers of lines.
    """
    pair_parts: list[PairPart] = []
    for number, text in enumerate(texts):
        sides = []
        for place, path in enumerate(text.files):
            packed = is_packed(text, path)
            plain_path = folder / unpacked_name(number, place) if packed else path
            sides.append(reading.cut([plain_path], part_lines))
        lines = [sum(part.lines for part in parts) for parts in sides]
        if len({*lines}) > 1:
            raise DataError(
                f"`{text.files[0]}` has {lines[0]} lines, `{text.files[1]}` has {lines[1]}; "
                "aligned files must have equally many."
            )
        pair_parts += [PairPart(number, parts) for parts in zip(*sides, strict=True)]
    return pair_parts


def read(text: Text, part: PairPart) -> Iterator[tuple[str, str]]:
    """Yield the cleaned source and target of each pair in a part."""
    sides = [
        reading.decoded(file_part.read(), path, file_part.first)
        for file_part, path in zip(part.parts, text.files, strict=True)
    ]
    if len(sides) == 1:
        return reading.cells(sides[0], text.files[0], text.columns)
    return ((plain(source), plain(target)) for (_, source), (_, target) in zip(*sides, strict=True))
