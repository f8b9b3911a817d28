"""Format rows of text as a table for the terminal, Markdown, HTML or LaTeX, or as CSV."""

import csv
import html
import io
import re
from collections.abc import Sequence
from typing import Any

LATEX = str.maketrans(
    {char: f"\\{char}" for char in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"}
    | {"±": r"$\pm$", "–": "--"}
)


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Format rows in aligned columns; the last column is not padded."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Format cells of Markdown as a table, the heading first; escape text with `verbatim`."""
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


def verbatim(text: str) -> str:
    """Escape text so that Markdown shows it as it is."""
    escaped = re.sub(r"([\\`*_~\[\]$])", r"\\\1", html.escape(text, quote=False))
    return escaped.replace(r"\$", r"<span>\$</span>")  # GitHub's way to prevent formulas


def as_html(rows: Sequence[Sequence[str]]) -> str:
    """Format rows of text as a table of HTML, the heading first."""
    heading, *body = rows
    lines = [("th", heading), *(("td", row) for row in body)]
    cells = ("".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in row) for tag, row in lines)
    return "<table>\n" + "\n".join(f"<tr>{row}</tr>" for row in cells) + "\n</table>"


def latex(rows: Sequence[Sequence[str]]) -> str:
    """Format rows, the heading first, as a ``tabular`` with the rules of booktabs."""
    heading, *body = map(_latex_row, rows)
    columns = "l" + "r" * (len(rows[0]) - 1)
    return "\n".join(
        [
            rf"\begin{{tabular}}{{{columns}}}",
            r"\toprule",
            heading,
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
        ]
    )


def _latex_row(cells: Sequence[str]) -> str:
    row = " & ".join(cell.translate(LATEX) for cell in cells) + r" \\"
    # After `\\` and the rules above, LaTeX would read `[` or `*` as the start of an argument.
    return f"{{}}{row}" if row.lstrip().startswith(("[", "*")) else row


def comma_separated(rows: Sequence[Sequence[Any]]) -> str:
    """Format rows as CSV, one line each; None becomes an empty cell."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
