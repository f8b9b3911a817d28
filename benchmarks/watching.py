"""Measure the memory of a process and all its descendants from outside.

A thread reads their memory from /proc while they run. The figure that Linux reports at the end of a
process (``ru_maxrss``) would be too large: it is at least the parent's memory, and here the parent
has torch in memory.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

LOOK = 0.2  # seconds between two looks; shorter at first, for commands that soon end
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}


class Watch(threading.Thread):
    """A thread that watches a process, its descendants and a folder during a ``with`` block.

    ``process`` is the id of the process. Its memory is read every ``look`` seconds.

    Attributes:
        seconds: time that the block took.
        cpu_seconds: processor time of the processes that ended during the block.
        peak: largest peak memory of a single process, in MiB.
        total: largest sum of the resident memory of all processes, in MiB. A page that several
            processes share counts once for each of them.
        private: largest memory of a single process in MiB, without the files that it maps. Mapped
            files are shared by processes, and the system can drop them.
        disk: largest size of the folder, in MiB; 0 without a folder.
    """

    def __init__(self, process: int, folder: Path | None = None, look: float = LOOK) -> None:
        super().__init__(daemon=True)
        self._process, self._folder, self._look = process, folder, look
        self._ended = threading.Event()
        self.peak = self.private = self.total = self.disk = 0.0
        self.seconds = self.cpu_seconds = 0.0

    def __enter__(self) -> Watch:
        self._began = time.perf_counter(), sum(os.times()[2:4])
        self.start()
        return self

    def __exit__(self, *unused: object) -> None:
        self.seconds = time.perf_counter() - self._began[0]
        self.cpu_seconds = sum(os.times()[2:4]) - self._began[1]
        self._ended.set()
        self.join()

    def run(self) -> None:
        wait = self._look / 20
        while not self._ended.wait(wait):
            wait = min(2 * wait, self._look)
            total = 0.0
            for process in _family(self._process):
                total += _status(process, "VmRSS")
                self.peak = max(self.peak, _status(process, "VmHWM"))
                self.private = max(self.private, _status(process, "RssAnon"))
            self.total = max(self.total, total)
            if self._folder is not None:
                self.disk = max(self.disk, sum(_sizes(self._folder)) / 2**20)


def watched(
    command: Sequence[object], folder: Path | None = None, look: float = LOOK, **options: Any
) -> Watch:
    """Run a command on one thread, watch it, and return the watch.

    ``options`` of Popen may set another environment. If the command fails, end this script.
    """
    words = [str(word) for word in command]
    with (
        subprocess.Popen(words, **{"env": ENVIRONMENT, **options}) as process,
        Watch(process.pid, folder, look) as watch,
    ):
        process.wait()
    if process.returncode:
        raise SystemExit(f"{words} ended with {process.returncode}")
    return watch


def _family(process: int) -> Iterator[int]:
    yield process
    with contextlib.suppress(OSError):
        for child in Path(f"/proc/{process}/task/{process}/children").read_text().split():
            yield from _family(int(child))


def _status(process: int, name: str) -> float:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{process}/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) / 1024
    return 0


def _sizes(folder: Path) -> Iterator[int]:
    for path, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):  # the file has just been renamed
                yield Path(path, name).stat().st_size
