"""Read text and CSV files: plain, compressed or in a zip archive; whole or in parts."""

import csv
import itertools
import re
import shlex
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from fairseq_ext.text.cleaning import plain
from fairseq_ext.utils.archives import archive_errors, decompressed
from fairseq_ext.utils.errors import DataError
from fairseq_ext.utils.files import head

LONGEST = 1 << 24  # most bytes of a line
MOST = 1 << 30  # most bytes of a text that is read as a whole
NO_NUL = "tr -d '\\000'"
CR_TO_LF = "tr '\\r' '\\n'"
QUOTED = re.compile('"(?:[^"]|"")*"')
QUOTED_CELL = re.compile(
    rf"(?m)(?:(?<=[,;\t|])|(?<=[,;\t|] )|^){QUOTED.pattern}(?= *(?:[,;\t|]|$))"
)
UNCUT = " If it is CSV, give --csv; `fairseq-ext corpus translations` reads TMX, XLIFF and gettext."
LOOKED_AT = 20  # lines of a table searched for its delimiter, a header, numbers and quotes
KANA = re.compile("[\u3041-\u3096\u30a1-\u30fa]")  # letters of nearly every Japanese sentence
ZIP, ZSTD = b"PK\x03\x04", b"\x28\xb5\x2f\xfd"
# First bytes of compressed files, by the ending of their names.
MAGIC = {".gz": b"\x1f\x8b", ".bz2": b"BZh", ".xz": b"\xfd7zXZ\0", ".zip": ZIP, ".zst": ZSTD}
DOCUMENTS = {
    **dict.fromkeys(
        (".sgm", ".sgml"), "plain text (`fairseq-ext corpus translations` reads both sides)"
    ),
    **dict.fromkeys((".xlsx", ".xls", ".ods"), "CSV"),
    **dict.fromkeys((".docx", ".doc", ".odt", ".pptx", ".rtf", ".pdf"), "plain text"),
}
"""Endings of the names of files that are no text, and what to save them as."""


def compression(path: Path) -> bytes | None:
    """Return a compressed file's first bytes, a value of :data:`MAGIC`; None for other files."""
    start = head(path, 10)
    if start.startswith(b"BZh") and start[4:] != b"1AY&SY":
        return None  # a text whose first word begins with BZh
    return next(filter(start.startswith, MAGIC.values()), None)


def refuse_document(path: Path) -> None:
    """Refuse spreadsheets, documents and SGML, recognized by the ending of the file's name."""
    if form := DOCUMENTS.get(path.suffix.lower()):
        raise DataError(f"`{path}` is no text; save it as {form}, and give that.")


def through(path: Path | str, command: str) -> str:
    """Return a command line, for messages, that converts an input by the filter ``command``.

    If ``path`` is a Path, the command line converts this file. If it is a text, the input is
    standard input, and the command line is a pipe.
    """
    if isinstance(path, str):
        return f"… | {command} | fairseq-ext …"
    return f"{command} < {shlex.quote(str(path))} > {shlex.quote(f'{path}.new')}"


@contextmanager
def opened(path: Path, member: str | None = None) -> Iterator[IO[bytes]]:
    """Open a file for reading its bytes, and decompress gzip, bzip2, xz and zip.

    The format is recognized by the file's first bytes, or else by the ending of its name.
    ``member`` names the file to read in a ``.zip`` with several. Raise DataError if the file or the
    member is missing, damaged or compressed by zstd, or a ``.zip`` has several files and ``member``
    is None.
    """
    if not path.exists() or path.is_dir():
        raise DataError(f"`{path}` does not exist or is not a file; check the path.")
    packing = compression(path) or MAGIC.get(path.suffix.lower())
    if packing == ZSTD:  # the library for zstd would accept a truncated file
        raise DataError(f"{path} is compressed by zstd; unpack it, and give its text.")
    with archive_errors(path), ExitStack() as stack:
        if packing == ZIP:
            archive = stack.enter_context(zipfile.ZipFile(path))
            file = stack.enter_context(archive.open(_member(archive, path, member)))
        else:
            packed = stack.enter_context(path.open("rb"))
            file = stack.enter_context(decompressed(packed, packing or b""))
        yield file


