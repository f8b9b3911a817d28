"""Draw pictures: learning curves from logs, and heat maps from soft alignments.

A picture is a PNG, or an SVG if its name ends in ``.svg``. A JSON file of the same name has its
numbers.

Systems have colours, dashes and markers by their order. The colours are Okabe and Ito's, which
colour-blind readers can tell apart.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import math
import sys
import textwrap
import unicodedata
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fairseq_ext.evaluation.outputs import Sentence
from fairseq_ext.evaluation.training_log import Curves, Points
from fairseq_ext.text.bleu_tokenizers import is_spaceless
from fairseq_ext.text.subwords import METASPACE, remove_bpe
from fairseq_ext.utils import files
from fairseq_ext.utils.errors import ConfigError, DataError
from fairseq_ext.utils.json_files import write_json

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.legend import Legend

FONT = "DejaVu Sans"  # covers every Latin script, Vietnamese included, and comes with matplotlib
LAST_RESORT = "Last Resort High-Efficiency"  # matplotlib's font with a box for every character
EAST_ASIAN = ("CJK", "HIRAGANA", "KATAKANA", "HANGUL", "BOPOMOFO")  # first words of Unicode names
STYLE: dict[Any, Any] = {
    "font.family": FONT,
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": "#d9d9d9",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "text.parse_math": False,  # a token like "$" is not the start of a formula
    "svg.hashsalt": "fairseq-ext",  # the same data gives the same file
}
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("-", "--", ":", "-.")  # with seven colours, 28 lines look different
MARKERS = "osD^vP"  # six; with seven colours, 42 points look different
CROWD = 3  # with more runs, training curves are drawn only where validation is missing
ENDINGS = (".png", ".svg", ".json", ".md", ".csv", ".tex")  # endings that `with_ending` replaces
OTHER_KINDS = (".jpg", ".jpeg", ".pdf", ".gif", ".webp", ".tif", ".tiff", ".bmp", ".eps", ".ps")
PANELS = {
    "loss": ("Loss", "loss (bits per target token)"),
    "ppl": ("Perplexity", "perplexity (per target token, log scale)"),
    "bleu": ("Translation quality", "BLEU (0 to 100)"),
}
LONGEST = 34  # most letters in a line of a title or a legend
LEGEND_LINE = 0.17  # height of a line of a legend in inches
START, END = "<s>", "</s>"
_WIDEST, _TALLEST = 1600, 30_000  # pixels of a PNG; matplotlib's limit is 65,535
_LINE = 12.0  # width in inches of a row of heat maps
_ROW_SUM_TOLERANCE = 0.02  # because of six printed decimals, and half precision


def looks(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Choose a colour, dash and marker for each system of a picture, in the order of ``names``.

    Return matplotlib's arguments by name. 28 systems differ in colour or dash, and 42 in colour or
    marker.
    """
    return {
        name: {
            "color": PALETTE[place % len(PALETTE)],
            "ls": DASHES[place // len(PALETTE) % len(DASHES)],
            "marker": MARKERS[place % len(MARKERS)],
        }
        for place, name in enumerate(names)
    }


def legend_label(text: str) -> str:
    """Return a label that a legend shows even if it begins with ``_``.

    matplotlib leaves such labels out. So the label gets a space in front, which :func:`show_names`
    removes.
    """
    return f" {text}"


def show_names(legend: Legend) -> float:
    """Wrap the labels of a legend, and return its height in inches."""
    lines = 0.0
    for text in legend.get_texts():
        label = textwrap.fill(text.get_text().strip(), LONGEST)
        text.set(text=label, linespacing=1.1)
        lines += 1 + 0.76 * label.count("\n")  # lines within a label are closer
    return LEGEND_LINE * lines


def draw_legend(axes: Axes, top: float = -0.15) -> float:
    """Draw a legend under a panel, and return the legend's height in inches.

    ``top`` is the height of the legend's upper edge: 0 at the panel's lower edge, 1 at its upper.
    """
    return show_names(
        axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, top), handlelength=3.5)
    )


def plot_curves(runs: Mapping[str, Curves], output: str | Path) -> list[Path]:
    """Draw the learning curves of ``runs``, a panel per metric; return the files written."""
    names = [
        metric
        for metric in PANELS
        if any(curve.train.get(metric) or curve.valid.get(metric) for curve in runs.values())
    ]
    with new_figure(5.2 * len(names), 4.2) as figure:
        panels = figure.subplots(1, len(names), squeeze=False)[0]
        drawn = zip(panels, names, strict=True)
        legend = max(_draw_metric(axes, metric, runs) for axes, metric in drawn)
        title = textwrap.wrap(next(iter(runs)), LONGEST) if len(runs) == 1 else []
        figure.set_figheight(4.2 + legend + 0.2 * len(title[1:]))
        if title:
            figure.suptitle("\n".join(title))
        figure.draw_without_rendering()  # places the legend, now that the height is known
        return save_picture(
            figure, output, {"runs": {name: _data(runs[name], names) for name in runs}}
        )


