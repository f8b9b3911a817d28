"""Report a comparison of systems: tables in several formats, and pictures of quality and speed."""

from __future__ import annotations

import base64
import html
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from fairseq_ext.corpora import contamination
from fairseq_ext.evaluation import plots, significance, tables
from fairseq_ext.evaluation.breakdown import Breakdown, Overlap
from fairseq_ext.evaluation.compare import Measured, Result, Sample
from fairseq_ext.evaluation.score import format_score
from fairseq_ext.evaluation.significance import SENTENCES, Estimate
from fairseq_ext.utils import files

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MISSING = "–"
DAGGER = "†"  # marks a p value that does not cover other trainings, in a table where others do
LESS_IS_BETTER = "TER"
FOREST = "-differences.png"  # ending of the picture of differences from the baseline

Place = Callable[[Measured], "float | None"]
# Each panel's title, label of the axis, and function that finds a system's position on the axis.
PANELS: tuple[tuple[str, str, Place], ...] = (
    ("Size", "parameters (millions)", lambda row: row.parameters and row.parameters / 1e6),
    ("Size on disk", "tensors (MB)", lambda row: row.tensor_bytes and row.tensor_bytes / 1e6),
    ("Training speed", "target tokens per second", lambda row: row.training_speed),
    ("Generation speed", "tokens per second", lambda row: row.generation_speed),
)


class Section(NamedTuple):
    """A titled part of the report: tables with notes, for the terminal, Markdown and HTML."""

    title: str  # empty for the first section
    tables: Sequence[Sequence[Sequence[str]]]  # rows of each table, the heading first
    notes: Sequence[str] = ()
    pictures: Sequence[Path] = ()  # not for the terminal


def sections(result: Result, pictures: Sequence[Path] = ()) -> list[Section]:
    """Return the report's tables and notes as sections, without sections that lack data.

    The first section has the main table and the ``pictures``.
    """
    parts = [Section("", [rows(result)], notes(result), pictures)]
    if _comparisons(result):
        title = f"Differences to {result.baseline}"
        parts.append(Section(title, [differences(result)], DIFFERENCE_NOTES))
    if result.overlap is not None:
        parts.append(_overlap(result, result.overlap))
    if result.breakdown is not None:
        parts.append(Section("Kinds of sentences", _kinds(result, result.breakdown)))
    return parts


def as_table(result: Result) -> str:
    """Format the comparison as tables and notes for the terminal."""
    return "\n\n".join(
        part
        for section in sections(result)
        for part in (*map(tables.aligned, section.tables), "\n".join(section.notes))
        if part
    )


def _page(result: Result, pictures: Sequence[Path]) -> list[Section]:
    """Return all sections of a page: tables, pictures and sample sentences."""
    parts = sections(result, pictures)
    if result.differing:
        parts.append(Section("Sentences that differ most", list(map(_sample, result.differing))))
    return [*parts, Section("Samples", list(map(_sample, result.samples)))]


def as_page(result: Result, output: Path, pictures: Sequence[Path] = ()) -> str:
    """Return the report as a page of Markdown, to be written to ``output``, with ``pictures``."""
    parts = [f"# {tables.verbatim(_title(result))}"]
    for section in _page(result, pictures):
        parts += [f"## {tables.verbatim(section.title)}"] if section.title else []
        parts += [
            tables.markdown([list(map(tables.verbatim, row)) for row in table])
            for table in section.tables
        ]
        parts += ["\n".join(f"- {note}" for note in section.notes)] if section.notes else []
        for path in section.pictures:
            link = quote(os.path.relpath(path, output.parent))
            parts.append(f"![{tables.verbatim(path.stem)}]({link})")
    return "\n\n".join(parts)


def as_html(result: Result, pictures: Sequence[Path]) -> str:
    """Return the report as a page of HTML that needs no other file; it contains ``pictures``."""
    parts = [f"<h1>{html.escape(_title(result))}</h1>"]
    for section in _page(result, pictures):
        parts += [f"<h2>{html.escape(section.title)}</h2>"] if section.title else []
        parts += map(tables.as_html, section.tables)
        notes = "".join(f"<li>{html.escape(note)}</li>" for note in section.notes)
        parts += [f"<ul>{notes}</ul>"] if notes else []
        parts += map(_embedded, section.pictures)
    page = Path(__file__).with_name("report.html").read_text(encoding="utf-8")
    return Template(page).substitute(title=html.escape(_title(result)), body="\n".join(parts))


