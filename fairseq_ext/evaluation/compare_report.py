"""A comparison as a table, as Markdown, and as a picture of quality against size and speed."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from fairseq_ext.evaluation import legends, plots, tables
from fairseq_ext.evaluation.bootstrap import Estimate
from fairseq_ext.evaluation.compare import Measured, Result, Sample
from fairseq_ext.evaluation.plot_styles import looks
from fairseq_ext.evaluation.score import shown
from fairseq_ext.evaluation.translation_table import write_table
from fairseq_ext.utils import files

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

SIGNIFICANT = 0.05
MISSING = "–"
MEGABYTE = 1e6
OTHERS = {
    "csv": "CSV",
    "tex": "LaTeX",
    "json": "JSON",
    "tsv.gz": "translations",
}  # beside page and picture
_LINES = 3  # of a legend, for which the figure has room

Value = Callable[[Measured], float | None]
# heading, and the cell of one system; a column that is empty for all systems is left out
Columns = Sequence[tuple[str, Callable[[Measured], Any]]]
# heading, value and how a table shows it
FACTS: tuple[tuple[str, Value, str], ...] = (
    ("BLEU-tok", lambda row: row.tokenized_bleu, ".2f"),
    ("parameters", lambda row: row.parameters, ","),
    ("MB on disk", lambda row: _scaled(row.tensor_bytes, MEGABYTE), ".2f"),
    ("updates", lambda row: row.updates, ","),
    ("training tokens/s", lambda row: row.training_speed, ",.0f"),
    ("generation tokens/s", lambda row: row.generation_speed, ",.0f"),
)
NUMBERS: tuple[tuple[str, Callable[[Estimate], float | None]], ...] = (
    ("{}", lambda score: score.value),
    ("{} 95% low", lambda score: score.low),
    ("{} 95% high", lambda score: score.high),
    ("{} SD", lambda score: score.deviation),
    ("{} p", lambda score: score.p),
)
Panel = tuple[str, str, Value]
# title, label of the axis, and where on it a system stands
PANELS: tuple[Panel, ...] = (
    ("Size", "parameters (millions)", lambda row: _scaled(row.parameters, 1e6)),
    ("Size on disk", "tensors (MB)", lambda row: _scaled(row.tensor_bytes, MEGABYTE)),
    ("Training speed", "target tokens per second", lambda row: row.training_speed),
    ("Generation speed", "tokens per second", lambda row: row.generation_speed),
)


def rows(result: Result) -> list[list[str]]:
    """The table's rows, the heading first; columns of which nothing is known are left out."""
    facts = [(heading, partial(_number, value=value, form=form)) for heading, value, form in FACTS]
    return _filled(result, [("runs", _runs), *_scores(result), *facts], MISSING)


def numbers(result: Result) -> list[list[Any]]:
    """The same for a program: each number in a column of its own, not rounded; None if missing."""
    scores = [
        (heading.format(metric), partial(_of_score, metric=metric, value=value))
        for metric in result.signatures
        for heading, value in NUMBERS
    ]
    runs: Columns = [("runs", lambda row: row.scores["BLEU"].runs)]
    return _filled(result, [*runs, *scores, *((heading, value) for heading, value, _ in FACTS)])


def _filled(result: Result, columns: Columns, missing: str | None = None) -> list[list[Any]]:
    """Rows of the columns in which something is not missing, the heading first."""
    found = [["system", *(row.name for row in result.systems)]]
    for heading, cell in columns:
        cells = [cell(row) for row in result.systems]
        if set(cells) != {missing}:
            found.append([heading, *cells])
    return [list(row) for row in zip(*found, strict=True)]


def _scores(result: Result) -> Columns:
    """Return each metric's score with its deviation and p."""
    return tuple(
        (heading.format(metric), partial(cell, metric=metric))
        for metric in result.signatures
        for heading, cell in (("{}", _interval), ("SD ({})", _deviation), ("p ({})", _p))
    )


