"""Check a corpus before fairseq reads it: text and dictionaries.

fairseq reads text in Python's universal-newline mode and splits each line at white space. So
``\\n``, ``\\r\\n`` and a lone ``\\r`` end a line. Form feed, next line (U+0085), no-break space
and the line and paragraph separators (U+2028, U+2029) only separate words, like a space, and are
accepted. A lone ``\\r`` is refused: it shifts every later sentence against its translation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from fairseq_ext.utils.errors import DataError
from fairseq_ext.utils.files import require_file

BLOCK = 1 << 24  # bytes read at a time; no sensible line is longer
MAX_TOKENS = 10_000  # a longer line would be dropped in training, or exhaust the memory
EXAMPLES = 5  # line numbers named in one message
BYTE_ORDER_MARKS = {
    b"\xef\xbb\xbf": "UTF-8",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}
CONTROL = re.compile(r"(?<!\S)(?:</?s>|<pad>)(?!\S)")
READERS = {
    b"\x1f\x8b": "zcat",
    b"BZh91AY&SY": "bzcat",
    b"\xfd7zXZ": "xzcat",
    b"\x28\xb5\x2f\xfd": "zstdcat",
    b"PK\x03\x04": "unzip -p",
}
"""Commands that print the text of a compressed file, by the file's first bytes."""


class _Lines:
    """The count of lines with one kind of fault, and the numbers of the first few."""

    def __init__(self) -> None:
        self.count = 0
        self.first: list[int] = []

    def add(self, number: int) -> None:
        self.count += 1
        if self.count <= EXAMPLES:
            self.first.append(number)

    def __str__(self) -> str:
        remainder = self.count - len(self.first)
        named = ", ".join(map(str, self.first)) + (f" and {remainder:,} more" if remainder else "")
        return f"line{'s' if self.count > 1 else ''} {named}"


@dataclass
class _Scan:
    """The findings of one pass over a text."""

    lines: int = 0
    returns: _Lines = field(default_factory=_Lines)
    empty: _Lines = field(default_factory=_Lines)
    long: _Lines = field(default_factory=_Lines)
    controls: _Lines = field(default_factory=_Lines)


def check_text(
    path: str | Path,
    *,
    empty_lines: bool = False,
    max_tokens: int | None = MAX_TOKENS,
    controls: bool = True,
) -> int:
    """Check that fairseq will read a text file as one sentence per line; return the line count.

    Args:
        path: a UTF-8 file with ``\\n`` or ``\\r\\n`` line ends; the last may be missing.
        empty_lines: whether to allow lines without words, which fairseq keeps as empty sentences.
        max_tokens: the most words in a line, or None.
        controls: whether to allow words that fairseq takes for the beginning, the end or the
            padding of a sentence.

    Raises:
        DataError: a line is faulty; the message has its number, the byte if useful, and a remedy.
    """
    path = require_file(path, "text file")
    scan = _scan(path, max_tokens)
    if not scan.lines:
        raise DataError(f"{path} is empty; it needs at least one line.")
    if scan.returns.count:
        raise DataError(
            f"{path}, {scan.returns}: carriage return inside the line, which fairseq would take "
            f"for the end of a sentence. Delete it: tr -d '\\r' < {path} > {path}.clean"
        )
    if scan.long.count:
        raise DataError(
            f"{path}, {scan.long}: more than {max_tokens:,} tokens in one line. "
            "Split the line into sentences, or delete it from both files of the pair."
        )
    if scan.controls.count and not controls:
        raise DataError(
            f"{path}, {scan.controls}: `<s>`, `</s>` or `<pad>` as a word, which fairseq would "
            "take for the begin, the end or the padding of a sentence. Learn pieces of the text "
            "(`fairseq-ext subwords`), which keep such words, or delete them."
        )
    if scan.empty.count and not empty_lines:
        raise DataError(
            f"{path}, {scan.empty}: empty, and fairseq would train on an empty sentence. "
            "Delete the same lines from both files of the pair."
        )
    return scan.lines


def _scan(path: Path, max_tokens: int | None) -> _Scan:
    """Read a text once, in blocks of whole lines.

    Raises:
        DataError: the file is not text, or a line is far too long to read on.
    """
    scan = _Scan()
    for offset, block in _blocks(path):
        if offset == 0:
            _require_no_mark(path, block)
        if len(block) >= 2 * BLOCK:
            raise DataError(
                f"{path}, line {scan.lines + block.count(10) + 1}: longer than {BLOCK:,} bytes. "
                "Split the text into one sentence per line."
            )
        text = _decode(path, block, offset, scan.lines)
        lines = text.removesuffix("\n").split("\n")
        for number, line in enumerate(lines, start=scan.lines + 1):
            if not line or line.isspace():
                scan.empty.add(number)
            elif max_tokens and len(line) >= 2 * max_tokens and len(line.split()) > max_tokens:
                scan.long.add(number)
        if CONTROL.search(text):
            for number, line in enumerate(lines, start=scan.lines + 1):
                if CONTROL.search(line):
                    scan.controls.add(number)
        if "\r" in text:
            for number, line in enumerate(lines, start=scan.lines + 1):
                if "\r" in line.removesuffix("\r"):
                    scan.returns.add(number)
        scan.lines += len(lines)
    return scan


