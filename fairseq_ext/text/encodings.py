"""Guess the encoding of text that is not UTF-8, for messages that tell how to convert it."""

from __future__ import annotations

import re

UTF_16_MARKS = (b"\xff\xfe", b"\xfe\xff")
KANA = re.compile("[\u3041-\u3096\u30a1-\u30fa]")  # in nearly every Japanese sentence


def guess(line: bytes) -> str:
    """Guess the encoding of a line; return iconv's name for it.

    Args:
        line: bytes that are not UTF-8, or include NUL.
    """
    if line.startswith(UTF_16_MARKS):
        return "utf-16"
    if b"\0" in line:
        return "utf-16le" if line[1::2].count(0) >= line[::2].count(0) else "utf-16be"
    for name in ("shift_jis", "euc-jp"):
        try:
            if KANA.search(line.decode(name)):
                return name
        except UnicodeDecodeError:
            continue
    return "latin1"


def cure(path: object, line: bytes) -> str:
    """Name the command that converts a file, as a clause to follow a semicolon."""
    name = guess(line)
    seems = "if it is Latin-1" if name == "latin1" else f"it seems to be {name.upper()}"
    return f"{seems}, convert it: iconv -f {name} -t utf-8 {path} > {path}.utf8"
