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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from fairseq_ext.text.reading import Part
from fairseq_ext.utils import locks
from fairseq_ext.utils.errors import DataError
from fairseq_ext.utils.files import atomic_write, head, sha256
from fairseq_ext.utils.shared_folder import SharedFolder

HEAD = {"format": "fairseq-ext parts", "version": 1}
WritePart = Callable[[Part, IO[str], "IO[str] | None"], None]


@dataclass(frozen=True)
class Folder:
    """A folder in which several workers translate the parts of a text."""

    path: Path
    parts: Sequence[Part]
    details: bool = False  # whether each part has a file of details beside its text

    def text_path(self, part: Part) -> Path:
        """Return the path of the file with a part's translations."""
        return self.path / f"part-{part.number:06d}.txt"

    def details_path(self, part: Part) -> Path:
        """Return the path of the file with a part's scores and tokens, a JSON object per line."""
        return self.text_path(part).with_suffix(".jsonl")

    @property
    def shared(self) -> SharedFolder:
        """The folder's :class:`SharedFolder`, through which workers share out the parts."""
        return SharedFolder(self.path, HEAD)

    def missing(self, parts: Sequence[Part]) -> list[Part]:
        """Return the ``parts`` that no worker has translated yet."""
        parts_by_name = {self.text_path(part).name: part for part in parts}
        return [parts_by_name[name] for name in self.shared.missing([*parts_by_name])]

    def work(self, parts: Sequence[Part], write: WritePart) -> None:
        """Translate ``parts`` together with other workers; return when all are translated.

        For each part of this worker, ``write(part, translations, details)`` is called with open
        files. ``details`` is None if no details are requested.
        """
        parts_by_name = {self.text_path(part).name: part for part in parts}
        self.shared.work([*parts_by_name], lambda name: self._write(parts_by_name[name], write))

    def remove_locks(self, parts: Sequence[Part]) -> None:
        """Remove the locks of workers that were killed after they had translated their parts."""
        self.shared.remove_locks([self.text_path(part).name for part in parts])

    def _write(self, part: Part, write: WritePart) -> None:
        with contextlib.ExitStack() as stack:
            out = stack.enter_context(atomic_write(self.text_path(part)))  # this file appears last
            details = None
            if self.details:
                details = stack.enter_context(atomic_write(self.details_path(part)))
            write(part, out, details)
            sums = stack.enter_context(atomic_write(self.text_path(part).with_suffix(".sha256")))
            for file, path in ((out, self.text_path(part)), (details, self.details_path(part))):
                if file is not None:
                    file.flush()
                    sums.write(f"{sha256(file.name)}  {path.name}\n")

    def join(self, output: Path, *, details: bool = False) -> None:
        """Write all parts, or their ``details``, in order into the file ``output``.

        Raise DataError if the file of a part has changed since its worker wrote it.
        """
        name = "details" if details else "text"
        with (
            locks.held(self.path / f".{name}.lock", wait=True),  # workers finish at the same time
            atomic_write(output, "wb") as file,
        ):
            file.writelines(self._content(details))

    def _content(self, details: bool) -> Iterator[bytes]:
        """Yield the translations or details of each part.

        Raise DataError if a checksum is wrong.
        """
        for part in self.parts:
            path = self.details_path(part) if details else self.text_path(part)
            content = path.read_bytes()
            checksums = head(self.text_path(part).with_suffix(".sha256"), 1000).split(b"\n")
            if f"{hashlib.sha256(content).hexdigest()}  {path.name}".encode() not in checksums:
                raise DataError(
                    f"{path} is not what its worker wrote; delete it and run the same command "
                    "again."
                )
            yield content
