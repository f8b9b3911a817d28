"""Reading sentence pairs: tab-separated or two aligned files, plain, gzipped or inside a zip."""

from __future__ import annotations

import gzip
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import BinaryIO

from textfiles import plain


@contextmanager
def _opened(path: Path, member: str | None) -> Iterator[BinaryIO]:
    """The file's decompressed bytes.

    Raises:
        ValueError: missing, not a file, or a damaged or ambiguous archive.
    """
    if not path.is_file():
        raise ValueError(f"`{path}` does not exist or is no file; check the path.")
    try:
        if path.suffix == ".zip":
            with (
                zipfile.ZipFile(path) as archive,
                archive.open(_member(archive, path, member)) as f,
            ):
                yield f
        elif path.suffix == ".gz":
            with gzip.open(path) as f:
                yield f
        else:
            with path.open("rb") as f:
                yield f
    except (zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise ValueError(f"`{path}` is damaged ({error}); download it again.") from error


def _member(archive: zipfile.ZipFile, path: Path, wanted: str | None) -> str:
    names = [name for name in archive.namelist() if not name.endswith("/")]
    if wanted is not None:
        if wanted in names:
            return wanted
        raise ValueError(f"`{path}` has no member `{wanted}`; it has {', '.join(names)}.")
    texts = [name for name in names if not Path(name).name.startswith(("_", ".", "README"))]
    if len(texts) != 1:
        raise ValueError(f"choose one member of `{path}` with --member: {', '.join(names)}.")
    return texts[0]


def lines(path: Path, member: str | None = None) -> Iterator[tuple[int, str]]:
    """Yield ``(number from 1, line)`` without the line end; a byte-order mark is dropped.

    Only a line feed (with or without a carriage return before it) ends a line.

    Args:
        path: a plain, ``.gz`` or ``.zip`` file in UTF-8.
        member: the file inside a ``.zip``; not needed when it holds just one text.

    Raises:
        ValueError: an unreadable file, or bytes that are not UTF-8 (file, line and byte named).
    """
    with _opened(path, member) as file:
        for number, raw in enumerate(file, 1):
            try:
                text = raw.decode("utf-8")
            except UnicodeDecodeError as error:
                raise ValueError(
                    f"`{path}`, line {number}, byte {error.start + 1} (0x{raw[error.start]:02x}): "
                    "not UTF-8; convert the file, for instance with iconv."
                ) from error
            text = text.removesuffix("\n").removesuffix("\r")
            yield number, text.removeprefix("\ufeff") if number == 1 else text


def tab_separated(
    path: Path, columns: tuple[int, int], member: str | None = None
) -> Iterator[tuple[str, str]]:
    """Yield (source, target) from two ``columns`` (counted from 1) of a tab-separated file.

    Raises:
        ValueError: as :func:`lines`; or a line with too few columns, which is named.
    """
    for number, line in lines(path, member):
        cells = line.split("\t")
        if len(cells) < max(columns):
            raise ValueError(
                f"`{path}`, line {number}: {len(cells)} tab-separated column(s), but --columns "
                f"{columns[0]},{columns[1]} needs {max(columns)}."
            )
        yield plain(cells[columns[0] - 1]), plain(cells[columns[1] - 1])


def aligned(source: Path, target: Path) -> Iterator[tuple[str, str]]:
    """Yield (source, target) from two files whose lines belong together.

    Raises:
        ValueError: as :func:`lines`; or unequal numbers of lines (both are named).
    """
    both = zip_longest(lines(source), lines(target))
    for first, second in both:
        if first is None or second is None:
            rest = sum(1 for _ in both) + 1
            shorter = (first or second)[0] - 1
            counts = (shorter + rest, shorter) if second is None else (shorter, shorter + rest)
            raise ValueError(
                f"`{source}` has {counts[0]} lines, `{target}` {counts[1]}; "
                "aligned files must have equally many."
            )
        yield plain(first[1]), plain(second[1])
