"""Check a corpus before fairseq reads it: text and dictionaries.

fairseq ends a line at ``\\n``, ``\\r\\n`` or a lone ``\\r``, and splits it at white space. A lone
``\\r`` within a sentence would make two sentences of it, and pair all later sentences with wrong
translations, so it is refused. Form feed, next line (U+0085), no-break space and the line and
paragraph separators (U+2028, U+2029) are accepted: they only separate words, like a space.

All checks raise DataError for a faulty file. The message has the line's number and a remedy.
"""

import re
from pathlib import Path
from typing import Any

from fairseq_ext.text import reading
from fairseq_ext.utils.errors import DataError
from fairseq_ext.utils.files import head, require_file

MAX_TOKENS = 10_000  # a longer line would be dropped in training, or exhaust the memory
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
CONTROL = re.compile(r"(?<!\S)(?:</?s>|<pad>)(?!\S)")

NO_CR = "tr -d '\\r'"
RETURN = (
    "carriage return inside the line, which fairseq would take for the end of a sentence. "
    "Delete it: {cure}"
)
LONG = (
    "more than {max_tokens:,} tokens in one line. Split the line into sentences, or delete it from "
    "both files of the pair."
)
SYMBOL = (
    "`<s>`, `</s>` or `<pad>` as a word, which fairseq would take for the beginning, the end "
    "or the padding of a sentence. Learn subwords from the text (`fairseq-ext subwords`), which "
    "keep such words, or delete them."
)
EMPTY = (
    "empty, and fairseq would train on an empty sentence. Delete the same lines from both files of "
    "the pair."
)


def check_text(
    path: str | Path,
    *,
    empty_lines: bool = False,
    max_tokens: int | None = MAX_TOKENS,
    controls: bool = True,
) -> int:
    r"""Check that fairseq will read a text file as one sentence per line; return the line count.

    Lines end in ``\n`` or ``\r\n``; the last end may be missing. ``empty_lines`` allows lines
    without words, which fairseq keeps as empty sentences. ``controls`` allows words that fairseq
    reads as the beginning, the end or the padding of a sentence. Lines of more than ``max_tokens``
    words are refused; None allows any length. Raise DataError for the first fault.
    """
    path = require_file(path, "text file")
    _require_plain_text(path)
    number = 0
    for number, line in reading.lines(path):
        reason = ""
        if "\r" in line:
            reason = RETURN.format(cure=reading.through(path, NO_CR))
        elif not line or line.isspace():
            reason = "" if empty_lines else EMPTY
        elif max_tokens and len(line) >= 2 * max_tokens and len(line.split()) > max_tokens:
            reason = LONG.format(max_tokens=max_tokens)
        elif not controls and CONTROL.search(line):
            reason = SYMBOL
        if reason:
            raise DataError(f"{path}, line {number}: {reason}")
    if not number:
        raise DataError(f"{path} is empty; it needs at least one line.")
    return number


def _require_plain_text(path: Path) -> None:
    """Refuse documents, compressed files, and byte-order marks, which would be part of a word."""
    reading.refuse_document(path)
    if reading.compression(path):
        raise DataError(f"{path} is compressed; unpack it, and give its text.")
    if head(path, 3) == BYTE_ORDER_MARK:
        raise DataError(
            f"{path}, line 1: starts with a byte-order mark, which would become part of the first "
            f"word. Remove it: {reading.through(path, 'tail -c +4')}"
        )


def check_parallel(source: str | Path, target: str | Path, **options: Any) -> int:
    """Check two texts by :func:`check_text` with ``options``; return their (equal) line count."""
    counts = [check_text(path, **options) for path in (source, target)]
    if counts[0] != counts[1]:
        raise DataError(
            f"{source} has {counts[0]:,} lines but {target} has {counts[1]:,}. "
            "Line n of one must be the translation of line n of the other."
        )
    return counts[0]


def check_dictionary(path: str | Path) -> None:
    """Check a fairseq dictionary: one ``<token> <count>`` per line, no token twice.

    As in fairseq, a line that ends in ``#fairseq:overwrite`` may repeat a token.
    """
    first_lines: dict[str, int] = {}
    form = "`<token> <count>`. Give a dict.*.txt that fairseq-preprocess wrote"
    row = r"(.+) -?\d+( #fairseq:overwrite)?[^\S\n]*"
    rows = _rows(_text(path, "dictionary"), row, path, form)
    for number, (token, overwrites) in enumerate(rows, start=1):
        if token in first_lines and not overwrites:
            raise DataError(
                f"{path}, line {number}: `{token[:60]}` is already in line {first_lines[token]}. "
                "Delete one of the two."
            )
        first_lines.setdefault(token, number)


def check_merges(path: str | Path) -> tuple[str, list[tuple[str, str]]]:
    """Check subword-nmt's merges file; return its version, 0.1 or 0.2, and the pairs of pieces."""
    text = _text(path)
    first = re.match(r" *#version: ([^ \r\n]+) *\r?$", text, re.MULTILINE)
    version = first[1] if first else "0.1"
    if version not in ("0.1", "0.2"):
        raise DataError(
            f"{path}, line 1: `#version: {version:.50}` is not a version that subword-nmt can "
            "apply (0.1 and 0.2). Give a file that its `learn-bpe` wrote."
        )
    form = "a merge of two pieces. Give a file that subword-nmt's `learn-bpe` wrote"
    merges = _rows(text, r" *([^ \r\n]+) ([^ \r\n]+) *", path, form)[1 if first else 0 :]
    if not merges:
        raise DataError(f"{path} has no merges. Give a file that subword-nmt's `learn-bpe` wrote.")
    return version, merges


def check_fastbpe(path: str | Path) -> list[tuple[str, str]]:
    """Check fastBPE's merges file (two pieces and a count in each line); return the pairs."""
    form = "a merge of two pieces and its count. Give a file that fastBPE's `learnbpe` wrote"
    return _rows(_text(path), r"([^ \n]+) ([^ \n]+) \d+", path, form)


def _text(path: str | Path, kind: str = "file of merges") -> str:
    return reading.read_text(require_file(path, kind)).removeprefix("\ufeff")


def _rows(text: str, row: str, path: str | Path, form: str) -> list[tuple[str, str]]:
    """Return the two groups of the regex ``row`` in each line of a text.

    Raise DataError, with a message that ends in ``is not {form}``, if a line does not match.
    """
    rows = re.findall(rf"^{row}\r?$", text, re.MULTILINE)
    written = text.removesuffix("\n").split("\n") if text else []
    if len(rows) < len(written):
        number, line = next(
            (number, line.removesuffix("\r"))
            for number, line in enumerate(written, start=1)
            if not re.fullmatch(rf"{row}\r?", line)
        )
        raise DataError(f"{path}, line {number}: `{line[:60]}` is not {form}.")
    return rows
