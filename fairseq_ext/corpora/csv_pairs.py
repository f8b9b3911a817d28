"""Read sentence pairs from a CSV file with a column for each language, plain or in a zip."""

from __future__ import annotations

import csv
import zipfile
from collections.abc import Iterator
from pathlib import Path

from fairseq_ext.text.cleaning import one_spaced
from fairseq_ext.text.reading import lines
from fairseq_ext.utils.archives import whole_archive
from fairseq_ext.utils.errors import DataError


def locate(data: Path, name: str) -> tuple[Path, str | None]:
    """Locate the file ``name``: (path, None) in a folder, (archive, member) in a zip.

    Raises:
        DataError: ``data`` is neither, or has no such file, or several.
    """
    if data.is_dir():
        for path in (data / name, data / f"{name}.zip"):  # the site packs single files, too
            if path.is_file():
                return locate(path, name) if path.suffix == ".zip" else (path, None)
        raise DataError(f"the folder `{data}` has no file `{name}`; check the path.")
    if not data.is_file():
        raise DataError(f"`{data}` does not exist; give a folder or a .zip with `{name}`.")
    if not zipfile.is_zipfile(data):
        raise DataError(f"`{data}` must be a folder or a .zip, but is neither.")
    with whole_archive(data), zipfile.ZipFile(data) as archive:
        members = [member for member in archive.namelist() if Path(member).name == name]
    if len(members) != 1:
        listed = ", ".join(members)[:500] or "none"
        raise DataError(f"`{data}` must have one file `{name}`, but has {listed}.")
    return data, members[0]


def rows(
    path: Path, columns: tuple[str, str], member: str | None = None
) -> Iterator[tuple[str, str]]:
    """Yield the cells of two columns, with each run of white space made one space.

    The first row names the columns. A field in quotes may hold commas, doubled quotes and line
    breaks. Rows are never left out, so that their number is their position in the file.

    Args:
        path: a ``.csv`` file, or a ``.zip`` (then ``member`` is the file in it).
        columns: names in the heading, source first.

    Raises:
        DataError: unreadable, no such column, or a malformed row; names file, row and line.
    """
    where = f"`{path}`" if member is None else f"`{member}` in `{path}`"
    # Control characters that the CSV format would stumble over (a carriage return outside quotes,
    # a NUL) are spaces to us anyway; the line feed alone is its business.
    plain = (line.replace("\r", " ").replace("\0", " ") for _, line in lines(path, member))
    text = (f"{line}\n" for line in plain)
    reader = csv.reader(text, strict=True)
    number = line = 0
    try:
        heading = [name.strip() for name in next(reader, [])]
        missing = [name for name in columns if name not in heading]
        if missing:
            shown = ",".join(heading)[:60]
            raise DataError(
                f"{where}: the first row must name a column `{missing[0]}`, but is `{shown}`."
            )
        places = [heading.index(name) for name in columns]
        line = reader.line_num
        for number, row in enumerate(reader, 1):
            if len(row) != len(heading):
                raise DataError(
                    f"{where}, row {number} (line {line + 1}): {len(row)} fields, but the "
                    f"heading has {len(heading)}; correct or delete the row."
                )
            yield _flat(row[places[0]]), _flat(row[places[1]])
            line = reader.line_num
    except csv.Error as error:
        raise DataError(
            f"{where}, row {number + 1} (from line {line + 1}): {error}; probably a quotation "
            "mark is missing or not doubled. Correct or delete the row."
        ) from None


def _flat(cell: str) -> str:
    if cell.isprintable() and "  " not in cell:  # most are, and this is five times as fast
        return cell.strip()
    return one_spaced(cell)
