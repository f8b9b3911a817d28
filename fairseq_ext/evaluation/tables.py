"""Format tables for the terminal, Markdown, HTML, LaTeX and CSV; store translations in a table.

``compare`` can read translations from a table that it wrote. Such a table is tab-separated, and
compressed if its name ends in ``.gz``. It has a column for each run (training), named ``SYSTEM`` or
``SYSTEM@RUN``, and a row for each sentence of the test set. The end of a column's name says what
its cells are:

- ``:tokens``: tokens as the model wrote them, but with subword pieces joined to words;
- ``:tokens=LANG``: such tokens, which Moses' rules for the language LANG turn into text;
- no such ending: text.
"""

import csv
import gzip
import html
import io
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fairseq_ext.text.reading import LONGEST, read_text
from fairseq_ext.utils import files
from fairseq_ext.utils.errors import DataError

TOKENS = ":tokens"
# Matches every text.
COLUMN = re.compile(rf"(.*?)({TOKENS}(?:=(.+))?)?", re.DOTALL)

LATEX = str.maketrans(
    {char: f"\\{char}" for char in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"}
    | {"±": r"$\pm$", "–": "--"}
)


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Format rows as text in aligned columns for the terminal, without trailing spaces."""
    widths = [max(map(_width, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        pairs = zip(row, widths, strict=True)
        lines.append("  ".join(cell + " " * (width - _width(cell)) for cell, width in pairs))
    return "\n".join(map(str.rstrip, lines))


def _width(text: str) -> int:
    """Return how many columns of a terminal a text takes: two for each letter of East Asia."""
    marks = sum(unicodedata.category(letter) == "Mn" for letter in text)
    return len(text) - marks + sum(unicodedata.east_asian_width(letter) in "FW" for letter in text)


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Format rows of Markdown as a Markdown table; the first row is the heading."""
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


def verbatim(text: str) -> str:
    """Escape text so that Markdown shows it as it is."""
    escaped = re.sub(r"([\\`*_~\[\]$])", r"\\\1", html.escape(text, quote=False))
    return escaped.replace(r"\$", r"<span>\$</span>")  # GitHub's way to prevent formulas


def as_html(rows: Sequence[Sequence[str]]) -> str:
    """Format rows of text as an HTML table; the first row is the heading."""
    heading, *body = rows
    lines = [("th", heading), *(("td", row) for row in body)]
    cells = ("".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in row) for tag, row in lines)
    return "<table>\n" + "\n".join(f"<tr>{row}</tr>" for row in cells) + "\n</table>"


def latex(rows: Sequence[Sequence[str]]) -> str:
    """Format rows of text as a LaTeX ``tabular`` of booktabs; the first row is the heading."""
    heading, *body = [[cell.translate(LATEX) for cell in row] for row in rows]
    columns = "@{}l" + "r" * (len(heading) - 1) + "@{}"
    return "\n".join(
        [
            rf"\begin{{tabular}}{{{columns}}}",
            r"\toprule",
            _latex_row(map(_stacked, heading)),
            r"\midrule",
            *map(_latex_row, body),
            r"\bottomrule",
            r"\end{tabular}",
        ]
    )


def _stacked(heading: str) -> str:
    """Put each word of a LaTeX heading on its own line, which keeps the table narrow."""
    words = heading.split(" ")
    return heading if len(words) == 1 else "\\shortstack[r]{" + r"\\".join(words) + "}"


def _latex_row(cells: Iterable[str]) -> str:
    row = " & ".join(cells) + r" \\"
    # After `\\` and the rules above, LaTeX would read `[` or `*` as the start of an argument.
    return f"{{}}{row}" if row.lstrip().startswith(("[", "*")) else row


def comma_separated(rows: Sequence[Sequence[Any]]) -> str:
    """Format rows as CSV, one line each; None becomes an empty cell."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


class Translations(NamedTuple):
    """The translations by all runs of a system, as tokens or as text, for storing in a table."""

    has_tokens: bool  # whether the lines are tokens, rather than text
    # The language whose Moses rules turn the tokens into text; None if no rules are needed.
    language: str | None
    runs: list[list[str]]  # the lines of each run


def write_table(path: Path, systems: Mapping[str, Translations]) -> None:
    """Write a table of translations with a column for each run of each system.

    The file is compressed by gzip, so ``path`` must end in ``.gz``.
    """
    columns = []
    for name, (has_tokens, language, runs) in systems.items():
        ending = f"{TOKENS}={language}" if language else TOKENS if has_tokens else ""
        for number, lines in enumerate(runs, start=1):
            run = f"@{number}" if number > 1 else ""
            columns.append([f"{name}{run}{ending}", *lines])
    table = io.StringIO()
    csv.writer(table, delimiter="\t", lineterminator="\n").writerows(zip(*columns, strict=True))
    with files.atomic_write(path, "wb") as file:
        file.write(gzip.compress(table.getvalue().encode(), mtime=0))


def read_table(path: str | Path) -> dict[str, Translations]:
    """Read and check a table of translations; return the translations by system.

    Raise DataError if it is not such a table, or one column of a system is marked as tokens
    and another is not.
    """
    limit = csv.field_size_limit()  # it holds for all readers in the process, so it is restored
    try:
        csv.field_size_limit(max(LONGEST, limit))  # a cell may be as long as a line of text
        rows = list(csv.reader(io.StringIO(read_text(path), newline=""), delimiter="\t"))
    except csv.Error as error:
        raise DataError(f"`{path}` is not a table of translations: {error}.") from error
    finally:
        csv.field_size_limit(limit)
    heading = rows[0] if rows else []
    if not all(heading) or len(set(heading)) < len(heading) or len(rows) < 2:
        raise DataError(
            f"`{path}` is not a table of translations, whose first line names each column once; "
            "give the .tsv.gz that `compare` wrote."
        )
    for number, row in enumerate(rows[1:], start=2):
        if len(row) != len(heading):
            raise DataError(
                f"`{path}`, row {number}: {len(row)} cells, but the first row names {len(heading)} "
                "columns."
            )
    systems: dict[str, Translations] = {}
    for title, *lines in zip(*rows, strict=True):
        column, tokens, language = COLUMN.fullmatch(title).groups()  # type: ignore[union-attr]
        name, separator, run = column.rpartition("@")
        if not (separator and name in systems and run.isascii() and run.isdigit()):
            name = column
        translations = Translations(tokens is not None, language, [])
        former = systems.setdefault(name, translations)
        if former[:2] != translations[:2]:
            raise DataError(
                f"`{path}`: all runs of `{name}` must be text, or all tokens of one language."
            )
        former.runs.append(lines)
    return systems
