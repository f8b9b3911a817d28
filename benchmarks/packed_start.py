"""From the start of a process to its first translation: time, memory, and bytes on disk."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from argparse import Namespace
from pathlib import Path

import packed_open
from cells import Cells
from packed_open import FILES
from peers import FIRST_WORD

MIB = 2**20


def start(options: Namespace, folder: Path) -> Cells:
    """A new process for each system in every round, the files in the page cache."""
    cells = Cells("Packed models: from start to first translation", axis="batch", unit="ms")
    threads, batch = options.threads[-1], options.batches[0]
    cells.note(
        f"{batch} sentence of {options.words} words, beam {options.beam}, {threads} threads; "
        "imports, reading and preparing the model, and one translation; files cached by the system"
    )
    cells.note("torch int8 reads the fp32 checkpoint and quantizes it; CTranslate2 needs no torch")
    search = {"beam": options.beam, "words": options.words, "threads": threads}
    words = {"words": options.words, "vocabulary": options.vocabulary - FIRST_WORD}
    settings = json.dumps({"search": search, "batch": {"count": batch, **words}})
    memory: dict[str, list[dict[str, int]]] = {name: [] for name in FILES}
    seconds: dict[str, list[float]] = {name: [] for name in FILES}
    for round_ in range(1 + options.repeats):
        for name in FILES:
            took, found = first_translation(name, folder, settings)
            if round_:  # the first fills the cache
                seconds[name].append(took)
                memory[name].append(found)
    cells.add("start", batch, seconds, [], tokens=batch * (options.words + 1), threads=threads)
    for row in cells.figures:
        name = row["candidate"]
        for kind in ("resident", "peak"):
            row[f"{kind}_mib"] = statistics.median(one[kind] for one in memory[name]) / MIB
        row["file_mib"] = size_on_disk(folder / FILES[name]) / MIB
    table(cells)
    return cells


def first_translation(name: str, folder: Path, settings: str) -> tuple[float, dict[str, int]]:
    """Seconds until a new process has translated, and what it says of its memory."""
    command = [sys.executable, packed_open.__file__, name, str(folder), settings]
    began = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        line = process.stdout.readline()
        took = time.perf_counter() - began
    if process.returncode:
        raise RuntimeError(f"{name} ended with status {process.returncode}.")
    return took, json.loads(line)


def size_on_disk(path: Path) -> int:
    """Bytes of a file, or of all in a folder."""
    if path.is_dir():
        return sum(one.stat().st_size for one in path.iterdir())
    return path.stat().st_size


def table(cells: Cells) -> None:
    """File, memory and seconds of every system."""
    width = max(len(row["candidate"]) for row in cells.figures)
    print(f"\n{'':{width}}  {'file MiB':>9} {'resident':>9} {'peak MiB':>9} {'seconds':>8}")
    for row in cells.figures:
        sizes = " ".join(f"{row[f'{what}_mib']:9,.0f}" for what in ("file", "resident", "peak"))
        print(f"{row['candidate']:{width}}  {sizes} {row['ms'] / 1e3:8.2f}")
