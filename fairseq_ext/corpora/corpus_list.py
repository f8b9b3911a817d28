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

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fairseq_ext.corpora.pair_texts import Text
from fairseq_ext.utils import extras
from fairseq_ext.utils.errors import DataError, EnvironmentProblem
from fairseq_ext.utils.files import atomic_write, require_file
from fairseq_ext.utils.json_files import read_json

MOST_COPIES = 100
KINDS: dict[str, Any] = {
    "name": str,
    "licence": str,
    "pairs": str,
    "columns": list,
    "member": str,
    "source": str,
    "target": str,
    "mtdata": str,
    "swap": bool,
    "weight": (int, float),
}
ORIGINS = ({"pairs"}, {"source", "target"}, {"mtdata"})
Fetch = Callable[[str], Path]


def read(path: Path, fetch: Fetch) -> tuple[Text, ...]:
    """Read the texts of a list; paths are relative to its folder.

    Args:
        path: the JSON file.
        fetch: returns the file of tab-separated pairs for a data set's name in mtdata.

    Raises:
        DataError: the list, or a file that it names, cannot be used; nothing is fetched then.
    """
    entries = read_json(path)
    if not isinstance(entries, list) or not entries:
        raise DataError(f"`{path}` must be a JSON list of corpora, such as {_EXAMPLE}.")
    for number, entry in enumerate(entries, start=1):
        _check(entry, f"`{path}`, corpus {number}")
    names = [entry["name"] for entry in entries]
    if len({*names}) < len(names):
        raise DataError(f"`{path}` has two corpora of one name; give each its own.")
    for entry in entries:
        for kind in ("pairs", "source", "target"):
            if kind in entry:
                require_file(path.parent / entry[kind], "text file")
    return tuple(_text(entry, path.parent, fetch) for entry in entries)


_EXAMPLE = '[{"name": "a", "pairs": "a.tsv", "licence": "CC0"}]'


def _check(entry: Any, where: str) -> None:
    if not isinstance(entry, dict):
        raise DataError(f"{where} must be an object, such as {_EXAMPLE[1:-1]}.")
    for name, value in entry.items():
        if name not in KINDS:
            raise DataError(f"{where}: `{name}` is not known; there are {', '.join(KINDS)}.")
        if not isinstance(value, KINDS[name]) or (name == "weight" and isinstance(value, bool)):
            raise DataError(f"{where}: `{name}` cannot be {value!r:.40}.")
    for name in ("name", "licence"):
        if not entry.get(name):
            raise DataError(f"{where} lacks `{name}`, which is recorded; give it, or `unknown`.")
    if {*entry} & set[str]().union(*ORIGINS) not in ORIGINS:
        raise DataError(f"{where} needs `pairs`, or `source` and `target`, or `mtdata`.")
    weight = entry.get("weight", 1)
    if not (math.isfinite(weight) and 0 < weight <= MOST_COPIES):
        raise DataError(
            f"{where}: `weight` must be above 0 and at most {MOST_COPIES}, but is {weight}."
        )
    columns = entry.get("columns", [1, 2])
    if len(columns) != 2 or not all(type(column) is int and column > 0 for column in columns):
        raise DataError(f"{where}: `columns` must be two column numbers, such as [2, 1].")


def _text(entry: dict[str, Any], folder: Path, fetch: Fetch) -> Text:
    if "mtdata" in entry:
        paths: tuple[Path, ...] = (fetch(entry["mtdata"]),)
    elif "pairs" in entry:
        paths = (folder / entry["pairs"],)
    else:
        paths = (folder / entry["source"], folder / entry["target"])
    return Text(
        entry["name"],
        paths,
        columns=(*entry.get("columns", (1, 2)),),
        member=entry.get("member"),
        swap=entry.get("swap", False),
        weight=float(entry.get("weight", 1)),
        licence=entry["licence"],
    )


def from_mtdata(name: str, folder: Path) -> Path:
    """Return mtdata's data set as a file of tab-separated pairs; fetch it if it is missing.

    Raises:
        DataError: mtdata cannot provide it.
        EnvironmentProblem: mtdata is not installed.
    """
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
