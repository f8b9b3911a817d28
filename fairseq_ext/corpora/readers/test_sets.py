"""Read test sets of WMT: SGM files, one for each language, and the XML files used since 2021."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

from fairseq_ext.corpora.readers import LONGEST, Segment, is_language
from fairseq_ext.corpora.readers.xml_stream import elements, marked_text
from fairseq_ext.text import reading
from fairseq_ext.utils.errors import DataError

DOCUMENT = re.compile(r"<doc\b[^>]*?\bdocid\s*=\s*[\"']?([^\"'>]+)", re.IGNORECASE)
SEGMENT = re.compile(r"<seg\b[^>]*?\bid\s*=\s*[\"']?([^\"'\s>]+)[^>]*>(.*?)</seg>", re.I | re.S)


def sgm(paths: tuple[Path, ...], src: str, tgt: str) -> Iterator[Segment]:
    """Read two SGM files side by side.

    Raises:
        DataError: a file cannot be read, or document or segment numbers differ.
    """
    for pair in zip_longest(*(_sgm_segments(path) for path in paths)):
        names = [f"{item[0]}, segment {item[1]}" if item else "its end" for item in pair]
        if names[0] != names[1]:
            raise DataError(
                f"`{paths[0]}` has {names[0]} where `{paths[1]}` has {names[1]}; the files must "
                "be of the same test set."
            )
        yield Segment(pair[0][2], pair[1][2], pair[0][0])


def _sgm_segments(path: Path) -> Iterator[tuple[str, str, str]]:
    document, count = "", 0
    for text in _lines(path):
        if match := DOCUMENT.search(text):
            document = match[1]
        for match in SEGMENT.finditer(text):
            count += 1
            yield document, match[1], html.unescape(match[2]).strip()
    if not count:
        raise DataError(f"`{path}` has no <seg id=…> in one line; is it an SGM file?")


def wmt_xml(paths: tuple[Path, ...], src: str, tgt: str) -> Iterator[Segment]:
    """Read an XML test set: each source segment with its translation in the first reference.

    Raises:
        DataError: the file cannot be read, has other languages, or segment numbers differ.
    """
    count = 0
    for _, document in elements(paths[0], "doc"):
        name = document.get("id", "")
        sources = [side for side in document.iter("src") if is_language(side.get("lang", ""), src)]
        references = [
            side for side in document.iter("ref") if is_language(side.get("lang", ""), tgt)
        ]
        if not sources or not references:
            continue
        sides = [
            {segment.get("id", ""): marked_text(segment) for segment in side.iter("seg")}
            for side in (sources[0], references[0])
        ]
        if list(sides[0]) != list(sides[1]):
            raise DataError(
                f"`{paths[0]}`, document `{name}`: the segments of source and reference have "
                "different numbers; get the file again."
            )
        count += len(sides[0])
        for number, source in sides[0].items():
            yield Segment(source, sides[1][number], name)
    if not count:
        raise DataError(f"`{paths[0]}` has no document with a source in {src} and one in {tgt}.")


def lines(paths: tuple[Path, ...], src: str, tgt: str) -> Iterator[Segment]:
    """Read two aligned text files, line by line.

    Raises:
        DataError: a file cannot be read, or one has more lines.
    """
    for number, (source, target) in enumerate(zip_longest(*map(_lines, paths)), 1):
        if source is None or target is None:
            longer = paths[source is None]
            raise DataError(
                f"`{longer}` goes on at line {number}, where the other file ends; lines must "
                "correspond."
            )
        yield Segment(source, target)


def _lines(path: Path) -> Iterator[str]:
    for number, text in reading.lines(path):
        if len(text) > LONGEST:
            raise DataError(f"`{path}`, line {number}: longer than {LONGEST:,} characters.")
        yield text
