"""Tools of all benchmarks: timing, saving figures as JSON, and command-line options.

Terms of the benchmarks:

- A *candidate* is a function to time, such as a training step of a model.
- *Ours* are the candidates of this package. *Peers* are the candidates to compare with.
- In a *round*, each candidate runs once.
- A *cell* holds the times of all candidates at one value of n, such as a number of tokens.
- A *measurement* is the name of a series of cells, one for each n, such as "forward".
- A *question* is a part of a script that its user can choose, such as "memory".
"""

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
    "threads": {"type": int, "help": "number of threads"},
    "device": {"help": "cpu or cuda"},
    "dtype": {"choices": ["fp32", "bf16", "fp16"], "help": "type of weights and activations"},
    "repeats": {"type": int, "help": "number of rounds that count; quartiles need three"},
    "warmup": {"type": int, "help": "number of rounds before those that count"},
    "budget": {"type": float, "help": "seconds after which a cell ends, if it has three rounds"},
    "limit": {"type": float, "help": "seconds; a slower peer is left out of later cells"},
    "lengths": {"type": int, "help": "tokens in a sentence, in ascending order"},
    "tokens": {"type": int, "help": "tokens in a batch"},
    "layers": {"type": int, "help": "layers of the encoder, and as many of the decoder"},
    "embed_dim": {"type": int, "help": "channels of the model"},
    "ffn_embed_dim": {"type": int, "help": "hidden units of its feed-forward networks"},
    "heads": {"type": int, "help": "heads of its attention"},
    "vocabulary": {"type": int, "help": "entries of each dictionary"},
    "dropout": {"type": float, "help": "dropout in training steps"},
    "sentences": {"type": int, "help": "sentences to make training batches of"},
    "batches": {"type": int, "help": "sentences in a batch, for generation"},
    "words": {"type": int, "help": "words of each sentence, or to generate for each"},
}


def machine() -> dict[str, object]:
    """Return a description of this machine: processor, threads, versions, date, git commit."""
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
    """Time each candidate once in every round, so that drift of the machine affects all equally.

    The order is reversed every other round, and garbage is collected only between rounds.

    Args:
        candidates: functions to time, by name.
        repeats: number of rounds that count.
        warmup: number of rounds before those that count.
        budget: seconds after which no further round begins. Three rounds count in any case,
            because quartiles need them.
        clock: function that returns seconds. On a busy machine use ``time.process_time``, which
            counts only the work of this process.

    Returns:
        Map from each candidate's name to its seconds in every round that counts.
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
    """Return lower quartile, median and upper quartile; a single value is returned three times."""
    low, middle, high = statistics.quantiles(values, n=4) if len(values) > 1 else values * 3
    return low, middle, high


def peak_memory(run: Callable[[], object], device: str) -> int:
    """Run a function and return by how many bytes the memory in use rose, at its peak.

    On CUDA, this is the memory of torch's allocator. On a CPU, it is the resident memory. Linux
    counts its peak from the start of the process, so call this once in a new process.
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
    """Return how many bytes of this process are in memory now (Linux)."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def rounded(content: Any) -> Any:
    """Round all floats in the content of a JSON file to six significant digits."""
    match content:
        case float():
            return float(f"{content:.6g}")
        case list() | tuple():
            return [rounded(value) for value in content]
        case dict():
            return {key: rounded(value) for key, value in content.items()}
    return content


def save(destination: Path | None, *, title: str, **content: object) -> None:
    """Write title, content and a description of this machine as JSON, if there is a destination."""
    if destination is None:
        return
    destination.parent.mkdir(parents=True, exist_ok=True)
    content = rounded({"title": title, "machine": machine(), **content})
    text = json.dumps(content, indent=2) + "\n"
    with files.atomic_write(destination) as file:
        file.write(text)
    print(f"written: {destination}")


@dataclass
class Cells:
    """All figures of a benchmark, in cells.

    Attributes:
        title: title of all tables.
        axis: name of n in tables; each script decides what n counts.
        unit: key of the figure that tables show, such as "ms"; None for the first key of
            ``tables.VALUES`` that the figures have.
        figures: a dictionary for each candidate in each cell, with its times: the median ``ms``,
            the quartiles ``ms_low`` and ``ms_high``, ``us_per_token`` and ``tokens_per_second``.
        ratios: a dictionary for each pair of ours and a peer in each cell: median and quartiles,
            over rounds, of the peer's time divided by ours.
        notes: facts that hold for all figures, such as the mean length of the sentences.
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
        """Add a cell: the times of all candidates, and ratios of their times.

        Args:
            measurement: name of the series to which the cell belongs.
            n: value on the :attr:`axis`; None if there is only one cell.
            seconds: map from each candidate's name to its times in all rounds.
            pairs: names ``(ours, peer)`` whose ratio is computed, if both have times.
            tokens: number of tokens in a run of a candidate.
            peers: further candidates; those without times are listed as "not run".
            extra_columns: further values to store with each figure of the cell.
        """
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
                pair = {"what": measurement, "n": n, "candidate": ours, "peer": peer}
                ratio = {"ratio": middle, "ratio_low": low, "ratio_high": high}
                self.ratios.append(pair | ratio)

    def note(self, text: str) -> None:
        self.notes.append(text)
        print(text, flush=True)

    def curve(
        self, measurement: str, candidate: str, value: str = "us_per_token"
    ) -> dict[int, float]:
        """Map each n of a measurement to a candidate's figure with the key ``value``."""
        return {
            row["n"]: row[value]
            for row in self.figures
            if (row["what"], row["candidate"]) == (measurement, candidate) and row["ms"] is not None
        }

    def save(self, destination: Path | None, settings: dict[str, object]) -> None:
        """Write the cells, the settings and a description of this machine as JSON."""
        save(destination, settings=settings, **vars(self))


