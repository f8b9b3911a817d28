"""Timing two things against each other in one process, and saying on what machine."""

from __future__ import annotations

import gc
import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from datetime import date
from importlib.metadata import version
from pathlib import Path

import torch


def machine() -> dict[str, object]:
    """What a figure depends on: processor, threads, versions, date and commit."""
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
    candidates: dict[str, Callable[[], object]], *, repeats: int, warmup: int = 3
) -> dict[str, list[float]]:
    """Seconds of each candidate, all in turn in every round, so that drift hits all alike.

    The order is reversed every other round, and the garbage collector rests meanwhile.
    """
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    cuda = torch.cuda.is_available()
    gc.disable()
    try:
        for round_ in range(warmup + repeats):
            names = list(candidates) if round_ % 2 else list(candidates)[::-1]
            for name in names:
                if cuda:
                    torch.cuda.synchronize()
                start = time.perf_counter()
                candidates[name]()
                if cuda:
                    torch.cuda.synchronize()
                if round_ >= warmup:
                    seconds[name].append(time.perf_counter() - start)
            gc.collect()
    finally:
        gc.enable()
    return seconds


def compare(seconds: dict[str, list[float]], ours: str, peer: str) -> dict[str, float]:
    """Medians in milliseconds and the peer's time over ours: median and quartiles by round."""
    ratios = [b / a for a, b in zip(seconds[ours], seconds[peer], strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    return {
        "ours_ms": 1e3 * statistics.median(seconds[ours]),
        "peer_ms": 1e3 * statistics.median(seconds[peer]),
        "ratio": middle,
        "ratio_low": low,
        "ratio_high": high,
    }


def report(title: str, rows: list[dict[str, object]], destination: Path | None) -> None:
    """Print a table of :func:`compare` rows (with ``what`` and ``peer``), write it as JSON."""
    width = max(len(str(row["what"])) for row in rows)
    print(f"\n{title}")
    print(f"{'':{width}}  {'ours ms':>9} {'peer ms':>9} {'ratio':>7} {'quartiles':>13}  peer")
    for row in rows:
        print(
            f"{row['what']:{width}}  {row['ours_ms']:9.1f} {row['peer_ms']:9.1f} "
            f"{row['ratio']:6.2f}x {row['ratio_low']:6.2f}-{row['ratio_high']:.2f}  {row['peer']}"
        )
    if destination is not None:
        destination.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"title": title, "machine": machine(), "rows": rows}, indent=2) + "\n"
        temporary = destination.with_name(destination.name + ".tmp")
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(destination)
        print(f"written: {destination}")
