"""From the start of a process to its first translation: time, memory, and bytes on disk."""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import time
from argparse import Namespace
from pathlib import Path

import packed_open
from cells import Cells
from packed_open import FILES, random_sentences
from peers import FIRST_WORD

MIB = 2**20
# By name: the checkpoint that `fairseq-ext pack --engine` makes a file of, and its numbers.
ENGINE = {
    "transformer, engine file fp32": ("transformer.pt", "fp32"),
    "transformer, engine file int8": ("transformer.pt", "int8"),
    "BMT-1, engine file int8": ("bmt-1.pt", "int8"),
    "BMT-6, engine file int8": ("bmt-6.pt", "int8"),
}


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
    cells.note("engine files: `fairseq-ext translate` on text, from the command to its first lines")
    paths = {name: folder / path for name, path in FILES.items()} | engine_files(folder)
    memory: dict[str, list[dict[str, int]]] = {name: [] for name in paths}
    seconds: dict[str, list[float]] = {name: [] for name in paths}
    for round_ in range(1 + options.repeats):
        for name, path in paths.items():
            if name in ENGINE:
                took, found = first_lines(path, options)
            else:
                took, found = first_translation(name, folder, settings)
            if round_:  # the first fills the cache
                seconds[name].append(took)
                memory[name].append(found)
    cells.add("start", batch, seconds, [], tokens=batch * (options.words + 1), threads=threads)
    for row in cells.figures:
        name = row["candidate"]
        for kind in ("resident", "peak"):
            row[f"{kind}_mib"] = statistics.median(one[kind] for one in memory[name]) / MIB
        row["file_mib"] = size_on_disk(paths[name]) / MIB
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


def engine_files(folder: Path) -> dict[str, Path]:
    """Files for the engine, made if they are missing."""
    found = {}
    for name, (checkpoint, numbers) in ENGINE.items():
        path = found[name] = folder / f"{Path(checkpoint).stem}-{numbers}.engine"
        if not path.exists():
            words = ["--data", folder, "--engine", numbers, "-o", path]
            command = [sys.executable, "-m", "fairseq_ext", "pack", folder / checkpoint, *words]
            subprocess.run([*map(str, command)], check=True, stdout=subprocess.DEVNULL)
    return found


def first_lines(path: Path, options: Namespace) -> tuple[float, dict[str, int]]:
    """The same of ``fairseq-ext translate``: it gets a batch of lines, and is asked for no more."""
    threads, batch = options.threads[-1], options.batches[0]
    sentences = random_sentences(batch, options.words, options.vocabulary - FIRST_WORD)
    text = "".join(" ".join(f"w{word}" for word in one) + "\n" for one in sentences)
    search = ["--beam", options.beam, "--max-len-b", options.words, "--buffer-size", batch]
    command = [sys.executable, "-m", "fairseq_ext", "translate", "--path", path, *search]
    began = time.perf_counter()
    with subprocess.Popen(
        [*map(str, command)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": str(threads)},
        text=True,
    ) as process:
        process.stdin.write(text)
        process.stdin.flush()
        lines = [process.stdout.readline() for _ in range(batch)]
        took = time.perf_counter() - began
        status = Path(f"/proc/{process.pid}/status").read_text()  # it waits for more lines
    if process.returncode or not all(lines):
        raise RuntimeError(f"{path} ended with status {process.returncode}.")
    kibibytes = dict(re.findall(r"(VmRSS|VmHWM):\s+(\d+) kB", status))
    return took, {
        "resident": int(kibibytes["VmRSS"]) * 1024,
        "peak": int(kibibytes["VmHWM"]) * 1024,
    }


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
