"""Remember facts about files until the size, time or inode of a file changes.

The notes are a small file beside the data or, if that cannot be written, in the user's cache
folder. If neither can be written, every start reads the file again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from fairseq_ext.utils.errors import EnvironmentProblem
from fairseq_ext.utils.files import atomic_write, cache_folder

NOTES = ".checked.json"
MOST_BYTES = 1 << 22  # of notes, limited because anyone may have written them
Facts = dict[str, Any]


def examine(path: Path, measure: Callable[[Path], Facts], fact_types: dict[str, type]) -> Facts:
    """Return ``measure(path)``, from notes if this very file has been measured before.

    Args:
        path: a file.
        measure: reads the file; its errors are not remembered.
        fact_types: the facts that the caller needs, with their types; notes without one of them
            are ignored.
    """
    status = path.stat()  # before the file is read, so the next call notices a change in between
    stamp = [status.st_size, status.st_mtime_ns, status.st_ino]
    for notes in _places(path.parent):
        note = _read(notes).get(path.name)
        if not isinstance(note, dict) or note.get("file") != stamp:
            continue
        if all(type(note.get(name)) is kind for name, kind in fact_types.items()):
            return note
    facts = measure(path)
    _remember(path, {**facts, "file": stamp})
    return facts


def _places(folder: Path) -> Iterator[Path]:
    yield folder / NOTES
    with suppress(RuntimeError):  # no home
        caches = cache_folder()
        name = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:32]
        yield caches / "data" / f"{name}.json"


def _read(notes: Path) -> Facts:
    """Read the notes on a folder's files, by name; empty if there are no usable ones."""
    try:
        with notes.open("rb") as file:
            content = json.loads(file.read(MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _remember(path: Path, facts: Facts) -> None:
    for notes in _places(path.parent):
        with suppress(OSError, EnvironmentProblem):
            if notes.name != NOTES:
                notes.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(notes) as file:
                json.dump({**_read(notes), path.name: facts}, file)
            return