def _data(curves: Curves, names: Iterable[str]) -> dict[str, dict[str, list[tuple[int, float]]]]:
    """Return a run's curves for JSON: ``{split: {metric: [(update, value), …]}}``.

    ``names`` are the metrics in the picture.
    """
    return {
        split: {metric: sorted(metrics[metric].items()) for metric in names if metric in metrics}
        for split, metrics in asdict(curves).items()
    }


def _draw_metric(axes: Axes, metric: str, runs: Mapping[str, Curves]) -> float:
    """Draw a metric's curves, training in pale colours; return the legend's height in inches."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

    for name, look in looks(runs).items():
        prefix = f"{name}, " if len(runs) > 1 else ""
        train, valid = runs[name].train.get(metric, {}), runs[name].valid.get(metric, {})
        if train and (len(runs) <= CROWD or not valid):
            pale = look | {"alpha": 0.55, "lw": 1.2}
            if len(runs) == 1:  # two colours distinguish training from validation
                pale["color"] = PALETTE[1]
            if len(train) > 1:  # a line needs two points
                pale["marker"] = None
            axes.plot(*_xy(train), label=legend_label(f"{prefix}training"), **pale)
        if valid:
            choose = max if metric == "bleu" else min
            update = choose(valid, key=valid.__getitem__)
            label = f"{prefix}validation (best {valid[update]:.4g} at {update:,})"
            line = look if len(valid) <= 30 else look | {"marker": None}
            axes.plot(*_xy(valid), ms=4, lw=1.8, label=legend_label(label), **line)
    title, unit = PANELS[metric]
    axes.set(title=title, xlabel="updates (optimizer steps)", ylabel=unit)
    if metric == "bleu":
        axes.set_ylim(bottom=max(0.0, axes.get_ylim()[0]))  # below 0 if every score is 0
    if metric == "ppl":
        axes.set_yscale("log")
        low, high = axes.get_ylim()
        few = high < 5 * low  # so small a range may have only one of the ticks 1, 2, 5, 10, 20 …
        axes.yaxis.set_major_locator(MaxNLocator(6) if few else LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:,g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlim(left=0)
    axes.grid(True)
    return draw_legend(axes)


def _xy(points: Points) -> list[tuple[float, ...]]:
    return list(zip(*sorted(points.items()), strict=True))


@dataclass(frozen=True)
class Alignment:
    """The attention of one translation to its source, and the tokens of both sides."""

    index: int  # number of the sentence
    source: tuple[str, ...]  # source tokens with end of sentence (columns)
    target: tuple[str, ...]  # target tokens with end of sentence (rows)
    weights: tuple[tuple[float, ...], ...]  # `[target][source]`, each row sums to 1
    title: str = ""  # title of the picture; if empty, the number is shown


def alignment(sentence: Sentence, *, merge_bpe: bool = False) -> Alignment:
    """Return the attention weights of a sentence's best hypothesis, with the tokens.

    With ``merge_bpe``, words take the place of subword pieces. The columns of a source word's
    pieces are summed, because attention to a word is attention to any of its pieces. The rows of a
    target word's pieces are averaged.

    Raise DataError if the sentence has no soft alignment, the alignment has another size than the
    tokens, or a row does not sum to 1.
    """
    name = f"Sentence {sentence.index}"
    weights = sentence.best.soft
    if sentence.source is None or not weights:
        raise DataError(
            f"{name} has no soft alignment; generate with `--print-alignment soft`, with a model "
            "that returns attention weights."
        )
    source = (*sentence.source.split(), END)
    target = (*sentence.best.text.split(), END)
    if len(weights[0]) == len(source) + 1:  # with `--source-bos`, <s> is not printed
        source = (START, *source)
    if (len(weights), len(weights[0])) != (len(target), len(source)):
        raise DataError(
            f"{name}: the alignment is {len(weights)} × {len(weights[0])}, but the sentences have "
            f"{len(target)} × {len(source)} tokens; generate without `--remove-bpe`, "
            "`--post-process` and `--replace-unk`."
        )
    for total in map(sum, weights):
        if not abs(total - 1) <= _ROW_SUM_TOLERANCE:  # or NaN
            raise DataError(
                f"{name}: attention weights sum to {total:.3f} instead of 1, so the columns are "
                "not the printed source words (fairseq's own `lstm` does this to padded "
                "sentences); generate with `--batch-size 1`."
            )
    unmerged = Alignment(sentence.index, source, target, weights)
    return _merged(unmerged) if merge_bpe else unmerged


def _merged(pieces: Alignment) -> Alignment:
    columns, rows = _first_pieces(pieces.source), _first_pieces(pieces.target)
    by_word = np.add.reduceat(np.array(pieces.weights), columns, axis=1)
    sizes = np.diff([*rows, len(pieces.target)])
    weights = np.add.reduceat(by_word, rows, axis=0) / sizes[:, None]
    source, target = _joined(pieces.source, columns), _joined(pieces.target, rows)
    return Alignment(pieces.index, source, target, tuple(map(tuple, weights.tolist())))


def _first_pieces(tokens: Sequence[str]) -> list[int]:
    """Return the position of each word's first subword piece.

    ``<s>`` at the beginning and ``</s>`` at the end count as words. In languages without spaces,
    such as Chinese, each piece counts as a word. There, SentencePiece's mark ``▁``, if it is a
    piece of its own, belongs to the word after it.
    """
    first = int(tokens[0] == START)
    words = tokens[first:-1]  # END is the last
    spaceless = is_spaceless(["".join(words).replace(METASPACE, " ")])
    marked = any(word.startswith(METASPACE) for word in words)
    places = [0] * first
    for i, word in enumerate(words):
        begins = word.startswith(METASPACE) if marked else not words[i - 1].endswith("@@")
        if i == 0 or begins or (spaceless and words[i - 1] != METASPACE):
            places.append(first + i)
    return [*places, len(tokens) - 1]


def _joined(tokens: Sequence[str], places: Sequence[int]) -> tuple[str, ...]:
    return tuple(_word(tokens[i:j]) for i, j in itertools.pairwise([*places, len(tokens)]))


def _word(pieces: Sequence[str]) -> str:
    if any(METASPACE in piece for piece in pieces):
        return "".join(pieces).replace(METASPACE, " ").strip() or METASPACE
    return remove_bpe(" ".join(pieces))


def plot_alignments(alignments: Sequence[Alignment], output: str | Path) -> list[Path]:
    """Draw heat maps, target words down and source words across; return the files written."""
    if not alignments:
        raise ConfigError("There is no sentence to draw; name at least one with `--index`.")
    width, height = (max(sizes) for sizes in zip(*map(_size, alignments), strict=True))
    columns = max(1, min(len(alignments), int(_LINE / width)))
    rows = math.ceil(len(alignments) / columns)
    size = (columns * width + 1.2, max(3.0, rows * height))  # with room for the colour bar
    with new_figure(*size) as figure:
        figure.set_layout_engine("constrained", w_pad=0.1, h_pad=0.1)
        panels = figure.subplots(rows, columns, squeeze=False).ravel()
        for axes, alignment in zip(panels, alignments, strict=False):
            image = _draw_alignment(axes, alignment)
        for axes in panels[len(alignments) :]:
            axes.remove()
        beside = panels[: len(alignments)].tolist()
        bar: Any = figure.colorbar(image, ax=beside, aspect=30, shrink=0.7)
        bar.set_label("attention weight\n(each row sums to 1)", fontsize=8.5, labelpad=6)
        bar.outline.set_visible(False)
        return save_picture(figure, output, {"sentences": list(map(asdict, alignments))})


def _size(alignment: Alignment) -> tuple[float, float]:
    """Return the width and height of a heat map, with its labels, in inches."""
    cell, letter = 0.34, 0.09
    left = 0.5 + letter * max(map(len, alignment.target))
    above = 0.75 + 0.85 * letter * max(map(len, alignment.source))
    return left + cell * len(alignment.source) + 0.25, above + cell * len(alignment.target) + 0.35


def _draw_alignment(axes: Axes, alignment: Alignment) -> Any:
    image = axes.imshow(alignment.weights, cmap="Blues", vmin=0.0, vmax=1.0)
    tilt: dict[str, Any] = {"rotation": 60, "ha": "left", "va": "center", "rotation_mode": "anchor"}
    axes.set_xticks(range(len(alignment.source)), alignment.source, **tilt)
    axes.set_yticks(range(len(alignment.target)), alignment.target)
    axes.set_xticks([i - 0.5 for i in range(len(alignment.source) + 1)], minor=True)
    axes.set_yticks([i - 0.5 for i in range(len(alignment.target) + 1)], minor=True)
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.tick_params(length=0, pad=4)
    axes.tick_params(which="minor", length=0)
    axes.grid(which="minor")
    axes.spines[:].set_visible(False)
    axes.set_title(alignment.title or f"Sentence {alignment.index}", loc="left")
    axes.set_xlabel("source word", fontsize=8.5, color="#555555", loc="left")
    axes.set_ylabel("translation", fontsize=8.5, color="#555555", loc="top")
    return image


@contextlib.contextmanager
def new_figure(width: float, height: float) -> Iterator[Figure]:
    """Yield an empty figure, sized in inches; in the block, matplotlib uses :data:`STYLE`."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        yield Figure(figsize=(width, height), layout="constrained")


