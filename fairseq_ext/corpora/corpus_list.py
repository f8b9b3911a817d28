"""Read a JSON list of corpora to merge into one: the files, weight and licence of each.

::

    [
      {"name": "europarl", "source": "europarl.de.gz", "target": "europarl.en.gz",
       "licence": "no copyright known to its authors"},
      {"name": "tatoeba", "pairs": "deu-eng.zip", "columns": [2, 1], "weight": 3,
       "licence": "CC BY 2.0 FR"},
      {"name": "news", "mtdata": "Statmt-news_commentary-18.1-deu-eng", "weight": 0.5,
       "licence": "unknown"}
    ]
"""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, TypeAdapter, ValidationError

from fairseq_ext.corpora.pair_texts import Text
from fairseq_ext.utils import extras
from fairseq_ext.utils.errors import DataError, EnvironmentProblem
from fairseq_ext.utils.files import atomic_write, require_file
from fairseq_ext.utils.json_files import read_json

MOST_COPIES = 100
ORIGINS = ({"pairs"}, {"source", "target"}, {"mtdata"})
EXAMPLE = '[{"name": "a", "pairs": "a.tsv", "licence": "CC0"}]'


class Entry(BaseModel):
    """A corpus of the list."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str = Field(min_length=1)
    licence: str = Field(min_length=1)
    pairs: str | None = None
    columns: list[PositiveInt] = Field([1, 2], min_length=2, max_length=2)
    member: str | None = None
    source: str | None = None
    target: str | None = None
    mtdata: str | None = None
    weight: float = Field(1.0, gt=0, le=MOST_COPIES)


def read(path: Path, fetch: Callable[[str], Path]) -> tuple[Text, ...]:
    """Read the texts of a list; paths are relative to its folder.

    ``fetch`` takes a data set's name in mtdata and returns a file of tab-separated pairs. Nothing
    is fetched if the list, or a file that it names, cannot be used.
    """
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
        if {*entry.model_fields_set} & set[str]().union(*ORIGINS) not in ORIGINS:
            raise DataError(
                f"`{path}`, corpus {number} needs `pairs`, or `source` and `target`, or `mtdata`."
            )
    if len({entry.name for entry in entries}) < max(1, len(entries)):
        raise DataError(f"`{path}` must have a corpus, and no two of one name.")
    for entry in entries:
        for file in _files(entry, path.parent):
            require_file(file, "text file")
    return tuple(_text(entry, path.parent, fetch) for entry in entries)


def _text(entry: Entry, folder: Path, fetch: Callable[[str], Path]) -> Text:
    return Text(
        entry.name,
        _files(entry, folder) if entry.mtdata is None else (fetch(entry.mtdata),),
        columns=(entry.columns[0], entry.columns[1]),
        **entry.model_dump(include={"member", "weight", "licence"}),
    )


def _files(entry: Entry, folder: Path) -> tuple[Path, ...]:
    names = (entry.pairs, entry.source, entry.target)
    return tuple(folder / name for name in names if name is not None)


def from_mtdata(name: str, folder: Path) -> Path:
    """Return mtdata's data set ``name`` as a file of tab-separated pairs; fetch it if missing."""
    if not name.replace("-", "").replace("_", "").replace(".", "").isalnum():
        raise DataError(f"`{name}` is not the name of a data set of mtdata; see `mtdata list`.")
    path = folder / f"{name}.tsv"
    if path.exists():
        return path
    extras.need("mtdata")
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_write(path, "wb") as file:
        done = subprocess.run(
            [sys.executable, "-m", "mtdata", "echo", name],
            stdout=file,
            stderr=subprocess.PIPE,
            check=False,
        )
        if done.returncode:
            reason = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
            raise EnvironmentProblem(f"mtdata could not give `{name}`: {reason:.200}")
    return path
