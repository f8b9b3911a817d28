"""Read text and tables, plain, compressed or in a zip, whole or in parts."""

import bz2
import csv
import gzip
import hashlib
import itertools
import lzma
import re
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from fairseq_ext.text.cleaning import plain
from fairseq_ext.utils.archives import whole_archive
from fairseq_ext.utils.errors import DataError

LONGEST = 1 << 24  # most bytes of a line
MOST = 1 << 30  # most bytes of a text that is read as a whole
QUOTED = re.compile('"[^"]*"')
LOOKED_AT = 20  # lines of a table searched for its delimiter, a header, numbers and quotes
KANA = re.compile("[\u3041-\u3096\u30a1-\u30fa]")  # in nearly every Japanese sentence
SPREADSHEETS = (".xlsx", ".xls", ".ods")
DOCUMENTS = (".docx", ".doc", ".odt", ".pptx", ".rtf", ".pdf")
COMPRESSED = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}


def refuse_document(path: Path) -> None:
    """Refuse spreadsheets and documents, whose bytes are no text, by the name's ending."""
    for endings, kind, text in (
        (SPREADSHEETS, "spreadsheet", "CSV"),
        (DOCUMENTS, "document", "plain text"),
    ):
        if path.suffix.lower() in endings:
            raise DataError(f"`{path}` is a {kind}; save it as {text}, and give that.")


def raw_lines(path: Path, member: str | None = None) -> Iterator[bytes]:
    """Yield the lines, ends included, of a plain, ``.gz``, ``.bz2``, ``.xz`` or ``.zip`` file."""
    if not path.exists() or path.is_dir():
        raise DataError(f"`{path}` does not exist or is no file; check the path.")
    with whole_archive(path), ExitStack() as stack:
        if path.suffix == ".zip":
            archive = stack.enter_context(zipfile.ZipFile(path))
            file = stack.enter_context(archive.open(_member(archive, path, member)))
        else:
            opened = COMPRESSED.get(path.suffix, open)
            file = stack.enter_context(opened(path, "rb"))
        yield from bounded(file, path)


def bounded(file: IO[bytes], path: Path) -> Iterator[bytes]:
    """Yield the lines of an open file; refuse an overlong one before it fills the memory."""
    number = 0
    while line := file.readline(LONGEST + 1):
        number += 1
        if number == 1 and b"\n" not in line and b"\r" in line.rstrip(b"\r") and b"\0" not in line:
            raise DataError(
                f"{path}, line 1: carriage return at each line's end, without a line feed; convert "
                f"the file: tr '\\r' '\\n' < {path} > {path}.lf"
            )
        if len(line) > LONGEST:
            raise DataError(
                f"{path}, line {number}: longer than {LONGEST:,} bytes; split it into sentences."
            )
        yield line


def _member(archive: zipfile.ZipFile, path: Path, member: str | None) -> str:
    names = [name for name in archive.namelist() if not name.endswith("/")]
    shown = ", ".join(names)[:500]
    if member is not None:
        if member in names:
            return member
        raise DataError(f"`{path}` has no member `{member}`; it has {shown}.")
    texts = [name for name in names if not Path(name).name.startswith(("_", ".", "README"))]
    if len(texts) != 1:
        raise DataError(f"choose one member of `{path}` with --member: {shown}.")
    return texts[0]


def lines(path: Path, member: str | None = None) -> Iterator[tuple[int, str]]:
    """Yield ``(number from 1, line)`` of UTF-8 text, without the line end and a byte-order mark.

    Only a line feed ends a line, with or without a carriage return before it. ``member`` is the
    file inside a ``.zip`` with several texts.

    Raises:
        DataError: the file is unreadable, or bytes are not UTF-8; the message names file, line
            and byte.
    """
    return decoded(raw_lines(path, member), path)


def decoded(raws: Iterable[bytes], path: Path, first: int = 1) -> Iterator[tuple[int, str]]:
    """Decode successive raw lines of a file into ``(number, line)``, like :func:`lines`."""
    for number, raw in enumerate(raws, first):
        text = _decode(raw, path, number).removesuffix("\n").removesuffix("\r")
        yield number, text.removeprefix("\ufeff") if number == 1 else text


def read_text(path: str | Path) -> str:
    """Read all of a UTF-8 text file, plain or compressed, with its line ends."""
    path, size, texts = Path(path), 0, list[str]()
    for number, raw in enumerate(raw_lines(path), start=1):
        size += len(raw)
        if size > MOST:
            raise DataError(f"`{path}` has more than {MOST:,} bytes; give a shorter file.")
        texts.append(_decode(raw, path, number))
    return "".join(texts)


def _decode(raw: bytes, path: Path, number: int) -> str:
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}, line {number}: not UTF-8, byte 0x{raw[error.start]:02x} at offset "
            f"{error.start} of the line; {_conversion(path, raw)}"
        ) from error
    if "\0" in text:
        raise DataError(f"{path}, line {number}: NUL bytes; {_conversion(path, raw)}")
    return text