def notes(result: Result) -> list[str]:
    """Return the notes that explain the table to its reader."""
    several = result.several_runs
    sentences = "1 sentence" if result.sentences == 1 else f"{result.sentences:,} sentences"
    said = [f"{sentences}; score ± half of its 95% bootstrap interval"]
    if len(result.systems) > 1:
        said.append(
            f"p: {result.test}, against `{result.baseline}`, * below {SIGNIFICANT}; the chance of "
            f"another training run is {'' if several else 'not '}in it"
            f"{' where a system has several' if several else ''}"
        )
    if several and len(result.systems) > 1:
        said.append(
            "with fewer than about five runs, p is too small; a system with a single run counts as "
            "if chance had no part in its training"
        )
    if several:
        said.append("several runs: mean, and SD, the standard deviation over them")
    if any(row.tokenized_bleu is not None for row in result.systems):
        said.append("BLEU-tok: on tokens, multi-bleu style, not comparable with BLEU")
    return said + [f"{name}: {signature}" for name, signature in result.signatures.items()]


def as_table(result: Result) -> str:
    """Format the comparison for the terminal: table and notes."""
    return tables.aligned(rows(result)) + "\n\n" + "\n".join(notes(result))


def as_markdown(result: Result) -> str:
    """Table and notes, for a page."""
    heading, *body = rows(result)
    named = [(tables.verbatim(name), *cells) for name, *cells in body]
    said = [f"- {note}" for note in notes(result)]
    return tables.markdown([[*map(tables.verbatim, heading)], *named]) + "\n\n" + "\n".join(said)


def as_page(result: Result, output: Path, pictures: Sequence[Path] = ()) -> str:
    """A whole page of Markdown, to stand beside the other files of :func:`write`.

    Args:
        result: the comparison.
        output: common path of the files.
        pictures: further ones, which exist already.
    """
    stem, picture = plots.stem(output), plots.picture_path(output)
    count, name = len(result.systems), quote(stem.name)
    files_ = ", ".join(f"[{label}]({name}.{ending})" for ending, label in OTHERS.items())
    shown = [
        f"![{tables.verbatim(path.stem)}]({quote(os.path.relpath(path, stem.parent))})"
        for path in pictures
    ]
    parts = [
        f"# {count} {'system' if count == 1 else 'systems'} on {tables.verbatim(result.reference)}",
        as_markdown(result),
        f"The same figures: {files_}.",
        f"![{_alternative(result)}]({quote(picture.name)})",
        *_absent(result),
        *shown,
        "## Samples",
        *map(_sample, result.samples),
    ]
    return "\n\n".join(parts)


def _alternative(result: Result) -> str:
    """The picture in words."""
    titles = [title.lower() for title, *_ in _panels(result)]
    return f"BLEU against {', '.join(titles)}" if titles else "BLEU of each system"


def _panels(result: Result) -> list[Panel]:
    """Return the panels in which some system has a point."""
    return [panel for panel in PANELS if any(panel[2](row) is not None for row in result.systems)]


def _absent(result: Result) -> list[str]:
    """Return a note on the systems missing from the picture, if it shows others."""
    absent = [row.name for row in result.systems if not any(axis(row) for *_, axis in PANELS)]
    if not 0 < len(absent) < len(result.systems):
        return []
    names = ", ".join(map(tables.verbatim, absent))
    return [f"Without checkpoint, log or speed, and so not in the picture: {names}."]


def _sample(sample: Sample) -> str:
    source = [] if sample.source is None else [("source", sample.source)]
    sides = [*source, ("reference", sample.reference), *sample.translations.items()]
    cells = [(tables.verbatim(side), tables.verbatim(line)) for side, line in sides]
    return tables.markdown([(f"sentence {sample.number}", ""), *cells])


def write(result: Result, output: str | Path, pictures: Sequence[Path] = ()) -> list[Path]:
    """Write ``OUTPUT.md``, ``.csv``, ``.tex``, the picture, ``.json`` and ``.tsv.gz``.

    Args:
        result: the comparison.
        output: their common path; with ``.svg`` the picture is an SVG, else a PNG.
        pictures: further ones for the page.
    """
    stem = plots.stem(output)
    table = rows(result)
    pages = {
        "md": as_page(result, Path(output), pictures) + "\n",
        "csv": tables.comma_separated(numbers(result)),
        "tex": tables.latex(table) + "\n",
    }
    paths = [stem.parent / f"{stem.name}.{ending}" for ending in pages]
    for path, page in zip(paths, pages.values(), strict=True):
        with files.atomic_write(path) as file:
            file.write(page)
    translations = stem.parent / f"{stem.name}.tsv.gz"
    write_table(translations, result.texts, result.tokens)
    return [*paths, *plot(result, output), translations]


