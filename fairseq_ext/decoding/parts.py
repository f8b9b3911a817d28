"""Translation of large texts in parts, by any number of workers that share a folder.

The text is cut into parts of so many lines. A part's translation is a file that is whole or absent,
so the files in the folder are all there is to know about the progress::

    manifest.json       the job: texts and models by checksum, options, lines of a part
    part-000000.txt     translations, a file for each part; together, in order, the whole
    part-000000.jsonl   details of them, where they are asked for

A worker takes the next part that is missing and that nobody else holds. It holds a part by a lock
of the kernel (:mod:`fairseq_ext.locks`), which a killed worker loses; another one does the part.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any

import filelock

from fairseq_ext import locks
from fairseq_ext.errors import DataError, EnvironmentProblem
from fairseq_ext.files import atomic_write, explain
from fairseq_ext.json_files import read_json

MANIFEST = "manifest.json"
HEAD = {"format": "fairseq-ext parts", "version": 1}
PAUSE = 0.5  # seconds between two looks at parts that others hold
READ = 1000  # lines read at a time


@dataclass(frozen=True)
class Part:
    """Successive lines of one file.

    Attributes:
        number: of the part, from 0.
        path: the file.
        offset: bytes of the file before the part.
        first: number of its first line in the file, from 1.
        before: lines of all files before this one.
        lines: how many it has.
    """

    number: int
    path: Path
    offset: int
    first: int
    before: int
    lines: int

    def read(self) -> Iterator[bytes]:
        """Its lines."""
        with self.path.open("rb") as file:
            file.seek(self.offset)
            yield from islice(file, self.lines)


Writes = Callable[[Part, IO[str], "IO[str] | None"], None]


def cut(paths: Sequence[Path], part_lines: int) -> tuple[list[Part], list[dict[str, Any]]]:
    """Read texts once, and cut them into parts; none has lines of two files.

    Returns:
        The parts, and of each file what the manifest says: name, size, lines, SHA-256.
    """
    parts: list[Part] = []
    texts: list[dict[str, Any]] = []
    before = 0
    for path in paths:
        digest, offset, lines = hashlib.sha256(), 0, 0
        with path.open("rb") as file:
            while block := list(islice(file, min(READ, part_lines - lines % part_lines))):
                if lines % part_lines == 0:
                    parts.append(Part(len(parts), path, offset, lines + 1, before, 0))
                data = b"".join(block)
                digest.update(data)
                offset, lines = offset + len(data), lines + len(block)
                if lines % part_lines == 0:
                    parts[-1] = _with_lines(parts[-1], lines)
        if lines % part_lines:
            parts[-1] = _with_lines(parts[-1], lines)
        before += lines
        texts.append(
            {"name": path.name, "bytes": offset, "lines": lines, "sha256": digest.hexdigest()}
        )
    return parts, texts


def _with_lines(part: Part, end: int) -> Part:
    """The part, which ends with this line of its file."""
    return Part(**{**vars(part), "lines": end - part.first + 1})


@dataclass(frozen=True)
class Folder:
    """Where the parts are.

    Attributes:
        path: exists once :meth:`begin` has returned.
        parts: of the whole text.
        details: whether parts have details beside their text.
        line_by_line: whether a part has as many lines as its source.
    """

    path: Path
    parts: Sequence[Part]
    details: bool = False
    line_by_line: bool = True

    def text(self, part: Part) -> Path:
        """The part's translations."""
        return self.path / f"part-{part.number:06d}.txt"

    def details_of(self, part: Part) -> Path:
        """The part's details."""
        return self.text(part).with_suffix(".jsonl")

    def is_of(self, job: Mapping[str, Any]) -> bool:
        """Whether the job has been begun here.

        Args:
            job: what the translations depend on, as JSON.

        Raises:
            DataError: the folder has parts of another job, or files that are no parts.
        """
        manifest = self.path / MANIFEST
        if manifest.exists():
            _require_same(manifest, {**HEAD, **job})
            return True
        if any(self.path.glob("[!.]*")):
            raise DataError(f"{self.path} has files, but no {MANIFEST}; choose another folder.")
        return False

    def begin(self, job: Mapping[str, Any]) -> None:
        """Begin the job, unless another worker has.

        Raises:
            DataError: another worker has begun another job.
            EnvironmentProblem: the folder cannot be made or written to.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise EnvironmentProblem(explain(error, self.path)) from error
        with locks.held(self.path / ".manifest.lock", wait=True):
            if not self.is_of(job):
                with atomic_write(self.path / MANIFEST) as file:
                    json.dump({**HEAD, **job}, file, indent=1, ensure_ascii=False)
                    file.write("\n")

    def missing(self, parts: Sequence[Part] | None = None) -> list[Part]:
        """Those of the parts, or of all, that have not been translated yet."""
        found = {path.name for path in self.path.glob("part-*.txt")}
        chosen = self.parts if parts is None else parts
        return [part for part in chosen if self.text(part).name not in found]

    @contextlib.contextmanager
    def _claimed(self, part: Part) -> Iterator[bool]:
        """Hold a part; whether this worker is to do it."""
        with contextlib.ExitStack() as stack:
            try:
                lock = self.path / f".{self.text(part).stem}.lock"
                alone = stack.enter_context(locks.held(lock, wait=False))
            except filelock.Timeout:
                free = False
            else:
                free = not self.text(part).exists()
                if alone:  # whoever wrote these was killed
                    for leftover in self.path.glob(f".{self.text(part).stem}.*.tmp"):
                        leftover.unlink(missing_ok=True)
            yield free

    def work(self, parts: Sequence[Part], write: Writes) -> None:
        """Translate parts until none of them is missing, side by side with other workers.

        Args:
            parts: those of this worker's shard.
            write: the translations of a part, and their details, into these files.
        """
        said = False
        while missing := self.missing(parts):
            done = 0
            for part in missing:
                with self._claimed(part) as free:
                    if free:
                        self._write(part, write)
                        done += 1
            if not done:
                if not said:
                    print(f"waiting for {len(missing):,} parts of other workers", file=sys.stderr)
                said = True
                time.sleep(PAUSE)

    def _write(self, part: Part, write: Writes) -> None:
        with contextlib.ExitStack() as stack:
            out = stack.enter_context(atomic_write(self.text(part)))  # takes its place last
            details = None
            if self.details:
                details = stack.enter_context(atomic_write(self.details_of(part)))
            write(part, out, details)

    def join(self, output: Path, *, details: bool = False) -> None:
        """Write all parts in order into one file, unless another worker just has.

        Args:
            output: the file.
            details: those instead of the texts.

        Raises:
            DataError: a part has lost lines.
        """
        sources = [self.details_of(part) if details else self.text(part) for part in self.parts]
        name = "details" if details else "text"
        with locks.held(self.path / f".{name}.lock", wait=True):
            if _joined(sources, output):
                return
            with atomic_write(output, "wb") as file:
                for part, path in zip(self.parts, sources, strict=True):
                    lines = _copy(path, file)
                    if lines != part.lines and (details or self.line_by_line):
                        raise DataError(
                            f"{path} has {lines:,} lines instead of {part.lines:,}; delete it and "
                            "run the same command again."
                        )


def _copy(path: Path, file: IO[bytes]) -> int:
    """Append a file to another; returns its lines."""
    lines = 0
    with path.open("rb") as source:
        while block := source.read(1 << 20):
            lines += block.count(b"\n")
            file.write(block)
    return lines


def _joined(sources: Sequence[Path], output: Path) -> bool:
    """Whether the output is newer than its parts, and of their size."""
    if not output.is_file():
        return False
    stats = [path.stat() for path in sources]
    whole = output.stat()
    newest = max(one.st_mtime_ns for one in stats)
    return whole.st_size == sum(one.st_size for one in stats) and whole.st_mtime_ns > newest


def _require_same(manifest: Path, job: Mapping[str, Any]) -> None:
    """Refuse a folder whose parts are of another job.

    Raises:
        DataError: the first thing that differs.
    """
    found = read_json(manifest)
    if not isinstance(found, dict) or found.get("format") != HEAD["format"]:
        raise DataError(f"{manifest} is not the manifest of `translate --parts`; choose a folder.")
    before, now = _flat(found), _flat(job)
    for name in [*now, *before]:
        if before.get(name) != now.get(name):
            raise DataError(
                f"{manifest.parent} has parts of another job: {name} was {_named(before, name)} "
                f"there, but is {_named(now, name)} now. Choose another folder for `--parts`."
            )


def _named(job: Mapping[str, Any], name: str) -> str:
    return f"`{job[name]}`" if name in job else "not given"


def _flat(value: Any, name: str = "") -> dict[str, Any]:
    """Plain values by the path to them: ``inputs 1 sha256``."""
    if isinstance(value, (dict, list)):
        items = value.items() if isinstance(value, dict) else enumerate(value, start=1)
        pairs = [_flat(one, f"{name} {key}".lstrip()) for key, one in items]
        return {key: one for pair in pairs for key, one in pair.items()}
    return {name: value}