def _conversion(path: Path, line: bytes) -> str:
    """Suggest a command that converts the file; guess its encoding from ``line``."""
    name = _encoding(line)
    seems = "if it is Latin-1" if name == "latin1" else f"it seems to be {name.upper()}"
    return f"{seems}, convert it: iconv -f {name} -t utf-8 {path} > {path}.utf8"


def _encoding(line: bytes) -> str:
    """Guess the encoding of bytes that are not UTF-8 or include NUL; return iconv's name for it."""
    if line.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"
    if b"\0" in line:
        return "utf-16le" if line[1::2].count(0) >= line[::2].count(0) else "utf-16be"
    for name in ("shift_jis", "euc-jp"):
        with suppress(UnicodeDecodeError):
            if KANA.search(line.decode(name)):
                return name
    return "latin1"


def table_rows(path: Path, member: str | None = None) -> Iterator[tuple[int, list[str]]]:
    """Yield ``(first line, row)`` of a CSV file, whose quoted cells may contain line ends.

    Cells are separated by commas, semicolons or tabs, whichever most lines have as often as the
    first line; of equal ones, the most frequent in the first line is chosen. A carriage return,
    which the format does not allow outside quotation marks, becomes a space.
    """
    numbered = ((number, line.replace("\r", " ")) for number, line in lines(path, member))
    top = [line for _, line in itertools.islice(numbered, LOOKED_AT)]
    if not top:
        return
    bare = [QUOTED.sub("", line) for line in top]

    def regularity(delimiter: str) -> tuple[bool, int, int]:
        cells = bare[0].count(delimiter)
        return cells > 0, sum(line.count(delimiter) == cells for line in bare), cells

    delimiter = max(",;\t", key=regularity)
    text = itertools.chain((f"{line}\n" for line in top), (f"{line}\n" for _, line in numbered))
    reader = csv.reader(text, delimiter=delimiter, strict=True)
    start = 1
    try:
        for row in reader:
            yield start, row
            start = reader.line_num + 1
    except csv.Error as error:
        raise DataError(
            f"`{path}`, from line {start}: no CSV ({error}); probably a quotation mark is missing "
            "or not doubled. Save it as CSV again, or give it as tab-separated lines."
        ) from error


def suggest_csv(fields: Sequence[str]) -> str:
    """Suggest ``--csv`` for a line without tabs that may be CSV; return "" for others."""
    return " If it is CSV, give --csv." if len(fields) == 1 and re.search("[,;]", fields[0]) else ""


def cells(
    numbered: Iterable[tuple[int, str]], path: Path, columns: tuple[int, int]
) -> Iterator[tuple[str, str]]:
    """Yield (source, target) from two columns of a tab-separated file, given as numbered lines."""
    for number, line in numbered:
        fields = line.split("\t")
        if len(fields) < max(columns):
            raise DataError(
                f"`{path}`, line {number}: {len(fields)} column(s), but --columns "
                f"{columns[0]},{columns[1]} needs {max(columns)}.{suggest_csv(fields)}"
            )
        yield plain(fields[columns[0] - 1]), plain(fields[columns[1] - 1])


@dataclass(frozen=True)
class Part:
    """A part of a text: successive lines of one file."""

    number: int  # number of the part, from 0
    path: Path  # the file
    offset: int  # bytes of the file before the part
    first: int  # number of the part's first line in the file, from 1
    before: int  # number of lines in the files before this one
    lines: int  # number of lines in the part

    def read(self) -> Iterator[bytes]:
        """Yield the lines of the part."""
        with self.path.open("rb") as file:
            file.seek(self.offset)
            yield from itertools.islice(file, self.lines)


def cut(paths: Sequence[Path], part_lines: int) -> tuple[list[Part], list[dict[str, Any]]]:
    """Read texts once, and cut each into parts.

    Returns the parts, and for the manifest each file's name, size, number of lines and SHA-256.
    """
    parts: list[Part] = []
    texts: list[dict[str, Any]] = []
    before = 0
    for path in paths:
        digest, offset, lines, offsets = hashlib.sha256(), 0, 0, list[int]()
        with path.open("rb") as file:
            for line in bounded(file, path):
                if lines % part_lines == 0:
                    offsets.append(offset)
                digest.update(line)
                offset, lines = offset + len(line), lines + 1
        for first, start in zip(range(0, lines, part_lines), offsets, strict=True):
            count = min(part_lines, lines - first)
            parts.append(Part(len(parts), path, start, first + 1, before, count))
        before += lines
        texts.append(
            {"name": path.name, "bytes": offset, "lines": lines, "sha256": digest.hexdigest()}
        )
    return parts, texts