def _embedded(picture: Path) -> str:
    kind = "svg+xml" if picture.suffix.lower() == ".svg" else "png"
    content = base64.b64encode(picture.read_bytes()).decode("ascii")
    name = html.escape(picture.stem)
    return f'<p><img alt="{name}" src="data:image/{kind};base64,{content}"></p>'


def _title(result: Result) -> str:
    count = len(result.systems)
    return f"{count} {'system' if count == 1 else 'systems'} on {result.reference}"


# ---- tables --------------------------------------------------------------------------------------


def rows(result: Result) -> list[list[str]]:
    """Return the main table as text: the heading, then a row for each system.

    A missing value is a dash. Columns without any value are left out.
    """
    table = []
    for row in result.systems:
        runs = row.scores["BLEU"].runs
        cells = {"system": row.name, "runs": None if runs == 1 else str(runs)}
        for metric, score in row.scores.items():
            half = _shown(metric, score.half_width)
            cells[metric] = format_score(metric, score.value) + (f" ± {half}" if half else "")
            cells[f"SD ({metric})"] = _shown(metric, score.deviation)
            cells[f"p ({metric})"] = _p(result, score)
            if _comparisons(result) > 1:
                cells[f"Holm ({metric})"] = _formatted(score.p_holm, ".4f")
        for heading, (number, form) in _facts(row).items():
            cells[heading] = _formatted(number, form)
        table.append(cells)
    return [[MISSING if cell is None else cell for cell in row] for row in _filled(table)]


def numbers(result: Result) -> list[list[Any]]:
    """Return the main table like :func:`rows`, but with unrounded numbers.

    A missing number is None.
    """
    table = []
    for row in result.systems:
        cells: dict[str, Any] = {"system": row.name, "runs": row.scores["BLEU"].runs}
        for metric, score in row.scores.items():
            cells |= {metric: score.value, f"{metric} 95% low": score.low}
            cells |= {f"{metric} 95% high": score.high, f"{metric} SD": score.deviation}
            cells |= {f"{metric} p": score.p, f"{metric} p Holm": score.p_holm}
            change = score.difference
            cells[f"{metric} difference"] = change and change.value
            cells[f"{metric} difference 95% low"] = change and change.low
            cells[f"{metric} difference 95% high"] = change and change.high
            cells[f"{metric} detectable"] = change and change.detectable
        cells |= {heading: number for heading, (number, _) in _facts(row).items()}
        table.append(cells)
    return _filled(table)


def _facts(row: Measured) -> dict[str, tuple[float | None, str]]:
    """Return a system's tokenized BLEU, size and speeds: ``{heading: (number, format)}``."""
    latency = row.latency
    return {
        "BLEU-tok": (row.tokenized_bleu, ".2f"),
        "parameters": (row.parameters, ","),
        "MB on disk": (row.tensor_bytes and row.tensor_bytes / 1e6, ".2f"),
        "updates": (row.updates, ","),
        "training tokens/s": (row.training_speed, ",.0f"),
        "generation tokens/s": (row.generation_speed, ",.0f"),
        "multiply-adds/token": (latency and latency.multiply_adds, ","),
        "median ms": (latency and latency.median, ",.1f"),
        "p99 ms": (latency and latency.p99, ",.1f"),
        "processor ms": (latency and latency.processor, ",.1f"),
        "joules": (latency and latency.joules, ",.3f"),
    }


def _filled(table: Sequence[dict[str, Any]]) -> list[list[Any]]:
    """Turn rows ``{heading: value}`` into a table, heading first; drop columns with only None."""
    headings = [name for name in table[0] if any(cells[name] is not None for cells in table)]
    return [headings, *([cells[name] for name in headings] for cells in table)]


def _comparisons(result: Result) -> int:
    return len(result.systems) - 1


