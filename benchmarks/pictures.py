"""Draw a benchmark's figures as PNG: curves over n (such as a number of tokens), or bars."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from bench import Cells

from fairseq_ext.evaluation import plots

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LABELS = {"fairseq": "Transformer (fairseq)", "sdpa": "Transformer (fused attention)"}
IN_A_ROW = 3  # most panels in a row
ORDER = ("fairseq", "sdpa", "k=32", "k=64", "k=128")  # the same colours in every picture


def draw(
    cells: Cells,
    panels: dict[str, tuple],
    output: Path,
    *,
    order: Sequence[str] = ORDER,
    xlabel: str = "n (tokens in a sentence)",
) -> None:
    """Draw curves of the time per token, or of another measured value, over n.

    Args:
        cells: the measured values.
        panels: map from each panel's title to ``(measurement, candidates)`` or to ``(measurement,
            candidates, key)``. The key names the value to draw instead of the time per token.
        output: path of the benchmark's JSON; the picture has this path with the ending ``.png``.
        order: candidates in the order in which they get colours and line styles.
        xlabel: label of the axis of n.
    """
    everyone = list(
        dict.fromkeys([*order, *(name for panel in panels.values() for name in panel[1])])
    )
    looks = plots.looks(everyone)
    room = plots.LEGEND_LINE * max(len(panel[1]) for panel in panels.values())
    columns = min(len(panels), IN_A_ROW)
    rows = ceil(len(panels) / columns)
    with plots.new_figure(5.2 * columns, (4.2 + room) * rows) as figure:
        same = all(len(panel) == 2 for panel in panels.values())
        places = figure.subplots(rows, columns, squeeze=False, sharey=same).flat
        for (title, (measurement, names, *figures)), axes in zip(
            panels.items(), places, strict=False
        ):
            value = figures[0] if figures else "us_per_token"
            lengths: set[int] = set()
            for name in names:
                curve = cells.curve(measurement, name, value)
                lengths |= curve.keys()
                label = LABELS.get(name, f"Linformer, {name}" if name.startswith("k=") else name)
                line = looks[name] | {"marker": "o", "ms": 4, "lw": 1.8}
                axes.plot(list(curve), list(curve.values()), label=label, **line)
            _scale(axes, sorted(lengths))
            axes.set(title=title, xlabel=xlabel)
            if not figures:
                axes.set_ylabel("time per token (µs)")
            plots.draw_legend(axes, top=-0.21)  # below the slanted labels
        for axes in places:
            axes.remove()
        save(figure, output)


def bars(panels: dict[str, dict[str, Sequence[float]]], xlabel: str, output: Path) -> None:
    """Draw a bar for each figure, with its quartiles if there are any.

    Args:
        panels: map from each panel's title to its bars: a map from the name of a bar to
            ``(value,)`` or to ``(value, lower quartile, upper quartile)``.
        xlabel: label of the axis of the figures.
        output: path of the benchmark's JSON; the picture has this path with the ending ``.png``.
    """
    height = 1.4 + 0.4 * max(map(len, panels.values()))
    with plots.new_figure(2 + 3 * len(panels), height) as figure:
        places = figure.subplots(1, len(panels), squeeze=False).flat
        for (title, rows), axes in zip(panels.items(), places, strict=True):
            values, lows, highs = np.array([[*row, *row, *row][:3] for row in rows.values()]).T
            drawn = axes.barh(list(rows), values, xerr=[values - lows, highs - values])
            axes.bar_label(drawn, fmt="{:,.4g}", padding=2)
            axes.invert_yaxis()
            axes.margins(x=0.2)
            axes.set(title=title, xlabel=xlabel)
        save(figure, output)


def save(figure: Figure, output: Path) -> None:
    """Write a picture as PNG beside the JSON file ``output``."""
    path = output.with_suffix(".png")
    plots.write_figure(figure, path)
    print(f"written: {path}")


def _scale(axes: Axes, lengths: list[int]) -> None:
    """Make both axes logarithmic, with a mark at each length."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xticks(lengths, [f"{n:,}" for n in lengths], rotation=45)
    axes.xaxis.set_minor_locator(NullLocator())
    low, high = axes.get_ylim()
    if high < 4 * low:
        axes.yaxis.set_major_locator(LogLocator(base=2, subs=(1, 1.25, 1.5, 1.75)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_tick_params(labelleft=True)
    axes.grid(True)