def with_ending(output: str | Path, ending: str) -> Path:
    """Let the path ``output`` of a picture end in ``ending``, such as ``-curve.png``.

    If the path ends as listed in :data:`ENDINGS`, ``ending`` replaces that end. If ``output`` is an
    SVG, ``.png`` in ``ending`` becomes ``.svg``. Raise ConfigError for other kinds of pictures,
    such as ``.pdf``.
    """
    path = Path(output)
    suffix = path.suffix.lower()
    if suffix in OTHER_KINDS:
        raise ConfigError(
            f"`--output {path}`: pictures are written as PNG or SVG; give a name that ends "
            f"in .png, such as {path.with_suffix('.png')}."
        )
    if suffix == ".svg":
        ending = ending.replace(".png", ".svg")
    name = path.stem if suffix in ENDINGS else path.name
    return path.parent / f"{name}{ending}"


def save_picture(figure: Figure, output: str | Path, data: Mapping[str, Any]) -> list[Path]:
    """Write a picture and, under the same name, the JSON of its numbers; return both paths."""
    picture, numbers = with_ending(output, ".png"), with_ending(output, ".json")
    write_figure(figure, picture)
    write_json(numbers, data, indent=None)
    return [picture, numbers]


def write_figure(figure: Figure, path: Path) -> None:
    """Write a figure as SVG if ``path`` ends in ``.svg``, else as PNG with at most 64 colours."""
    from PIL import Image

    _add_fonts(figure)
    dpi = min(150, _WIDEST / figure.get_figwidth(), _TALLEST / figure.get_figheight())
    with warnings.catch_warnings(), files.atomic_write(path, "wb") as file:
        # `_add_fonts` has already warned of this.
        warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from font")
        if path.suffix == ".svg":
            figure.savefig(file, format="svg", dpi=dpi, metadata={"Date": None})
            return
        figure.savefig(pixels := io.BytesIO(), format="png", dpi=dpi)
        # 64 colours take a quarter of the bytes of full colour, and nobody sees the difference.
        palette = Image.open(pixels).convert("RGB").quantize(64, dither=Image.Dither.NONE)
        palette.save(file, format="png", optimize=True)