def raw_lines(path: Path, member: str | None = None) -> Iterator[bytes]:
    """Yield the lines of a file as bytes, with their ends; decompress it like :func:`opened`."""
    with opened(path, member) as file:
        yield from bounded(file, path)


def bounded(file: IO[bytes], path: Path | str) -> Iterator[bytes]:
    r"""Yield an open file's lines as bytes; refuse overlong lines, and ``\r`` alone as line end."""
    number = 0
    while line := file.readline(LONGEST + 1):
        number += 1
        if number == 1 and b"\n" not in line and b"\r" in line.rstrip(b"\r") and b"\0" not in line:
            raise DataError(
                f"{path}, line 1: carriage return at each line's end, without a line feed; convert "
                f"it: {through(path, CR_TO_LF)}"
            )
        if len(line) > LONGEST:
            raise DataError(
                f"{path}, line {number}: longer than {LONGEST:,} bytes; split it into sentences."
            )
        yield line


def _member(archive: zipfile.ZipFile, path: Path, member: str | None) -> str:
    names = [name for name in archive.namelist() if not name.endswith("/")]
    listing = ", ".join(names)[:500]
    if member is not None:
        if member in names:
            return member
        raise DataError(f"`{path}` has no member `{member}`; it has {listing}.")
    texts = [name for name in names if not Path(name).name.startswith(("_", ".", "README"))]
    if len(texts) != 1:
        raise DataError(f"choose one member of `{path}` with --member: {listing}.")
    return texts[0]


def lines(path: Path, member: str | None = None) -> Iterator[tuple[int, str]]:
    """Yield ``(number from 1, line)`` of UTF-8 text, without line ends and byte-order mark.

    Only a line feed ends a line, with or without a carriage return before it. :func:`opened`
    explains ``member``. Raise DataError, with file and line, if the file is unreadable, or a line
    is too long or not UTF-8 text.
    """
    return decoded(raw_lines(path, member), path)


def decoded(raws: Iterable[bytes], path: Path | str, first: int = 1) -> Iterator[tuple[int, str]]:
    """Decode lines of UTF-8 bytes like :func:`lines`, numbered from ``first``."""
    for number, raw in enumerate(raws, first):
        text = _decode(raw, path, number).removesuffix("\n").removesuffix("\r")
        yield number, text.removeprefix("\ufeff") if number == 1 else text


def read_text(path: str | Path) -> str:
    """Read all of a UTF-8 text file, plain or compressed, with line ends; errors as in `lines`."""
    path, size, texts = Path(path), 0, list[str]()
    for number, raw in enumerate(raw_lines(path), start=1):
        size += len(raw)
        if size > MOST:
            raise DataError(f"`{path}` has more than {MOST:,} bytes; give a shorter file.")
        texts.append(_decode(raw, path, number))
    return "".join(texts)


def _decode(raw: bytes, path: Path | str, number: int) -> str:
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}, line {number}: not UTF-8, byte 0x{raw[error.start]:02x} at offset "
            f"{error.start} of the line; {_conversion(path, raw)}"
        ) from error
    if "\0" in text or "\x1b$" in text:
        fault = "NUL bytes" if "\0" in text else "escape sequences"
        raise DataError(f"{path}, line {number}: {fault}; {_conversion(path, raw)}")
    return text


def _conversion(path: Path | str, line: bytes) -> str:
    """Return advice on converting a file to UTF-8; UTF-16 and Shift-JIS are recognized."""
    if line.startswith((b"\xff\xfe", b"\xfe\xff")):
        return f"it seems to be UTF-16, convert it: {through(path, 'iconv -f utf-16 -t utf-8')}"
    if b"\0" in line:
        utf_16 = through(path, "iconv -f utf-16le -t utf-8")
        return f"if it is UTF-16, convert it: {utf_16}; or delete its NULs: {through(path, NO_NUL)}"
    with suppress(UnicodeDecodeError):
        if KANA.search(line.decode("shift_jis")):
            command = through(path, "iconv -f shift_jis -t utf-8")
            return f"it seems to be SHIFT_JIS, convert it: {command}"
    command = through(path, "iconv -f NAME -t utf-8")
    return f"if NAME is its encoding (such as cp1252 or gb18030), convert it: {command}"


