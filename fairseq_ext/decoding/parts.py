"""Translate large texts in parts, by any number of workers that share a folder.

The text is cut into parts of N lines. The file of a part's translations is either complete or
absent (:mod:`fairseq_ext.utils.shared_folder`)::

    manifest.json       the job: checksums of texts and models, options, number of lines per part
    part-000000.txt     translations of a part; all parts in order are the whole text
    part-000000.jsonl   details of the translations, if requested
    part-000000.sha256  checksums of the .txt and .jsonl file, as ``sha256sum`` prints them
"""

import contextlib
import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path

from fairseq_ext.text.reading import Part
from fairseq_ext.utils import locks
from fairseq_ext.utils.errors import DataError
from fairseq_ext.utils.files import atomic_write, head, sha256

HEAD = {"format": "fairseq-ext parts", "version": 2}
TEXT, DETAILS, CHECKSUMS = ".txt", ".jsonl", ".sha256"  # endings of the files of a part


def file_name(part: Part, ending: str = TEXT) -> str:
    """Return the name of the file with a part's translations, details or checksums."""
    return f"part-{part.number:06d}{ending}"


def write(folder: Path, part: Part, do: Callable[..., object], *, details: bool) -> None:
    """Write the files of a part; the file of its translations appears last.

    ``do`` is called with the part and the open file for its translations. With ``details``, a third
    argument is the open file for its details, a JSON object per line.
    """
    endings = (TEXT, DETAILS) if details else (TEXT,)
    paths = [folder / file_name(part, ending) for ending in endings]
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(atomic_write(path)) for path in paths]
        do(part, *files)
        sums = stack.enter_context(atomic_write(folder / file_name(part, CHECKSUMS)))
        for file, path in zip(files, paths, strict=True):
            file.flush()
            sums.write(f"{sha256(file.name)}  {path.name}\n")


def join(folder: Path, parts: Iterable[Part], output: Path, ending: str = TEXT) -> None:
    """Write the translations, or details, of all parts in order into the file ``output``.

    Raise DataError if the file of a part has changed since its worker wrote it.
    """
    with (
        locks.held(folder / f".join{ending}.lock", wait=True),  # workers finish at the same time
        atomic_write(output, "wb") as file,
    ):
        for part in parts:
            path = folder / file_name(part, ending)
            content = path.read_bytes()
            checksums = head(folder / file_name(part, CHECKSUMS), 1000).split(b"\n")
            if f"{hashlib.sha256(content).hexdigest()}  {path.name}".encode() not in checksums:
                raise DataError(
                    f"{path} is not what its worker wrote; delete it and run the same command "
                    "again."
                )
            file.write(content)