def differences(result: Result) -> list[list[str]]:
    """Return the differences from the baseline: a heading, then a row per system and metric."""
    heading = ["system", "metric", "difference", "95% interval", "detectable"]
    table = [[*heading, "runs needed", "sentences needed"]]
    for row in result.systems:
        for metric, score in row.scores.items():
            if (difference := score.difference) is None:
                continue
            low, high = difference.low, difference.high
            interval = None
            if low is not None and high is not None:
                interval = f"{_signed(metric, low)} to {_signed(metric, high)}"
            cells = [
                _signed(metric, difference.value),
                interval,
                _shown(metric, difference.detectable),
                _formatted(difference.runs_needed, ","),
                _formatted(difference.sentences_needed, ","),
            ]
            table.append([row.name, metric, *(cell or MISSING for cell in cells)])
    return table


DIFFERENCE_NOTES = (
    "detectable: the smallest difference that would have p < 0.05 in four of five repetitions "
    "with these runs and sentences",
    "needed: runs of each system on this test set, or sentences with these runs, for which the "
    f"difference measured here would be detectable; {MISSING} if no number would do, or if single "
    "runs do not show how much seeds differ",
)


def _overlap(result: Result, overlap: Overlap) -> Section:
    """Return a section with the scores on all sentences, and on those not in the training text."""
    references = [sample.reference for sample in result.samples]
    note = contamination.summary(overlap.matches, result.sentences, references)
    scored = overlap.scores.get(result.baseline, {})
    labels = [label for label in result.signatures if label in scored]
    table = [["system", *(f"{label}{part}" for label in labels for part in ("", " without them"))]]
    for row in result.systems:
        cells = [row.name]
        for label in labels:
            values = (row.scores[label].value, overlap.scores[row.name][label])
            cells += [format_score(label, value) for value in values]
        table.append(cells)
    return Section("Sentences of the training text", [table] if labels else [], [note])


def _kinds(result: Result, breakdown: Breakdown) -> list[list[list[str]]]:
    """Return two tables, headings first: chrF by kind of sentence, and percentages of faults."""
    names = [row.name for row in result.systems]
    scores = [["chrF of sentences", "count", *names]]
    for kind in breakdown.kinds:
        values = [format_score("chrF", kind.scores[name]) for name in names]
        scores.append([kind.name, f"{kind.sentences:,}", *values])
    faults = [["% of translations with", *names]]
    for fault, shares in breakdown.faults.items():
        faults.append([fault, *(f"{shares[name]:.2f}" for name in names)])
    return [scores, faults]


def _sample(sample: Sample) -> list[tuple[str, str]]:
    """Return rows (label, text): sentence number, source (if known), reference, translations."""
    source = [] if sample.source is None else [("source", sample.source)]
    sides = [*source, ("reference", sample.reference), *sample.translations.items()]
    return [(f"sentence {sample.number}", ""), *sides]


def _p(result: Result, score: Estimate) -> str | None:
    if score.p is None or score.p_holm is None or score.difference is None:
        return None
    star = "*" if score.p_holm < significance.LEVEL else ""
    of_sentences = score.difference.test == SENTENCES and len(result.tests) > 1
    return f"{score.p:.4f}{star}{DAGGER if of_sentences else ''}"


def _signed(metric: str, value: float) -> str:
    return f"{'+' if value >= 0 else '−'}{format_score(metric, abs(value))}"


def _shown(metric: str, value: float | None) -> str | None:
    return None if value is None else format_score(metric, value)


def _formatted(value: float | None, form: str) -> str | None:
    return None if value is None else format(value, form)


def _counted(sentences: int) -> str:
    return "1 sentence" if sentences == 1 else f"{sentences:,} sentences"


# ---- notes ---------------------------------------------------------------------------------------


