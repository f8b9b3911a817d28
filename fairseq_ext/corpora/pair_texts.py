"""Texts of sentence pairs: read them from files of several forms, and name them in a list.

Several texts are named by a JSON list, with the weight and licence of each::

    [
      {"name": "europarl", "source": "europarl.de.gz", "target": "europarl.en.gz",
       "licence": "no copyright known to its authors"},
      {"name": "tatoeba", "pairs": "deu-eng.zip", "columns": [2, 1], "weight": 3,
       "licence": "CC BY 2.0 FR"}
    ]
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, TypeAdapter, ValidationError

from fairseq_ext.text import reading
from fairseq_ext.text.cleaning import one_spaced
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
    """An entry in a JSON list of texts: name, licence, weight, and a file of pairs or two files."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str = Field(min_length=1)
    licence: str = Field(min_length=1)
    pairs: str | None = None
    columns: list[PositiveInt] = Field([1, 2], min_length=2, max_length=2)
    header: bool = False
    member: str | None = None
    source: str | None = None
    target: str | None = None
    weight: float = Field(1.0, gt=0, le=MOST_COPIES)

    def text(self, folder: Path) -> Text:
        """Return the text, whose files must exist; their paths are relative to ``folder``."""
        names = (self.pairs, self.source, self.target)
        files = (require_file(folder / name, "text file") for name in names if name is not None)
        columns = (self.columns[0], self.columns[1])
        named = self.model_dump(include={"header", "member", "weight", "licence"})
        table = is_csv(self.member or self.pairs or "")
        return Text(self.name, tuple(files), columns=columns, table=table, **named)


def is_csv(name: str) -> bool:
    """Return whether a file's name tells that it is CSV, perhaps compressed."""
    return ".csv" in name.lower()


def read_list(path: Path) -> tuple[Text, ...]:
    """Read a list of texts; paths in it are relative to its folder."""
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
        if {*entry.model_fields_set} & {"pairs", "source", "target"} not in ORIGINS:
            raise DataError(f"`{path}`, corpus {number} needs `pairs`, or `source` and `target`.")
    if len({entry.name for entry in entries}) < max(1, len(entries)):
        raise DataError(f"`{path}` must have at least one corpus, and no name twice.")
    return tuple(entry.text(path.parent) for entry in entries)


def rows(text: Text) -> Iterator[tuple[int, list[str]]]:
    """Yield ``(first line, row)`` of a file of pairs, including its header.

    Empty lines are left out of a CSV file; in a tab-separated file they are empty rows.
    """
    if text.table:
        table = reading.table_rows(text.files[0], text.member)
        return ((number, row) for number, row in table if row)
    lines = reading.lines(text.files[0], text.member)
    return ((number, line.split("\t") if line else []) for number, line in lines)


def read(text: Text) -> Iterator[tuple[str, str]]:
    """Yield source and target of each pair of a text, with plain spaces.

    Raises:
        DataError: a row lacks a column, or two aligned files have different numbers of lines.
    """
    if len(text.files) == 1:
        for number, row in itertools.islice(rows(text), int(text.header), None):
            if row:
                reading.require_columns(row, text.files[0], number, text.columns)
            source, target = (row[column - 1] if row else "" for column in text.columns)
            yield one_spaced(source), one_spaced(target)
        return
    counts = [0, 0]
    for sides in itertools.zip_longest(*map(reading.lines, text.files)):
        counts = [side[0] if side else count for side, count in zip(sides, counts, strict=True)]
        if None not in sides:
            yield one_spaced(sides[0][1]), one_spaced(sides[1][1])
    if counts[0] != counts[1]:
        raise DataError(
            f"`{text.files[0]}` has {counts[0]} lines, `{text.files[1]}` {counts[1]}; "
            "aligned files must have equally many."
        )


def write(text: Text, path: Path) -> None:
    """Write the pairs of a text as tab-separated lines, so that parts of them can be read."""
    with atomic_write(path) as out:
        out.writelines(f"{source}\t{target}\n" for source, target in read(text))
