"""Collect the figures of one question as cells over n, print them as they come, save them as JSON.

Each question decides what n counts, mostly tokens of a sentence.
"""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import bench
import torch

NOT_RUN = "not run"


@dataclass
class Cells:
    """Measurements, in their order.

    Attributes:
        title: what the figures are about.
        axis: what n is, in tables.
        unit: the figure of a candidate that tables show; None leaves it to the tables.
        figures: milliseconds and time per token of each candidate in each cell.
        ratios: the peer's time over ours in each cell, median and quartiles of paired rounds.
        notes: facts that hold for all figures (kernels, drawn lengths).
        findings: what the figures say about each claim, met or not.
    """

    title: str
    axis: str = "n"
    unit: str | None = None
    figures: list[dict] = field(default_factory=list)
    ratios: list[dict] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)

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
        """Add a cell: times of its candidates, and each ``(ours, peer)`` of ``pairs`` that ran."""
        names = [*seconds, *(peer for peer in peers if peer not in seconds)]
        cell = {"what": measurement, "n": n, "tokens": tokens, **extra_columns}
        for name in names:
            if name not in seconds:
                self.figures.append({**cell, "candidate": name, "ms": None})
                continue
            low, middle, high = bench.quartiles(seconds[name])
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
        for ours, peer in pairs:
            if ours in seconds and peer in seconds:
                compared = bench.compare(seconds, ours, peer)
                self.ratios.append({**cell, "candidate": ours, "peer": peer, **compared})
        self._print_cell(measurement, n, names)

    def note(self, text: str) -> None:
        self.notes.append(text)
        print(text, flush=True)

    def find(self, text: str) -> None:
        self.findings.append(text)
        print(text, flush=True)

    def _print_cell(self, measurement: str, n: int | None, names: list[str]) -> None:
        """Print a line of times per token, and a line of ratios for each of our candidates."""
        cell = [row for row in self.figures if (row["what"], row["n"]) == (measurement, n)]
        shown = {row["candidate"]: row for row in cell[-len(names) :]}
        condition = "" if n is None else f", {self.axis} = {n:,}"
        print(f"{measurement}{condition}, {shown[names[0]]['tokens']:,.0f} tokens")
        width = max(24, *map(len, names))
        for name, row in shown.items():
            if row["ms"] is None:
                print(f"  {name:{width}} {NOT_RUN}", flush=True)
                continue
            ratios = [
                f"{ratio['ratio']:.2f}x ({ratio['ratio_low']:.2f}-{ratio['ratio_high']:.2f}) "
                f"{ratio['peer']}"
                for ratio in self.ratios
                if (ratio["what"], ratio["n"], ratio["candidate"]) == (measurement, n, name)
            ]
            print(
                f"  {name:{width}} {row['ms']:10.2f} ms {row['us_per_token']:9.2f} us/token "
                f"{row['repeats']:3} rounds   {'; '.join(ratios)}",
                flush=True,
            )

    def curve(
        self, measurement: str, candidate: str, value: str = "us_per_token"
    ) -> dict[int, float]:
        """Return a candidate's ``value`` for every n it ran at."""
        return {
            row["n"]: row[value]
            for row in self.figures
            if (row["what"], row["candidate"]) == (measurement, candidate) and row["ms"] is not None
        }

    def ratio_curve(self, measurement: str, ours: str, peer: str) -> dict[int, float]:
        """Return how many times faster than the peer ours is, for every n at which both ran."""
        return {
            row["n"]: row["ratio"]
            for row in self.ratios
            if (row["what"], row["candidate"], row["peer"]) == (measurement, ours, peer)
        }

    def find_flat(self, series: str, ours: str, *, first: int, within: float) -> None:
        """State whether the time per token is the same from ``first`` tokens on."""
        curve = {n: value for n, value in self.curve(series, ours).items() if n >= first}
        if len(curve) < 2:
            return
        spread = max(curve.values()) / min(curve.values()) - 1
        verdict = "met" if spread <= within else "missed"
        self.find(
            f"{series}, {ours}: time per token from n = {min(curve):,} to {max(curve):,} spreads "
            f"over {spread:.0%} (slowest over fastest; target {within:.0%}: {verdict})"
        )

    def find_crossover(
        self, measurement: str, ours: str, peer: str, target: int | None = None
    ) -> None:
        """State from which n on ours is faster than the peer, and where it is slower."""
        curve = self.ratio_curve(measurement, ours, peer)
        if not curve:
            return
        slower = {n: ratio for n, ratio in curve.items() if ratio < 1}
        after = [n for n in curve if n > max(slower, default=0)]
        text = f"{measurement}, {ours} against {peer}: "
        text += f"faster from n = {min(after):,} on" if after else "not faster at the largest n"
        if target is not None:
            verdict = "met" if after and min(after) <= target else "missed"
            text += f" (target: {target:,} or below: {verdict})"
        if slower:
            text += ", slower at " + ", ".join(f"{n:,} ({slower[n]:.2f}x)" for n in slower)
        self.find(text)

    def find_ratio(
        self, measurement: str, ours: str, peer: str, n: int | None, target: float | None = None
    ) -> None:
        """State how many times faster than the peer ours is at ``n``, with the target if any."""
        ratio = self.ratio_curve(measurement, ours, peer).get(n)
        if ratio is None:
            return
        text = f"{measurement}, {ours} against {peer}"
        text += f"{'' if n is None else f' at {self.axis} = {n:,}'}: {ratio:.2f}x"
        if target is not None:
            text += f" (target {target:g}x: {'met' if ratio >= target else 'missed'})"
        self.find(text)

    def save(self, destination: Path | None, settings: dict[str, object]) -> None:
        """Write everything as JSON."""
        if destination is not None:
            bench.save(
                destination,
                title=self.title,
                axis=self.axis,
                unit=self.unit,
                settings=settings,
                notes=self.notes,
                findings=self.findings,
                figures=self.figures,
                ratios=self.ratios,
            )


class Stopwatch:
    """A timer of candidates in turn, by the options, in which ``budget`` may replace the seconds.

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
        """Leave a peer out from now on if it took too long."""
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
        seconds = bench.paired(
            ready,
            repeats=self.options.repeats,
            warmup=max(0, self.options.warmup - 1),
            budget=self.budget,
        )
        for name, times in seconds.items():
            self.learn(measurement, name, min(times))
        return seconds
