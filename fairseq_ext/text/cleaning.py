"""Clean a line of text: Unicode form, invisible characters, controls, spaces."""

import re
import unicodedata
from collections.abc import Callable

from fairseq_ext.text.languages import short_code

# Every kind of Unicode space and line or paragraph break, controls included.
SPACES = re.compile(r"[\s\x00-\x1f\x7f-\x9f]+")
DOTLESS = ("tr", "az", "crh", "gag")  # languages with a letter i without a dot
TURKIC = str.maketrans({"I": "ı", "İ": "i"})
# Invisible characters: soft hyphen, zero-width space, direction marks, word joiner, byte-order
# mark. The zero-width (non-)joiners U+200C and U+200D stay: Persian and Indic spelling needs them.
INVISIBLE = re.compile("[\u00ad\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff]")
CONTROL = re.compile(r"(?<!\S)\\*(?:</?s>|<pad>|<unk>)(?!\S)")
ESCAPED_CONTROL = re.compile(r"(?<!\S)\\(\\*(?:</?s>|<pad>|<unk>))(?!\S)")


def one_spaced(text: str) -> str:
    """Replace each run of white space with one plain space, and strip the ends."""
    return SPACES.sub(" ", text).strip()


def plain(text: str) -> str:
    """Normalize text to NFC, delete invisible characters, and apply :func:`one_spaced`."""
    # Invisible characters go first, because they may separate a mark from its letter.
    return one_spaced(unicodedata.normalize("NFC", INVISIBLE.sub("", text)))


def lower_case(language: str) -> Callable[[str], str]:
    """Return the function that lower-cases text of a language.

    In Turkish and its relatives ``I`` becomes ``ı``, the letter i without a dot. In every language
    ``İ`` becomes ``i``; ``str.lower`` would add a combining dot, which tokenizers split off.
    """
    if is_turkic(language):
        return lambda text: text.replace("I\u0307", "i").translate(TURKIC).lower()
    return lambda text: text.replace("İ", "i").lower()


def upper_case(language: str) -> Callable[[str], str]:
    """Return the function that puts a language's text in capitals: ``İ`` for ``i`` in Turkish."""
    return (lambda text: text.replace("i", "İ").upper()) if is_turkic(language) else str.upper


def is_turkic(language: str) -> bool:
    """Return whether a language has two letters i, with and without a dot, like Turkish."""
    return short_code(language) in DOTLESS


def escape_controls(tokens: str) -> str:
    """Write a backslash before each token that is one of fairseq's symbols, such as ``</s>``.

    fairseq then reads a word, not the end of the sentence. Tokens that already look escaped get
    another backslash, so that :func:`unescape_controls` can undo everything.
    """
    return CONTROL.sub(r"\\\g<0>", tokens) if "<" in tokens else tokens


def unescape_controls(tokens: str) -> str:
    """Remove the backslashes that :func:`escape_controls` has written."""
    return ESCAPED_CONTROL.sub(r"\1", tokens) if "\\" in tokens else tokens


class Spaced(dict[int, int]):
    """A table for ``str.translate`` that turns characters of some Unicode categories into spaces.

    ``categories`` has the first letters of the categories: ``L`` for letters, ``M`` for marks,
    ``N`` for numbers, ``P`` for punctuation, ``S`` for symbols, ``Z`` for spaces, ``C`` for
    controls. The characters in ``exceptions`` stay.
    """

    def __init__(self, categories: str, exceptions: str = "") -> None:
        super().__init__({ord(character): ord(character) for character in exceptions})
        self._categories = categories

    def __missing__(self, code: int) -> int:
        is_spaced = unicodedata.category(chr(code))[0] in self._categories
        self[code] = ord(" ") if is_spaced else code
        return self[code]


_PRINTABLE = Spaced("C", "\u200c\u200d")  # but not the joiners, which INVISIBLE spares, too


def printable(text: str) -> str:
    """Replace control, format, private and unassigned characters, but not joiners, with spaces."""
    return text if text.isprintable() else text.translate(_PRINTABLE)
