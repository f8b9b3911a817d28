"""Time candidates in turn, save figures with their machine, and read the benchmarks' options."""

import argparse
import gc
import json
import logging
import math
import os
import platform
import re
import resource
import statistics
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from fairseq_ext.utils import files

NOT_RUN = "not run"
ALL = "all"
OPTIONS: dict[str, dict[str, Any]] = {
    "threads": {"type": int, "help": "torch threads; of several, one after another"},
    "device": {"help": "cpu or cuda"},
    "dtype": {"choices": ["fp32", "bf16", "fp16"], "help": "of weights and activations"},
    "repeats": {"type": int, "help": "rounds that count, three at least"},
    "warmup": {"type": int, "help": "rounds before them"},
    "budget": {"type": float, "help": "seconds after which a cell stops, three rounds done"},
    "limit": {"type": float, "help": "seconds; what is slower is left out of later cells"},
    "lengths": {"type": int, "help": "tokens of a sentence, ascending"},
    "tokens": {"type": int, "help": "of a batch"},
    "layers": {"type": int, "help": "of the encoder, and of the decoder"},
    "embed_dim": {"type": int, "help": "of the model"},
    "ffn_embed_dim": {"type": int, "help": "of its feed-forward networks"},
    "heads": {"type": int, "help": "of its attention"},
    "vocabulary": {"type": int, "help": "entries of each dictionary"},
    "dropout": {"type": float, "help": "in training steps"},
    "sentences": {"type": int, "help": "that training batches are made of"},
    "batches": {"type": int, "help": "sentences, in generation"},
    "words": {"type": int, "help": "to generate for each sentence"},
}


def machine() -> dict[str, object]:
    """Describe the machine of a figure: processor, threads, versions, date, commit."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        model = names[0].split(":", 1)[1].strip() if names else model
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    return {
        "date": date.today().isoformat(),
        "commit": commit,
        "processor": model,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "fairseq-fixed": version("fairseq-fixed"),
    }


def paired(
    candidates: dict[str, Callable[[], object]],
    *,
    repeats: int,
    warmup: int = 3,
    budget: float | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Time the candidates in turn in every round, so that drift affects all of them equally.

    The order is reversed every other round, and the garbage collector rests within rounds. After
    ``budget`` seconds no round begins, except to complete three (fewer have no quartiles).
    ``clock`` is ``time.process_time`` for the work of one process on a busy machine.
    """
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    cuda = torch.cuda.is_available()
    began = time.perf_counter()
    gc.disable()
    gc.freeze()  # collections between rounds may skip older objects
    try:
        for round_ in range(warmup + repeats):
            over = budget is not None and time.perf_counter() - began > budget
            if over and round_ >= warmup + 3:
                break
            names = list(candidates) if round_ % 2 else list(candidates)[::-1]
            for name in names:
                if cuda:
                    torch.cuda.synchronize()
                start = clock()
                candidates[name]()
                if cuda:
                    torch.cuda.synchronize()
                if round_ >= warmup:
                    seconds[name].append(clock() - start)
            gc.collect()
    finally:
        gc.unfreeze()
        gc.enable()
    return seconds


def quartiles(values: list[float]) -> tuple[float, float, float]:
    """Compute lower quartile, median and upper quartile of at least three values."""
    low, middle, high = statistics.quantiles(values, n=4)
    return low, middle, high


def peak_memory(run: Callable[[], object], device: str) -> int:
    """Measure the most bytes that ``run`` takes in addition to those held before it.

    CUDA: the allocator's. CPU: resident memory of the process, of which Linux knows only the
    highest so far, so call this once in a process that has done nothing large before.
    """
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    before = resident_memory()
    run()
    # Not `ru_maxrss`, which begins with the memory of the process that started this one.
    highest = re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())
    return max(0, int(highest[1]) * 1024 - before)


