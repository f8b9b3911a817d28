"""Read sentence pairs from the files in the archives of IWSLT and WMT."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import zip_longest
from pathlib import Path

from fairseq_ext.text.reading import raw_lines
from fairseq_ext.utils.errors import DataError

RawPair = tuple[str | None, str | None]  # None: the line is not UTF-8

ABOUT_THE_TALK = (b"<url>", b"<talkid>", b"<keywords>")
SPOKEN_TOO = re.compile(rb"</?(?:title|description)>")
SEGMENT = re.compile(rb"<seg id[^>]*>\s*(.*?)\s*(?:</seg>|$)", re.IGNORECASE | re.DOTALL)


def raw_pairs(source: Path, target: Path, form: str) -> Iterator[RawPair]:
    """Yield the pairs of two files in one of :data:`FORMS`.

    Only a line feed ends a line. A byte-order mark is dropped.

    Raises:
        DataError: a missing or damaged file, or unequal numbers of sentences (both are named).
    """
    read = FORMS[form]
    sides = (enumerate(read(_lines(path)), 1) for path in (source, target))
    counts = [0, 0]
    for first, second in zip_longest(*sides):
        for side, numbered in enumerate((first, second)):
            counts[side] = numbered[0] if numbered else counts[side]
        if first and second:
            yield _text(first[1]), _text(second[1])
    if counts[0] != counts[1]:
        raise DataError(
            f"`{source}` has {counts[0]} sentences, `{target}` {counts[1]}; they must have "
            "equally many. Download them again."
        )


def _lines(path: Path) -> Iterator[bytes]:
    if not path.is_file():
        raise DataError(f"`{path}` does not exist: the archive is not the official one.")
    for number, line in enumerate(raw_lines(path)):
        yield line.removeprefix(b"\xef\xbb\xbf") if number == 0 else line


def _text(line: bytes) -> str | None:
    try:
        return line.rstrip(b"\r\n").decode("utf-8")
    except UnicodeDecodeError:
        return None


def _plain(lines: Iterator[bytes]) -> Iterator[bytes]:
    return lines


def _tagged(lines: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the sentences, titles and descriptions; drop a talk's address, number and keywords."""
    for line in lines:
        if not any(tag in line for tag in ABOUT_THE_TALK):
            yield SPOKEN_TOO.sub(b"", line)


def _segments(lines: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the text inside ``<seg id="…">``. Entities stay, as in the scripts of the papers."""
    for line in lines:
        if match := SEGMENT.search(line):
            yield match[1]


FORMS: dict[str, Callable[[Iterator[bytes]], Iterator[bytes]]] = {
    "lines": _plain,
    "tagged": _tagged,
    "segments": _segments,
}
