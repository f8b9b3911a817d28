"""Share a job among processes and machines that make its files in one folder.

``manifest.json`` describes the job; only the files that exist record its progress. A worker claims
the next missing file by a kernel lock (:mod:`fairseq_ext.utils.locks`). A killed worker loses its
lock, so another worker makes the file.
"""

import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import filelock

from fairseq_ext.utils import locks
from fairseq_ext.utils.errors import DataError
from fairseq_ext.utils.json_files import read_json, write_json

MANIFEST = "manifest.json"
PAUSE = 0.5  # seconds before looking again at files that others are making


@dataclass(frozen=True)
class SharedFolder:
    """A folder in which several workers do one job, which ``manifest.json`` describes."""

    path: Path
    head: Mapping[str, Any]  # the first entries of the manifest: `format` and its `version`

    def is_of(self, job: Mapping[str, Any]) -> bool:
        """Return whether a worker has begun this job in the folder.

        Raise DataError if the folder has another job, or other files.
        """
        manifest = self.path / MANIFEST
        if not manifest.exists():
            if any(self.path.glob("[!.]*")):
                raise DataError(f"{self.path} has files, but no {MANIFEST}; choose another folder.")
            return False
        content = read_json(manifest)
        if not isinstance(content, dict) or content.get("format") != self.head["format"]:
            raise DataError(f"{manifest} belongs to another command; choose another folder.")
        before, now = _flat(content), _flat({**self.head, **job})
        for name in [*now, *before]:
            values = before.get(name), now.get(name)
            if values[0] != values[1]:
                former, new = ("unset" if value is None else f"`{value}`" for value in values)
                raise DataError(
                    f"{self.path} has files of another job, in which `{name}` was {former} and not "
                    f"{new}. Choose another folder, or remove this one."
                )
        return True

    def begin(self, job: Mapping[str, Any]) -> None:
        """Make the folder and its manifest, unless another worker of the job has made them."""
        self.path.mkdir(parents=True, exist_ok=True)
        with locks.held(self.path / ".manifest.lock", wait=True):
            if not self.is_of(job):
                write_json(self.path / MANIFEST, {**self.head, **job})

    def missing(self, names: Iterable[str]) -> list[str]:
        """Return the names of files that nobody has made yet."""
        file_names = {path.name for path in self.path.iterdir()} if self.path.is_dir() else set()
        return [name for name in names if name not in file_names]

    def make(self, name: str, do: Callable[[str], object]) -> bool:
        """Make a missing file by ``do(name)``; return False if another worker makes or made it."""
        stem = Path(name).stem
        try:
            with locks.held(self._lock(name), wait=False) as alone:
                if (self.path / name).exists():
                    return False
                if alone:  # so these are files of killed workers
                    for leftover in self.path.glob(f".{stem}.*.tmp"):
                        leftover.unlink(missing_ok=True)
                do(name)
        except filelock.Timeout:
            return False
        return True

    def work(
        self,
        names: Collection[str],
        do: Callable[[str], object],
        *,
        spread: Callable[[Callable[[str], bool], Iterable[str]], Iterable[bool]] = map,
    ) -> None:
        """Make the files ``names`` together with other workers, until none of them is missing.

        ``do(name)`` makes the file ``name``. If it makes other files, too, ``name`` must be the
        last: it shows that all are complete. ``spread`` is ``map``, or a function that does the
        same in several processes.
        """
        announced = False
        while missing := self.missing(names):
            if any([*spread(partial(self.make, do=do), missing)]):
                continue
            if not announced:
                print(f"waiting for other workers to make {len(missing):,} files", file=sys.stderr)
            announced = True
            time.sleep(PAUSE)
        self.remove_locks(names)

    def remove_locks(self, names: Iterable[str]) -> None:
        """Remove the locks of workers that were killed after they had made the files ``names``."""
        for name in names:
            self._lock(name).unlink(missing_ok=True)

    def _lock(self, name: str) -> Path:
        return self.path / f".{Path(name).stem}.lock"


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Return the leaves of nested dicts and lists by their paths, such as ``inputs 1 sha256``."""
    if isinstance(value, (dict, list)):
        items = value.items() if isinstance(value, dict) else enumerate(value, start=1)
        pairs = [_flat(entry, f"{prefix} {key}".lstrip()) for key, entry in items]
        return {path: leaf for pair in pairs for path, leaf in pair.items()}
    return {prefix: value}
