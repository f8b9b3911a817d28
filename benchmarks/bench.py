"""Time candidates against each other in one process, and record the machine."""

from __future__ import annotations

import gc
import json
import os
import platform
import re
import resource
import statistics
import subprocess
import time
from collections.abc import Callable
from datetime import date
from importlib.metadata import version
from pathlib import Path

import torch

from fairseq_ext.utils import files


def machine() -> dict[str, object]:
    """Return everything that a figure depends on: processor, threads, versions, date, commit."""
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
    ``budget`` seconds no further round begins, if there are three (fewer have no quartiles).
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


def compare(seconds: dict[str, list[float]], ours: str, peer: str) -> dict[str, float]:
    """Compute medians in milliseconds, and the peer's time over ours with quartiles by round."""
    low, middle, high = quartiles(
        [b / a for a, b in zip(seconds[ours], seconds[peer], strict=True)]
    )
    return {
        "ours_ms": 1e3 * statistics.median(seconds[ours]),
        "peer_ms": 1e3 * statistics.median(seconds[peer]),
        "ratio": middle,
        "ratio_low": low,
        "ratio_high": high,
    }


def report(title: str, rows: list[dict[str, object]], destination: Path | None) -> None:
    """Print a table of :func:`compare` rows (with ``what`` and ``peer``), and write it as JSON."""
    import tables  # beside this script; tests/soak imports this module from elsewhere

    print(tables.markdown({"title": title, "rows": rows}))
    if destination is not None:
        save(destination, title=title, rows=rows)


def save(destination: Path, *, title: str, **content: object) -> None:
    """Write figures as JSON, with the machine they were measured on."""
    destination.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"title": title, "machine": machine(), **content}, indent=2) + "\n"
    with files.atomic_write(destination) as file:
        file.write(text)
    print(f"written: {destination}")


if __name__ == "__main__":  # for recipes, which keep the machine beside their figures
    print(json.dumps(machine()))
