"""Read and write a table of several systems' translations, from which ``compare`` can start.

The table is tab-separated, and compressed if its name ends in ``.gz``. It has a column for each
training, named ``SYSTEM`` or ``SYSTEM@RUN``, and a row for each sentence of the test set. If
``:tokens`` follows the name, the cells are words as the model wrote them, with subword pieces
joined; otherwise they are text.
"""

import csv
import gzip
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from fairseq_ext.evaluation.outputs import read_text
from fairseq_ext.utils import files
from fairseq_ext.utils.errors import ConfigError, DataError

TOKENS = ":tokens"
Runs = Sequence[Sequence[str]]


def write_table(
    path: Path, texts: Mapping[str, Runs], tokens: Mapping[str, Runs] | None = None
) -> None:
    """Write a table with a column for each run, as words for the systems in ``tokens``."""
    columns = []
    for name in texts:
        has_tokens = name in (tokens or {})
        for number, lines in enumerate(tokens[name] if has_tokens else texts[name], start=1):
            run = f"@{number}" if number > 1 else ""
            columns.append([f"{name}{run}{TOKENS if has_tokens else ''}", *lines])
    table = io.StringIO()
    csv.writer(table, delimiter="\t", lineterminator="\n").writerows(zip(*columns, strict=True))
    content = table.getvalue().encode()
    with files.atomic_write(path, "wb") as file:
        file.write(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)


def read_table(path: str | Path) -> dict[str, tuple[bool, list[list[str]]]]:
    """Return for each system of a table whether it has tokens, and the lines of each run."""
    rows = list(csv.reader(io.StringIO(read_text(path), newline=""), delimiter="\t"))
    heading = rows[0] if rows else []
    if not all(heading) or len(set(heading)) < len(heading) or len(rows) < 2:
        raise DataError(
            f"`{path}` is no table of translations, whose first line names each column once."
        )
    for number, row in enumerate(rows[1:], start=2):
        if len(row) != len(heading):
            raise DataError(
                f"`{path}`, row {number}: {len(row)} cells, but the first row names {len(heading)} "
                "columns."
            )
    systems: dict[str, tuple[bool, list[list[str]]]] = {}
    for title, *lines in zip(*rows, strict=True):
        column = title.removesuffix(TOKENS)
        name, separator, run = column.rpartition("@")
        if not (separator and name in systems and run.isascii() and run.isdigit()):
            name = column
        tokens, runs = systems.setdefault(name, (title != column, []))
        if tokens != (title != column):
            raise DataError(f"`{path}`: one run of `{name}` is text and another one tokens.")
        runs.append(lines)
    return systems


def read_system(path: str | Path, name: str) -> tuple[bool, list[list[str]]]:
    """Read the runs of one system, as :func:`read_table` returns them."""
    systems = read_table(path)
    if name not in systems:
        raise ConfigError(
            f"`--system {name}=table:{path}`: the table has {', '.join(systems)}, but not `{name}`."
        )
    return systems[name]