def _add_fonts(figure: Figure) -> None:
    """Let other installed fonts draw the characters that :data:`FONT` lacks; warn if none can."""
    from matplotlib.font_manager import findfont, findSystemFonts, fontManager
    from matplotlib.text import Text

    texts = figure.findobj(Text)
    characters = {letter for text in texts for letter in text.get_text() if letter.isprintable()}
    absent = characters - _covered(findfont(FONT), characters)
    if not absent:  # FONT alone gives the same file on every machine
        return
    listed = {font.fname for font in fontManager.ttflist}
    for path in {*findSystemFonts()} - listed:  # newer than matplotlib's cached list
        with contextlib.suppress(OSError, RuntimeError):
            fontManager.addfont(path)
    families = [FONT]
    installed = {font.name: font.fname for font in fontManager.ttflist if font.name != LAST_RESORT}
    for name, path in sorted(installed.items()):
        if coverage := _covered(path, absent):
            families.append(name)
            absent -= coverage
    for text in texts:
        text.set_fontfamily(families)
    if absent:
        print(
            f"warning: no installed font has {' '.join(sorted(absent)[:8])}"
            f"{' …' if len(absent) > 8 else ''}, so they are drawn as boxes; install a font such "
            f"as {' and '.join(sorted({_noto(character) for character in absent})[:4])}.",
            file=sys.stderr,
        )


def _noto(character: str) -> str:
    """Name the font of Google's Noto family for a character's script."""
    kind = unicodedata.category(character)[0]
    if kind == "P" and unicodedata.east_asian_width(character) in "FW":
        return "Noto Sans CJK"
    if kind not in "LM":
        return "Noto Sans Symbols"
    script = unicodedata.name(character, "").partition(" ")[0]
    return f"Noto Sans {'CJK' if script in EAST_ASIAN else script.title()}"


def _covered(path: str, characters: set[str]) -> set[str]:
    """Return those of the ``characters`` that a font file has; none if the file is damaged."""
    from matplotlib.font_manager import get_font

    try:
        charmap = get_font(path).get_charmap()
    except (OSError, RuntimeError):
        return set()
    return {character for character in characters if ord(character) in charmap}