def notes(result: Result) -> list[str]:
    """Return the notes that explain the main table to its reader."""
    sentences = _counted(result.sentences)
    several_runs = any(row.scores["BLEU"].runs > 1 for row in result.systems)
    other = "another test set"
    if several_runs:
        other += " and, if a system has several runs, after other trainings"
    lines = [f"{sentences}; ±: half of the 95% interval of the score on {other}"]
    if result.sentences == 1:
        lines = [f"{sentences}, too few for an interval"]
    if _comparisons(result):
        lines += _notes_on_p(result)
    if several_runs:
        lines.append("several runs: mean, and SD, the standard deviation over them")
    if any(row.tokenized_bleu is not None for row in result.systems):
        lines.append("BLEU-tok: on tokens, multi-bleu style, not comparable with BLEU")
    if LESS_IS_BETTER in result.signatures:
        lines.append(f"{LESS_IS_BETTER}: edits for 100 words of the reference; less is better")
    if latency := next((row.latency for row in result.systems if row.latency), None):
        lines.append(
            f"ms: time for a sentence, from text to text, on one thread of this machine, over "
            f"{_counted(latency.sentences)} translated alone; multiply-adds: products with "
            "weights for a token of a hypothesis"
        )
        if latency.joules is not None:
            lines.append("joules: of all processors (RAPL), other work of the machine included")
    return lines + [f"{name}: {signature}" for name, signature in result.signatures.items()]


def _notes_on_p(result: Result) -> list[str]:
    fewest = significance.FEWEST_SENTENCES
    if result.sentences < fewest:
        return [f"no p: fewer than {fewest} sentences say too little about other test sets"]
    comparisons = _comparisons(result)
    after = f" after Holm's correction for {comparisons} systems" if comparisons > 1 else ""
    lines = [f"p: of the difference to `{result.baseline}`; * below {significance.LEVEL}{after}"]
    for test, meaning in result.tests.items():
        mark = f"p{DAGGER}" if test == SENTENCES and len(result.tests) > 1 else "p"
        lines.append(f"{mark} is about {meaning}")
    if SENTENCES in result.tests:
        lines.append(
            "with one run of each system, no p says whether other trainings would differ as much "
            "(train both again, and give --system NAME=RUN,RUN,...)"
        )
    single = any(row.scores["BLEU"].runs == 1 for row in result.systems)
    if significance.TRAININGS in result.tests and single:
        lines.append(
            "a system with one run is assumed to vary over seeds as much as the other system of "
            "the comparison"
        )
    return lines


# ---- files and pictures --------------------------------------------------------------------------


def write(result: Result, output: str | Path, pictures: Sequence[Path] = ()) -> list[Path]:
    """Write the report in all formats, with its pictures; return the paths of the files written.

    The files, where OUTPUT is ``output`` without its ending, are:

    - ``OUTPUT.md`` and ``OUTPUT.html``, pages with all tables and pictures;
    - ``OUTPUT.csv`` and ``OUTPUT.tex``, the main table;
    - ``OUTPUT.json``, the result without the translations;
    - ``OUTPUT.tsv.gz``, the translations;
    - ``OUTPUT.png`` (see :func:`plot`) and ``OUTPUT-differences.png`` (see :func:`plot_forest`), or
      ``.svg`` if ``output`` ends in ``.svg``.

    ``pictures`` are existing files, which the pages show, too.
    """
    drawn, forest = plot(result, output), plot_forest(result, output)
    shown_pictures = [path for path in drawn if path.suffix != ".json"] + forest + [*pictures]
    page = plots.with_ending(output, ".md")
    texts = {
        page: as_page(result, page, shown_pictures) + "\n",
        plots.with_ending(output, ".csv"): tables.comma_separated(numbers(result)),
        plots.with_ending(output, ".tex"): _as_latex(result),
        plots.with_ending(output, ".html"): as_html(result, shown_pictures),
    }
    for path, text in texts.items():
        with files.atomic_write(path) as file:
            file.write(text)
    translations = plots.with_ending(output, ".tsv.gz")
    tables.write_table(translations, result.translations)
    return [*texts, *drawn, *forest, translations]


def _as_latex(result: Result) -> str:
    """Return the main table in LaTeX as up to three tables, each with its title as a comment."""
    names, *columns = zip(*rows(result), strict=True)
    facts = [*_facts(result.systems[0])]
    left_out = ("SD (", "p (") if _comparisons(result) > 1 else ("SD (",)  # Holm's p is shown
    parts = {
        "scores, with half of the 95% interval; Holm: p, corrected for all comparisons": [
            column for column in columns if not column[0].startswith(left_out + tuple(facts))
        ],
        "sizes and training": [column for column in columns if column[0] in facts[:5]],
        "translation": [column for column in columns if column[0] in facts[5:]],
    }
    return "\n".join(
        f"% {title}\n{tables.latex([*zip(names, *part, strict=True)])}\n"
        for title, part in parts.items()
        if part
    )