def resident_memory() -> int:
    """Return the bytes of this process in memory now (Linux)."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def save(destination: Path | None, *, title: str, **content: object) -> None:
    """Write figures as JSON, with the machine they were measured on, if there is a path."""
    if destination is None:
        return
    destination.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"title": title, "machine": machine(), **content}, indent=2) + "\n"
    with files.atomic_write(destination) as file:
        file.write(text)
    print(f"written: {destination}")


@dataclass
class Cells:
    """Measurements in cells, one for each value of n; each script decides what n counts.

    Attributes:
        title: what the figures are about.
        axis: what n is, in tables.
        unit: which figure of a candidate tables show; None leaves the choice to them.
        figures: milliseconds and time per token of each candidate in each cell.
        ratios: the peer's time over ours in each cell, median and quartiles of paired rounds.
        notes: facts that hold for all figures (kernels, drawn lengths).
    """

    title: str
    axis: str = "n"
    unit: str | None = None
    figures: list[dict] = field(default_factory=list)
    ratios: list[dict] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(
        self,
        measurement: str,
        n: int | None,
        seconds: dict[str, list[float]],
        pairs: Iterable[tuple[str, str]],
        *,
        tokens: float,
        peers: Iterable[str] = (),
        **extra_columns: object,
    ) -> None:
        """Add a cell: the candidates' times, and the ratio of each ``(ours, peer)`` that ran."""
        cell = {"what": measurement, "n": n, "tokens": tokens, **extra_columns}
        print(f"{measurement}{'' if n is None else f', {self.axis} = {n:,}'}")
        for name in dict.fromkeys([*seconds, *peers]):
            if name not in seconds:
                self.figures.append({**cell, "candidate": name, "ms": None})
                print(f"  {name:24} {NOT_RUN}", flush=True)
                continue
            low, middle, high = quartiles(seconds[name])
            self.figures.append(
                {
                    **cell,
                    "candidate": name,
                    "ms": 1e3 * middle,
                    "ms_low": 1e3 * low,
                    "ms_high": 1e3 * high,
                    "us_per_token": 1e6 * middle / tokens,
                    "tokens_per_second": tokens / middle,
                    "repeats": len(seconds[name]),
                }
            )
            print(f"  {name:24} {1e3 * middle:10.2f} ms", flush=True)
        for ours, peer in pairs:
            if ours in seconds and peer in seconds:
                rounds = zip(seconds[ours], seconds[peer], strict=True)
                low, middle, high = quartiles([b / a for a, b in rounds])
                ratio = {"ratio": middle, "ratio_low": low, "ratio_high": high}
                self.ratios.append({**cell, "candidate": ours, "peer": peer, **ratio})

    def note(self, text: str) -> None:
        self.notes.append(text)
        print(text, flush=True)

    def curve(
        self, measurement: str, candidate: str, value: str = "us_per_token"
    ) -> dict[int, float]:
        """Return a candidate's ``value`` for every n it ran at."""
        return {
            row["n"]: row[value]
            for row in self.figures
            if (row["what"], row["candidate"]) == (measurement, candidate) and row["ms"] is not None
        }

    def save(self, destination: Path | None, settings: dict[str, object]) -> None:
        """Write everything as JSON."""
        save(destination, settings=settings, **vars(self))


class Stopwatch:
    """A timer of candidates in turn, set by the options; ``budget`` may replace ``--budget``.

    A peer that needed more than ``--limit`` seconds for a pass, or too much memory, is left out of
    later cells in the same series. Ours is never left out.
    """

    def __init__(self, options: Namespace, budget: float | None = None) -> None:
        self.options = options
        self.budget = options.budget if budget is None else budget
        self.left_out: set[tuple[str, str]] = set()

    def allows(self, measurement: str, name: str) -> bool:
        return (measurement, name) not in self.left_out

    def learn(self, measurement: str, name: str, seconds: float) -> None:
        """Leave a peer out of later cells if it took too long."""
        if seconds > self.options.limit and not name.startswith("k="):
            self.left_out.add((measurement, name))

    def time(
        self, measurement: str, candidates: dict[str, Callable[[], object]]
    ) -> dict[str, list[float]]:
        """Time each candidate that is not left out, in seconds."""
        ready = {}
        for name, run in candidates.items():
            if not self.allows(measurement, name):
                continue
            try:
                run()  # the first round of the warm-up
                ready[name] = run
            except torch.OutOfMemoryError:
                self.learn(measurement, name, math.inf)
                torch.cuda.empty_cache()
        warmup = max(0, self.options.warmup - 1)
        seconds = paired(ready, repeats=self.options.repeats, warmup=warmup, budget=self.budget)
        for name, times in seconds.items():
            self.learn(measurement, name, min(times))
        return seconds

    def measure(
        self,
        cells: Cells,
        measurement: str,
        n: int | None,
        candidates: dict[str, Callable[[], object]],
        pairs: Iterable[tuple[str, str]] = (),
        **columns: Any,
    ) -> None:
        """Time candidates, and add a cell of them, in which those left out are named."""
        seconds = self.time(measurement, candidates)
        cells.add(measurement, n, seconds, pairs, peers=candidates, **columns)