def plot(result: Result, output: str | Path) -> list[Path]:
    """Draw BLEU with its interval against size and speed, or of each system if none is known.

    Returns:
        the files written: the picture, and the whole comparison as JSON.
    """
    import matplotlib
    from matplotlib.figure import Figure

    names = [row.name for row in result.systems]
    known = _panels(result)
    shown = known or [("Quality", "system", lambda row: 1.0 + names.index(row.name))]
    with matplotlib.rc_context(plots.STYLE):
        width = 3.5 * len(known) if known else 0.5 * len(names)
        figure = Figure(figsize=(max(4.6, width), 4.4), layout="constrained")
        panels = figure.subplots(1, len(shown), squeeze=False, sharey=True)[0]
        for axes, (title, label, place) in zip(panels, shown, strict=True):
            _draw(axes, result, place)
            axes.set(title=title, xlabel=label)
        panels[0].set_ylabel("BLEU (0 to 100) with 95% interval")
        if known:
            handles = _handles(result, known)
            across = max(1, min(2 * len(known), 4, len(handles), _columns(figure, handles)))
            legend = figure.legend(handles=handles, loc="outside lower center", ncols=across)
            lines = legends.show_names(legend, figure.get_figwidth() / across - 0.6) / across
            figure.set_figheight(4.4 + plots.room_for_legend(max(0, lines - _LINES)))
        else:
            tilt = {"rotation": 30, "ha": "right", "rotation_mode": "anchor"}
            panels[0].set_xticks(range(1, 1 + len(names)), names, **tilt)
            panels[0].set_xlim(0.5, len(names) + 0.5)
        return plots.save_picture(figure, output, result.as_dict())


def _draw(axes: Axes, result: Result, place: Callable[[Measured], float | None]) -> None:
    places = [place(row) for row in result.systems]
    for style, row, x in zip(_styles(result), result.systems, places, strict=True):
        if x is not None:
            bleu = row.scores["BLEU"]
            # around the samples' mean, so on a tiny test set the value may lie outside
            bounds = [[max(0, bleu.value - bleu.low)], [max(0, bleu.high - bleu.value)]]
            axes.errorbar([x], [bleu.value], bounds, capsize=3, lw=1.2, ms=7, **style)
    largest = max(x for x in places if x is not None)
    axes.set_xlim(0, largest * 1.12)  # from zero, so that twice as far is twice as much
    axes.grid(True)


def _handles(result: Result, panels: Sequence[Panel]) -> list[Line2D]:
    """Return legend handles of the systems that have a point in some panel."""
    from matplotlib.lines import Line2D

    return [
        Line2D([], [], ls="", ms=7, label=legends.entry(row.name), **style)
        for style, row in zip(_styles(result), result.systems, strict=True)
        if any(place(row) is not None for _, _, place in panels)
    ]


def _columns(figure: Figure, handles: Sequence[Line2D]) -> int:
    """Return how many legend columns fit below the figure."""
    longest = min(plots.LONGEST, max(len(handle.get_label()) for handle in handles))
    return int(figure.get_figwidth() / (0.5 + 0.09 * longest))  # inches of marker and letter


def _styles(result: Result) -> list[dict[str, str]]:
    return [look.point for look in looks(row.name for row in result.systems).values()]


def _scaled(value: float | None, unit: float) -> float | None:
    return None if value is None else value / unit


def _number(row: Measured, value: Value, form: str) -> str:
    found = value(row)
    return MISSING if found is None else format(found, form)


def _of_score(
    row: Measured, metric: str, value: Callable[[Estimate], float | None]
) -> float | None:
    return value(row.scores[metric])


def _interval(row: Measured, metric: str) -> str:
    score = row.scores[metric]
    return f"{shown(metric, score.value)} ± {shown(metric, score.half_width)}"


def _runs(row: Measured) -> str:
    runs = row.scores["BLEU"].runs
    return MISSING if runs == 1 else str(runs)


def _deviation(row: Measured, metric: str) -> str:
    deviation = row.scores[metric].deviation
    return MISSING if deviation is None else shown(metric, deviation)


def _p(row: Measured, metric: str) -> str:
    p = row.scores[metric].p
    return MISSING if p is None else f"{p:.4f}{'*' if p < SIGNIFICANT else ''}"