def table_rows(path: Path, member: str | None = None) -> Iterator[tuple[int, list[str]]]:
    """Yield each row of a CSV file as ``(number of its first line, cells)``.

    A first line such as ``sep=;``, which Excel writes, names the separator of cells. Otherwise the
    separator is a comma, semicolon, tab or bar: the sign for which the most of the first
    :data:`LOOKED_AT` lines have as many as line 1. In a tie, it is the sign that line 1 has most
    often.

    Quoted cells may contain line ends. A carriage return within a line becomes a space. Raise
    DataError if the file is not CSV, or :func:`lines` refuses it.
    """
    numbered = ((number, line.replace("\r", " ")) for number, line in lines(path, member))
    top = [line for _, line in itertools.islice(numbered, LOOKED_AT)]
    separator = re.fullmatch("sep=(.)", top[0]) if top else None
    before = int(separator is not None)  # lines before the first row
    if not (top := top[before:]):
        return
    bare = QUOTED_CELL.sub("", "\n".join(top)).split("\n")

    def regularity(delimiter: str) -> tuple[bool, int, int]:
        cells = bare[0].count(delimiter)
        return cells > 0, sum(line.count(delimiter) == cells for line in bare), cells

    delimiter = separator[1] if separator else max(",;\t|", key=regularity)
    text = itertools.chain((f"{line}\n" for line in top), (f"{line}\n" for _, line in numbered))
    reader = csv.reader(text, delimiter=delimiter, skipinitialspace=True, strict=True)
    start = before + 1
    try:
        for row in reader:
            yield start, row
            start = before + reader.line_num + 1
    except csv.Error as error:
        raise DataError(
            f"`{path}`, from line {start}: not CSV ({error}); probably a quotation mark is missing "
            "or not doubled. Save it as CSV again, or give it as tab-separated lines."
        ) from error


def cells(
    numbered: Iterable[tuple[int, str]], path: Path, columns: tuple[int, int]
) -> Iterator[tuple[str, str]]:
    """Yield the cells ``(source, target)`` of each line of a tab-separated file.

    The cells are cleaned by :func:`~fairseq_ext.text.cleaning.plain`; an empty line has empty
    cells. ``numbered`` has the lines with their numbers. ``columns`` has the numbers of the source
    and target columns, from 1. Raise DataError if a line lacks one of them.
    """
    for number, line in numbered:
        fields = line.split("\t") if line else [""] * max(columns)
        require_columns(fields, path, number, columns)
        yield plain(fields[columns[0] - 1]), plain(fields[columns[1] - 1])


def require_columns(
    fields: Sequence[str], path: Path, number: int, columns: tuple[int, int]
) -> None:
    """Raise DataError, with path and line number, if a row of a table lacks one of ``columns``."""
    if len(fields) < max(columns):
        hint = UNCUT if number == len(fields) == 1 else ""
        raise DataError(
            f"`{path}`, line {number}: {len(fields)} column(s), but --columns "
            f"{columns[0]},{columns[1]} needs {max(columns)}.{hint}"
        )


@dataclass(frozen=True)
class Part:
    """Successive lines of a file, which can be read without the lines before them."""

    number: int  # number of the part, from 0
    path: Path  # the file
    offset: int  # bytes of the file before the part
    first: int  # number of the part's first line in the file, from 1
    before: int  # number of lines in the files before this one
    lines: int  # number of lines in the part

    def read(self) -> Iterator[bytes]:
        """Yield the part's lines as bytes, with their ends."""
        with self.path.open("rb") as file:
            file.seek(self.offset)
            yield from itertools.islice(file, self.lines)


def cut(paths: Sequence[Path], part_lines: int) -> list[Part]:
    """Cut each file into parts of at most ``part_lines`` lines; return the parts of all files."""
    parts: list[Part] = []
    before = 0
    for path in paths:
        offset, lines, offsets = 0, 0, list[int]()
        with path.open("rb") as file:
            for line in bounded(file, path):
                if lines % part_lines == 0:
                    offsets.append(offset)
                offset, lines = offset + len(line), lines + 1
        for first, start in zip(range(0, lines, part_lines), offsets, strict=True):
            count = min(part_lines, lines - first)
            parts.append(Part(len(parts), path, start, first + 1, before, count))
        before += lines
    return parts