class Stopwatch:
    """A timer of candidates, which leaves slow ones out of later cells.

    The options ``--repeats``, ``--warmup`` and ``--budget`` (or the argument ``budget``) say how
    often and how long to time. A candidate that needs more than ``--limit`` seconds for a run, or
    too much memory, is left out of the later cells of the measurement. Linformers (``k=…``) are
    never left out.
    """

    def __init__(self, options: Namespace, budget: float | None = None) -> None:
        self.options = options
        self.budget = options.budget if budget is None else budget
        self.left_out: set[tuple[str, str]] = set()

    def allows(self, measurement: str, name: str) -> bool:
        return (measurement, name) not in self.left_out

    def learn(self, measurement: str, name: str, seconds: float) -> None:
        """Leave a candidate out of later measurements if it took more than ``--limit`` seconds."""
        if seconds > self.options.limit and not name.startswith("k="):
            self.left_out.add((measurement, name))

    def time(
        self, measurement: str, candidates: dict[str, Callable[[], object]]
    ) -> dict[str, list[float]]:
        """Time the candidates that are not left out; return the seconds of all rounds by name."""
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
        """Time candidates and add a cell with their times; those left out are "not run".

        ``columns`` are further arguments of :meth:`Cells.add`, such as ``tokens``.
        """
        seconds = self.time(measurement, candidates)
        cells.add(measurement, n, seconds, pairs, peers=candidates, **columns)


class Worker:
    """A process that answers each line on its standard input with a line of JSON.

    ``path`` is a further folder of Python modules. If ``quiet``, its stderr is shown only if it
    dies.
    """

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
        """Send a line and return the answer; end this script if the process has ended."""
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
    """Make a parser with ``--json`` and some of the :data:`OPTIONS`.

    Args:
        description: the script's docstring.
        defaults: map from each option's name to its default. If the default is a list, the option
            takes several values. If the default is None, :func:`filled` replaces it by the chosen
            question's default.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawTextHelpFormatter
    )
    for name, default in defaults.items():
        several = {"nargs": "+"} if isinstance(default, list) else {}
        parser.add_argument(_flag(name), default=default, **OPTIONS[name], **several)
    parser.add_argument("--json", type=Path, help="write the figures there, any pictures beside")
    return parser


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def filled(options: Namespace, defaults: dict[str, Any], question: str) -> Namespace:
    """Return a copy of the options in which each None is replaced by the question's default.

    If the user chose all questions, the path ``json`` gets the question's name: x.json becomes
    x_memory.json.
    """
    overrides = {name: value for name, value in vars(options).items() if value is not None}
    path = options.json
    if path is not None and options.question == ALL:
        path = path.with_name(f"{path.stem}_{question}{path.suffix}")
    return Namespace(**{**defaults, **overrides, "json": path})


def settings(options: Namespace, without: Iterable[str] = ("json",)) -> dict[str, Any]:
    """Return the options as a dictionary to save with the figures, except those in ``without``."""
    return {name: value for name, value in vars(options).items() if name not in without}


def begin(options: Namespace) -> None:
    """Set torch's number of threads, and let fairseq log only warnings."""
    torch.set_num_threads(options.threads)
    logging.getLogger().setLevel(logging.WARNING)


def ask(
    questions: dict[str, Callable[[Namespace], Cells]],
    options: Namespace,
    defaults: dict[str, dict[str, Any]],
    draw: Callable[[str, Cells, Namespace], None],
) -> None:
    """Measure the chosen question, or all; with ``--json``, save the numbers and draw pictures.

    Args:
        questions: map from each question to the function that measures it.
        options: options, among them ``question``, ``device``, ``dtype`` and ``threads``.
        defaults: map from each question to its values for options that are None.
        draw: function that draws a question's pictures.
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


if __name__ == "__main__":  # for recipes, which store a description of the machine
    print(json.dumps(machine()))
