"""Read formats with a file or folder for each language: SGM, aligned lines, and help pages."""

import html
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from itertools import zip_longest
from pathlib import Path

from fairseq_ext.corpora.readers import LONGEST, Segment
from fairseq_ext.text import reading
from fairseq_ext.utils.errors import DataError

COMMENT = re.compile(r"<!--.*?(-->|\Z)", re.DOTALL)
DOCUMENT = r"<doc\b[^<>]*?\bdocid\s*=\s*[\"']?([^\"'>]+)"
SEGMENT = r"<seg\b([^<>]*)(?:(?<=/)>|>?(.*?)(</seg>|\Z))"  # attributes, text, end
DOCUMENT_OR_SEGMENT = re.compile(f"{DOCUMENT}|{SEGMENT}", re.IGNORECASE | re.DOTALL)
SEGMENT_TAG = re.compile(r"<seg\b", re.IGNORECASE)
LARGEST_PAGE = 1 << 24  # most bytes of a page
NUMBER = re.compile(r"\bid\s*=\s*[\"']?([^\"'\s<>]+)", re.IGNORECASE)
BLOCKS = {"p", "h1", "h2", "h3", "h4", "h5", "h6", "li", "td", "th", "dt", "dd", "title"}
VOID = {"br", "img", "wbr", "input", "meta", "link", "hr"}


def sgm(paths: tuple[Path, ...], src: str, tgt: str) -> Iterator[Segment]:
    """Yield the segments of two SGM files of WMT, source and target, in pairs.

    If the target file has several references for a segment, the first is paired with the source.
    Each further reference becomes a segment without texts and with a ``fault``. References are
    recognized by their document and number. If two source segments have equal documents and
    numbers, segments are paired in the order of the files instead.

    Raise DataError if paired segments differ in document or number, as in files of different test
    sets.
    """
    source, target = (list(_sgm_segments(path)) for path in paths)
    if len({item[:2] for item in source}) == len(source):  # unlike in documents without names
        first = dict[tuple[str, str], tuple[str, str, str]]()
        for item in target:
            if first.setdefault(item[:2], item) is not item:
                yield Segment("", "", item[0], "a further reference")
        target = list(first.values())
    for pair in zip_longest(source, target):
        names = [f"{item[0]}, segment {item[1]}" if item else "its end" for item in pair]
        if names[0] != names[1]:
            raise DataError(
                f"`{paths[0]}` has {names[0]} where `{paths[1]}` has {names[1]}; the files must "
                "be of the same test set."
            )
        yield Segment(pair[0][2], pair[1][2], pair[0][0])


def _sgm_segments(path: Path) -> Iterator[tuple[str, str, str]]:
    """Yield the document's name, the number and the text of each segment in an SGM file."""
    document, count = "", 0
    text = reading.read_text(path)
    for comment in COMMENT.finditer(text):
        if not comment[1]:
            line = text.count("\n", 0, comment.start()) + 1
            raise DataError(f"`{path}`, line {line}: this comment has no `-->`; repair it.")
    # Line ends replace a comment, so that later lines keep their numbers.
    text = COMMENT.sub(lambda comment: "\n" * comment[0].count("\n"), text)
    for match in DOCUMENT_OR_SEGMENT.finditer(text):
        if match[1]:
            document = match[1]
            continue
        content = (match[3] or "").replace("\r\n", "\n").replace("\n", " ")
        if match[4] == "" or len(content) > LONGEST or SEGMENT_TAG.search(content):
            line = text.count("\n", 0, match.start()) + 1
            raise DataError(
                f"`{path}`, line {line}: this <seg> has no </seg> before the next <seg>, or none "
                f"in {LONGEST:,} characters; get the file again, or repair it."
            )
        if number := NUMBER.search(match[2].removesuffix("/")):
            count += 1
            yield document, number[1], html.unescape(content).strip()
    if not count:
        raise DataError(f"`{path}` has no <seg id=…>; is it an SGM file?")


def lines(paths: tuple[Path, ...], src: str, tgt: str) -> Iterator[Segment]:
    """Yield the lines of two aligned text files in pairs; refuse files of different lengths."""
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
            raise DataError(f"`{path}`, line {number}: over {LONGEST:,} characters; split it.")
        yield text


class Paragraphs(HTMLParser):
    """A parser that collects an HTML page's paragraphs with an id; tags in them lose attributes."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        # The text of each paragraph, by its id; None for an id that several paragraphs have.
        self.texts: dict[str, str | None] = {}
        self._name, self._block, self._pieces = "", "", list[str]()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        name = dict(attrs).get("id")
        if tag in BLOCKS and name:
            self._close()
            self._name, self._block = name, tag
        elif self._name:
            self._pieces.append(f"<{tag}/>" if tag in VOID else f"<{tag}>")

    def handle_endtag(self, tag: str) -> None:
        if tag == self._block:
            self._close()
        elif self._name and tag not in VOID:
            self._pieces.append(f"</{tag}>")

    def handle_data(self, data: str) -> None:
        if self._name:
            self._pieces.append(data)

    def close(self) -> None:
        super().close()
        self._close()

    def _close(self) -> None:
        if self._name:
            repeated = self._name in self.texts
            self.texts[self._name] = None if repeated else "".join(self._pieces)
        self._name, self._block, self._pieces = "", "", []


def help_pages(paths: tuple[Path, ...], src: str, tgt: str) -> Iterator[Segment]:
    """Yield pairs of paragraphs that have the same id on the same page, from two folders of pages.

    The pages are HTML, such as LibreOffice's help. The ``document`` of a segment is the page's path
    in its folder. A source paragraph without a partner has a ``fault``. Pages that the second
    folder lacks are skipped.
    """
    first, second = paths
    for folder in paths:
        if not folder.is_dir():
            raise DataError(f"`{folder}` is not a folder; give the two folders of HTML pages.")
    shared = 0
    for page in pages(first):
        name = page.relative_to(first)
        if not (second / name).is_file():
            continue
        sources, targets = _paragraphs(page), _paragraphs(second / name)
        for paragraph, source in sources.items():
            target = targets.get(paragraph)
            if source is None or (target is None and paragraph in targets):
                yield Segment("", "", str(name), "two paragraphs have its id")
            elif target is None:
                yield Segment("", "", str(name), "no paragraph with its id in the translation")
            else:
                shared += 1
                yield Segment(source, target, str(name))
    if not shared:
        raise DataError(
            f"`{first}` and `{second}` have no paragraph with the same id on the same page; are "
            "they two languages of one edition?"
        )


def pages(folder: Path) -> list[Path]:
    """List the HTML pages in a folder and its subfolders, in alphabetical order."""
    return sorted(folder.rglob("*.htm*"))


def _paragraphs(page: Path) -> dict[str, str | None]:
    if page.stat().st_size > LARGEST_PAGE:
        raise DataError(f"`{page}` has over {LARGEST_PAGE:,} bytes; leave this page out.")
    parser = Paragraphs()
    parser.feed(reading.read_text(page))
    parser.close()
    return parser.texts