class Worker:
    """A process that answers each line on its standard input with a line of JSON."""

    def __init__(
        self, command: list[str], *, threads: int, path: str = "", quiet: bool = False
    ) -> None:
        paths = [path, os.environ.get("PYTHONPATH", "")]
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": str(threads),
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        }
        self._process = subprocess.Popen(
            [sys.executable, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if quiet else None,
            text=True,
            env=environment,
        )

    def ask(self, line: str) -> dict[str, Any]:
        """Send a line and wait for the answer."""
        print(line, file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            raise SystemExit(
                f"{self._process.args}: {(self._process.communicate()[1] or '')[-2000:]}"
            )
        return json.loads(answer)

    def end(self) -> None:
        self._process.stdin.close()
        self._process.wait()


def parser_with(description: str | None, **defaults: Any) -> argparse.ArgumentParser:
    """Make a parser with ``--json`` and the given :data:`OPTIONS`.

    Args:
        description: the script's docstring.
        defaults: by option; a list if it takes several values, None if the question decides (see
            :func:`filled`).
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawTextHelpFormatter
    )
    for name, default in defaults.items():
        several = {"nargs": "+"} if isinstance(default, list) else {}
        parser.add_argument(_flag(name), default=default, **OPTIONS[name], **several)
    parser.add_argument("--json", type=Path, help="write the figures there, and pictures beside")
    return parser


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def filled(options: Namespace, defaults: dict[str, Any], question: str) -> Namespace:
    """Fill missing options from a question's defaults, and name its own ``--json`` file."""
    overrides = {name: value for name, value in vars(options).items() if value is not None}
    path = options.json
    if path is not None and options.question == ALL:
        path = path.with_name(f"{path.stem}_{question}{path.suffix}")
    return Namespace(**{**defaults, **overrides, "json": path})


def settings(options: Namespace, without: Iterable[str] = ("json",)) -> dict[str, Any]:
    """Return the options in the form that is saved with figures."""
    return {name: value for name, value in vars(options).items() if name not in without}


def begin(options: Namespace) -> None:
    """Set torch's threads, and keep fairseq's log to warnings."""
    torch.set_num_threads(options.threads)
    logging.getLogger().setLevel(logging.WARNING)


def ask(
    questions: dict[str, Callable[[Namespace], Cells]],
    options: Namespace,
    defaults: dict[str, dict[str, Any]],
    draw: Callable[[str, Cells, Namespace], None],
) -> None:
    """Measure, print and write the question that the options name, or all.

    Args:
        questions: functions that measure, by name.
        options: with ``question``, ``device``, ``dtype`` and ``threads``.
        defaults: each question's values for options that were not given.
        draw: makes a question's pictures, beside ``--json`` if given.
    """
    begin(options)
    for question in questions if options.question == ALL else [options.question]:
        its = filled(options, defaults[question], question)
        threads = torch.get_num_threads()
        print(f"\n== {question} on {its.device}, {its.dtype}, {threads} threads")
        cells = questions[question](its)
        cells.save(its.json, settings(its))
        if its.json is not None:
            draw(question, cells, its)
        gc.collect()


if __name__ == "__main__":  # for recipes, which keep the machine beside their figures
    print(json.dumps(machine()))