def plot(result: Result, output: str | Path) -> list[Path]:
    """Plot BLEU with its interval against size and speed, and return the files written.

    Each size or speed has a panel if it is known of any system. If none is known, a single panel
    shows the systems side by side.
    """
    from matplotlib.lines import Line2D

    styles = _points(result)
    known = [panel for panel in PANELS if any(panel[2](row) is not None for row in result.systems)]
    panels = known or [("Quality", "systems", lambda row: 1.0 + [*styles].index(row.name))]
    with plots.new_figure(max(4.6, 3.5 * len(panels)), 4.4) as figure:
        axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
        for panel, (title, label, place) in zip(axes, panels, strict=True):
            for row in result.systems:
                if (x := place(row)) is not None:
                    _draw_score(panel, x, row.scores["BLEU"], styles[row.name])
            panel.set(title=title, xlabel=label)
            panel.set_xlim(0, panel.dataLim.x1 * 1.12)  # from zero, so that lengths compare
            panel.grid(True)
        axes[0].set_ylabel("BLEU (0 to 100) with 95% interval")
        if not known:
            axes[0].set_xticks([])
        handles = [
            Line2D([], [], ms=7, label=plots.legend_label(row.name), **styles[row.name])
            for row in result.systems
            if any(place(row) is not None for *_, place in panels)
        ]
        legend = figure.legend(handles=handles, loc="outside lower center")
        figure.set_figheight(4.0 + plots.show_names(legend))
        return plots.save_picture(figure, output, result.as_dict())


def _points(result: Result) -> dict[str, dict[str, Any]]:
    """Return each system's colour and marker as matplotlib's arguments."""
    looks = plots.looks(row.name for row in result.systems)
    return {name: look | {"ls": ""} for name, look in looks.items()}


def _draw_score(axes: Axes, x: float, bleu: Estimate, style: dict[str, Any]) -> None:
    # The interval is centred on the samples' mean; on a tiny test set, the value may lie outside.
    bounds = None
    if bleu.low is not None and bleu.high is not None:
        bounds = [[max(0, bleu.value - bleu.low)], [max(0, bleu.high - bleu.value)]]
    axes.errorbar([x], [bleu.value], bounds, capsize=3, lw=1.2, ms=7, **style)


def plot_forest(result: Result, output: str | Path) -> list[Path]:
    """Draw each system's difference from the baseline with its 95% interval, a panel per metric.

    Significant differences (p < 0.05 after Holm's correction) have filled marks. Return the files
    written; [] if there is only one system.
    """
    compared = [row for row in result.systems if row.name != result.baseline]
    if not compared:
        return []
    path, metrics = plots.with_ending(output, FOREST), list(result.signatures)
    styles = _points(result)
    with plots.new_figure(2.4 + 3.2 * len(metrics), 1.6 + 0.34 * len(compared)) as figure:
        panels = figure.subplots(1, len(metrics), squeeze=False, sharey=True)[0]
        for axes, metric in zip(panels, metrics, strict=True):
            axes.axvline(0, color="#888888", lw=1)
            for place, row in enumerate(compared):
                _draw_difference(axes, place, row.scores[metric], styles[row.name])
            title = f"{metric} (less is better)" if metric == LESS_IS_BETTER else metric
            axes.set_title(title)
            axes.grid(True, axis="x")
        filled = f"filled: p < {significance.LEVEL} (Holm)"
        label = f"difference to {result.baseline}, 95% interval\n{filled}"
        figure.supxlabel(label, fontsize="medium")
        panels[0].set_yticks(range(len(compared)), [row.name for row in compared])
        panels[0].set_ylim(len(compared) - 0.5, -0.5)
        plots.write_figure(figure, path)
    return [path]


def _draw_difference(axes: Axes, place: int, score: Estimate, style: dict[str, Any]) -> None:
    if (difference := score.difference) is None:
        return
    significant = score.p_holm is not None and score.p_holm < significance.LEVEL
    if difference.low is not None and difference.high is not None:
        axes.plot([difference.low, difference.high], [place] * 2, lw=1.6, color=style["color"])
    fill = style["color"] if significant else "white"
    axes.plot([difference.value], [place], ms=7, markerfacecolor=fill, **style)