def check_parallel(
    source: str | Path,
    target: str | Path,
    *,
    empty_lines: bool = False,
    max_tokens: int | None = MAX_TOKENS,
    controls: bool = True,
) -> int:
    """Check both sides of a parallel corpus; return their line count.

    Raises:
        DataError: as for :func:`check_text`, or the files have different line counts.
    """
    counts = [
        check_text(path, empty_lines=empty_lines, max_tokens=max_tokens, controls=controls)
        for path in (source, target)
    ]
    if counts[0] != counts[1]:
        raise DataError(
            f"{source} has {counts[0]:,} lines but {target} has {counts[1]:,}. "
            "Line n of one must be the translation of line n of the other."
        )
    return counts[0]


def check_dictionary(path: str | Path) -> None:
    """Check a fairseq dictionary: one ``<token> <count>`` per line, no token twice.

    Raises:
        DataError: a line is faulty; the message names it.
    """
    path = require_file(path, "dictionary")
    row = re.compile(r"(.+) -?\d+( #fairseq:overwrite)?")
    first_lines: dict[str, int] = {}
    text = _decode(path, path.read_bytes(), 0, 0)
    for number, line in enumerate(text.removesuffix("\n").split("\n"), start=1):
        match = row.fullmatch(line.rstrip())
        if match is None:
            raise DataError(
                f"{path}, line {number}: `{line[:60]}` is not `<token> <count>`. "
                "Give a dict.*.txt that fairseq-preprocess wrote."
            )
        if match[1] in first_lines and not match[2]:
            raise DataError(
                f"{path}, line {number}: `{match[1][:60]}` is already in line "
                f"{first_lines[match[1]]}. Delete one of the two."
            )
        first_lines.setdefault(match[1], number)


def check_merges(path: str | Path, label: str = "file of merges") -> None:
    """Check merges of subword-nmt: two pieces in each line, after an optional ``#version: 0.2``.

    Args:
        path: the file.
        label: the kind of file, for the message if it is missing.

    Raises:
        DataError: a line is faulty; the message names it.
    """
    path = require_file(path, label)
    data = path.read_bytes()
    text = _decode(path, data, 0, 0).replace("\r\n", "\n").replace("\r", "\n")
    first = 1
    if text.startswith("#version"):
        first, (version, _, text) = 2, text.partition("\n")
        if not re.fullmatch(r"#version: 0\.[12]\s*", version):
            raise DataError(
                f"{path}, line 1: `{version[:60]}` is not a version that subword-nmt can apply "
                "(0.1 and 0.2). Give a file that its `learn-bpe` wrote."
            )
    for number, line in enumerate(text.rstrip("\n").split("\n"), start=first):
        if len(line.strip(" ").split(" ")) != 2:
            raise DataError(
                f"{path}, line {number}: `{line[:60]}` is not a merge of two pieces. "
                "Give a file that subword-nmt's `learn-bpe` wrote."
            )


def check_fastbpe(path: str | Path) -> list[str]:
    """Check merges of fastBPE, two pieces and a count in each line, and return the lines.

    Raises:
        DataError: a line is faulty; the message names it.
    """
    path = require_file(path, "file of merges")
    lines = _decode(path, path.read_bytes(), 0, 0).rstrip("\n").split("\n")
    for number, line in enumerate(lines, start=1):
        if not re.fullmatch(r"[^ ]+ [^ ]+ \d+", line):
            raise DataError(
                f"{path}, line {number}: `{line[:60]}` is not a merge of two pieces and its count. "
                "Give a file that fastBPE's `learnbpe` wrote."
            )
    return lines


def _blocks(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, bytes) in blocks of whole lines; a line longer than a block is cut."""
    offset = 0
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            if not block.endswith(b"\n"):
                block += file.readline(BLOCK)
            yield offset, block
            offset += len(block)


def _require_no_mark(path: Path, block: bytes) -> None:
    for mark, encoding in BYTE_ORDER_MARKS.items():
        if block.startswith(mark):
            skip = f" | tail -c +{len(mark) + 1}" if encoding == "UTF-8" else ""
            convert = f"cat {path}{skip}" if skip else f"iconv -f utf-16 -t utf-8 {path}"
            raise DataError(
                f"{path}, line 1: starts with a byte-order mark ({encoding}), which would become "
                f"part of the first word. Remove it: {convert} > {path}.clean"
            )


def _decode(path: Path, block: bytes, offset: int, lines: int) -> str:
    """Decode a block of whole lines, which follows ``offset`` bytes and ``lines`` lines."""
    try:
        text = block.decode("utf-8")
    except UnicodeDecodeError as error:
        reader = next(
            (command for magic, command in READERS.items() if block.startswith(magic)), ""
        )
        if reader and not offset:
            raise DataError(
                f"{path} is compressed; give its text: {reader} {path} > {path}.txt"
            ) from None
        line = lines + block.count(10, 0, error.start) + 1
        raise DataError(
            f"{path}, line {line}: not UTF-8, byte 0x{block[error.start]:02x} at offset "
            f"{offset + error.start:,}. If the file is Latin-1, convert it: "
            f"iconv -f latin1 -t utf-8 {path} > {path}.clean"
        ) from None
    if "\0" in text:
        position = block.index(0)
        raise DataError(
            f"{path}, line {lines + block.count(10, 0, position) + 1}: NUL byte at offset "
            f"{offset + position:,}, so this is binary data or UTF-16. Give plain UTF-8 text."
        )
    return text
