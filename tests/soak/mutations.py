"""Texts and bytes that are nearly right: lines of a grammar, and damage to valid examples.

Every generator takes its choices from a ``Random``, which hypothesis hands out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

Text = Callable[[Random], str]
Data = Callable[[Random], bytes]
Files = Callable[[Random], dict[str, bytes]]

NUMBERS = (
    *("0", "1", "2", "-1", "3.5", "1e9", "007", "30000000", "4294967296", "9223372036854775808"),
    *("1e999", "-1e999", "nan", "NaN", "inf", "Infinity", "9" * 400, "9" * 5000, "1" + "0" * 308),
    *("", ".", "1.2.3", "e", "1_000", "1,000", "0x10", "٣", "²", "+", "1e-400", "true", "null"),
)
# What readers stumble over, wherever it stands.
NASTY = (
    *NUMBERS,
    *("\r", "\0", "\n", "\n\n", "\t", " ", "\u2028", "\u00a0", "\ufeff", "\ud800", "é", "😀"),
    *("\x1b", "\r\n", "{", "}", "[", "]", "{}", "[]", '"', "'", ",", ":", "|", "=", "-", "<", "%s"),
    *("[" * 5000, '{"a":' * 5000, "a" * 3000, "#version: 0.3\n", "\\ud800", "\\", "@@ ", "../"),
)


def slots(*templates: str, values: Sequence[str] = NUMBERS) -> Text:
    """One of the templates, each ``#`` in it a value: mostly ``1`` or ``0``, else of ``values``."""

    def make(draw: Random) -> str:
        first, *rest = draw.choice(templates).split("#")
        for part in rest:
            first += (draw.choice("10") if draw.random() < 0.7 else draw.choice(values)) + part
        return first

    return make


def words(separator: str, values: Sequence[str], limit: int = 3) -> Text:
    """Up to ``most`` values."""
    return lambda draw: separator.join(draw.choices(values, k=draw.randint(0, limit)))


def lines(line: Text, limit: int = 8, head: str = "") -> Text:
    """Some lines below ``head``."""
    return lambda draw: head + "".join(f"{line(draw)}\n" for _ in range(draw.randint(0, limit)))


def text(*sources: str | Text) -> Data:
    """UTF-8 of a valid example or a grammar's text, half of them with up to four damages."""

    def make(draw: Random) -> bytes:
        source = draw.choice(sources)
        text = source if isinstance(source, str) else source(draw)
        for _ in range(max(0, draw.randint(-4, 4))):
            start = draw.randint(0, len(text))
            end = start + draw.randint(0, 40)
            piece, nasty = text[start:end], draw.choice(NASTY)
            middle = draw.choice((nasty, piece + nasty, piece * 2, ""))
            text = text[:start] + middle + text[end:]
        return text.encode("utf-8", "surrogatepass")

    return make


def damaged(source: bytes | Data, limit: int = 3) -> Data:
    """The bytes, half of them with up to ``most`` damages: bits, numbers, parts cut or repeated."""

    def make(draw: Random) -> bytes:
        data = bytearray(source if isinstance(source, bytes) else source(draw))
        for _ in range(max(0, draw.randint(-limit, limit))):
            start = draw.randint(0, len(data))
            end = start + (size := draw.choice((1, 2, 4, 8, 512)))
            match draw.randint(0, 5):
                case 0 if start < len(data):
                    data[start] ^= 1 << draw.randint(0, 7)
                case 1:
                    data[start:end] = bytes([draw.choice((0, 1, 0x7F, 0x80, 0xFF))]) * size
                case 2:
                    del data[start:]
                case 3:
                    del data[start:end]
                case 4:
                    data[start:start] = data[start:end]
                case _:
                    data += bytes([draw.randint(0, 255)]) * draw.choice((1, 100, 512, 1024))
        return bytes(data)

    return make


def files(**contents: Data) -> Files:
    """Files, whose names have ``_`` for a dot."""
    named = {name.replace("_", "."): make for name, make in contents.items()}
    return lambda draw: {name: make(draw) for name, make in named.items()}
