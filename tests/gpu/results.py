"""Results of one step as JSON, written after every cell, and the options that all steps share."""

import argparse
import json
import statistics
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.bench import machine, paired

ERROR_LENGTH = 600


def arguments(step: str) -> argparse.Namespace:
    """Read the options of a step; ``device`` is the CPU in a tiny run."""
    parser = argparse.ArgumentParser(prog=f"tests.gpu.{step}")
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--work", type=Path, required=True, help="folder for data and checkpoints")
    parser.add_argument("--seconds", type=float, default=600, help="time box")
    parser.add_argument("--data", type=Path, help="archive with the binarized Multi30k")
    parser.add_argument("--tiny", action="store_true", help="on the CPU, tiny sizes")
    options = parser.parse_args()
    options.device = "cpu" if options.tiny else "cuda"
    if options.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("torch sees no CUDA device; --tiny runs the steps on the CPU.")
    return options


class Results:
    """The cells of one step, by name, in ``OUT/STEP.json``.

    Args:
        step: name of the step.
        options: from :func:`arguments`.
    """

    def __init__(self, step: str, options: argparse.Namespace) -> None:
        self.path = options.out / f"{step}.json"
        self.began, self.seconds = time.monotonic(), options.seconds
        self.content: dict[str, Any] = {"step": step, "complete": False, "cells": {}}
        if self.path.exists():
            self.content = json.loads(self.path.read_text())
        self.content["machine"] = machine()
        self.save()

    @property
    def left(self) -> float:
        """Seconds until the time box ends."""
        return self.seconds - (time.monotonic() - self.began)

    def has(self, name: str) -> bool:
        """Whether a cell was measured without an error, in this run or an earlier one."""
        return "error" not in self.content["cells"].get(name, {"error": None})

    def add(self, name: str, **values: Any) -> None:
        """Write a cell."""
        self.content["cells"][name] = values
        self.save()
        print(name, json.dumps(values)[:400], flush=True)

    def measure(self, name: str, function: Callable[[], dict[str, Any]]) -> None:
        """Run ``function`` for a cell that is missing; an error becomes the cell's text."""
        if self.has(name):
            return
        if self.left < 1:
            self.add(name, error="no time left")
            return
        began = time.monotonic()
        try:
            values = function()
        except Exception as error:
            traceback.print_exc()
            values = {"error": f"{type(error).__name__}: {error}"[-ERROR_LENGTH:]}
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
        self.add(name, **values, wall_seconds=round(time.monotonic() - began, 2))

    def finish(self) -> None:
        """Mark the step as complete when no cell has failed for want of time."""
        errors = [cell.get("error", "") for cell in self.content["cells"].values()]
        self.content["complete"] = not any("no time left" in error for error in errors)
        self.save()

    def save(self) -> None:
        """Write the file in place of the old one."""
        aside = self.path.with_suffix(".new")
        aside.write_text(json.dumps(self.content, indent=1) + "\n")
        aside.replace(self.path)


def time_in_turn(
    candidates: dict[str, Callable[[], object]], seconds: float, warmup: int = 3
) -> dict[str, float]:
    """Median seconds of each candidate, run in turn in rounds until the time is over."""
    rounds = paired(candidates, repeats=10_000, warmup=warmup, budget=seconds)
    return {name: statistics.median(times) for name, times in rounds.items()}
