"""Draw curves over n from the cells of a benchmark, as PNG."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING

from cells import Cells

from fairseq_ext.evaluation import plots
from fairseq_ext.evaluation.plot_styles import numbered

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LABELS = {"fairseq": "Transformer (fairseq)", "sdpa": "Transformer (fused attention)"}
IN_A_ROW = 3  # panels
ORDER = ("fairseq", "sdpa", "k=32", "k=64", "k=128")  # the same colours in every picture


def draw(
    cells: Cells,
    panels: dict[str, tuple[str, list[str]]],
    output: Path,
    *,
    order: Sequence[str] = ORDER,
    xlabel: str = "n (tokens in a sentence)",
) -> None:
    """Draw time per token over n.

    Args:
        cells: the figures.
        panels: for each title the ``what`` to draw and its candidates.
        output: the JSON's path; the pictures lie beside it under the same name.
        order: of the colours, and of the kinds of lines once there are no more.
        xlabel: what n is.
    """
    import matplotlib
    from matplotlib.figure import Figure

    drawn = [name for _, names in panels.values() for name in names]
    everyone = list(dict.fromkeys([*order, *drawn]))
    values = [
        v
        for measurement, names in panels.values()
        for n in names
        for v in cells.curve(measurement, n).values()
    ]
    narrow = max(values) < 4 * min(values)
    with matplotlib.rc_context(plots.STYLE):
        room = plots.room_for_legend(max(len(names) for _, names in panels.values()))
        columns = min(len(panels), IN_A_ROW)
        rows = ceil(len(panels) / columns)
        figure = Figure(figsize=(5.2 * columns, (4.2 + room) * rows), layout="constrained")
        places = figure.subplots(rows, columns, squeeze=False, sharey=True).flat
        for (title, (measurement, names)), axes in zip(panels.items(), places, strict=False):
            lengths: set[int] = set()
            for name in names:
                curve = cells.curve(measurement, name)
                lengths |= curve.keys()
                label = LABELS.get(name, f"Linformer, {name}" if name.startswith("k=") else name)
                line = numbered(everyone.index(name)).line | {"marker": "o", "ms": 4, "lw": 1.8}
                axes.plot(list(curve), list(curve.values()), label=label, **line)
            _scale(axes, sorted(lengths), narrow)
            axes.set(title=title, xlabel=xlabel, ylabel="time per token (µs)")
            plots.draw_legend(axes, below=-0.21)  # under the slanted lengths
        for axes in places:
            axes.remove()
        save(figure, output)


def save(figure: Figure, output: Path) -> None:
    """Write a picture as PNG beside the JSON of its figures."""
    path = output.with_suffix(".png")
    plots.write_figure(figure, path)
    print(f"written: {path}")


def _scale(axes: Axes, lengths: list[int], narrow: bool) -> None:
    """Set logarithmic scales with a mark at each length, and more marks of time if ``narrow``."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xticks(lengths, [f"{n:,}" for n in lengths], rotation=45)
    axes.xaxis.set_minor_locator(NullLocator())
    if narrow:
        axes.yaxis.set_major_locator(LogLocator(base=2, subs=(1, 1.25, 1.5, 1.75)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_tick_params(labelleft=True)
    axes.grid(True)
