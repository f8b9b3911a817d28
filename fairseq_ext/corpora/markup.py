"""Rules for mark-up, placeholders and mnemonics in the texts of programs and manuals.

A placeholder stands for a value (``%s``, ``{name}``, ``$FILE``), a mnemonic marks the letter of a
keyboard shortcut (``&File``, ``_Open``), and mark-up consists of tags (``<emph>``).
"""

import re
from collections import Counter
from dataclasses import dataclass

from fairseq_ext.text.cleaning import one_spaced

TAG = re.compile(r"</?[A-Za-z][\w:.-]*(?:\s+[\w:.-]+\s*=\s*(?:\"[^\"]*\"|'[^']*'))*\s*/?>")
PLACEHOLDER = re.compile(
    r"%\([\w.]+\)[#0 +-]*\d*(?:\.\d+)?[a-zA-Z]"  # Python: %(name)s
    r"|%(?:\d+\$)?[#0+-]*(?:\d+|\*)?(?:\.(?:\d+|\*))?(?:hh|h|ll|l|z|j|t|L)?[diouxXeEfgGcsp](?![A-Za-z])"
    r"|%\d+(?!\d*\s*%)\b"  # Qt: %1
    r"|%[A-Z][A-Z_]+\b"  # LibreOffice: %PRODUCTNAME
    r"|\$\{\w+\}|\$\([A-Za-z]\w*\)|\$\[\w+\]|\$[A-Z_]{2,}\b"
    r"|\{\w*(?:[.!:][^{}\s]*)?\}"
)
ENTITY = re.compile(r"&(?:#\d+|#x[0-9a-fA-F]+|\w+);")
AMPERSAND = re.compile(r"&(?=[^\W\d_])")
APPENDED = re.compile(r"\s*\([&_~]\w\)")  # ` (&F)`, where keyboards lack the language's letters
UNDERSCORE = re.compile(r"_(?=[^\W_])")
SHORT = 60  # most characters of a label whose underscore may mark a shortcut

MARKUP_RULES = ("strip", "keep", "leave-out")
MNEMONIC_RULES = ("strip", "keep", "leave-out")
PLACEHOLDER_RULES = ("keep", "leave-out")


@dataclass(frozen=True)
class Rules:
    """A rule for each kind of mark in a pair of texts.

    ``strip`` removes the marks from both texts. ``keep`` keeps them, and drops a pair whose tags
    or placeholders differ. ``leave-out`` drops every pair with such marks.
    """

    markup: str = "strip"
    placeholders: str = "keep"
    mnemonics: str = "strip"

    def apply(self, source: str, target: str) -> tuple[tuple[str, str], str]:
        """Clean both texts by these rules; also return why the pair is left out, or ""."""
        pair = (source, target)
        tags = [Counter(TAG.findall(text)) for text in pair]
        if any(tags):
            if self.markup == "leave-out":
                return pair, "mark-up"
            if self.markup == "keep" and tags[0] != tags[1]:
                return pair, "mark-up differs"
            if self.markup == "strip":
                pair = (TAG.sub("", pair[0]), TAG.sub("", pair[1]))
        values = [Counter(_plain_names(PLACEHOLDER.findall(text))) for text in pair]
        if any(values) and self.placeholders == "leave-out":
            return pair, "placeholders"
        if values[0] != values[1]:
            return pair, "placeholders differ"
        if self.mnemonics != "keep":
            without = _without_mnemonics(pair)
            if without != pair and self.mnemonics == "leave-out":
                return pair, "mnemonic"
            pair = without
        pair = (one_spaced(pair[0]), one_spaced(pair[1]))
        return pair, "" if all(pair) else "an empty side"


def _plain_names(placeholders: list[str]) -> list[str]:
    """Drop positions, such as ``1$`` in ``%1$s``: translations may change the order of values."""
    return [re.sub(r"^%\d+\$", "%", placeholder) for placeholder in placeholders]


def _without_mnemonics(pair: tuple[str, str]) -> tuple[str, str]:
    """Remove the marks of shortcuts if both texts look like labels with a shortcut."""
    for mark in (AMPERSAND, UNDERSCORE):
        counts = [len(_candidates(mark, text)) for text in pair]
        appended = [bool(APPENDED.search(text)) for text in pair]
        if all(n == 1 or letter for n, letter in zip(counts, appended, strict=True)) and max(
            map(len, pair)
        ) <= (SHORT if mark is UNDERSCORE else SHORT * 4):
            pair = (_stripped(mark, pair[0]), _stripped(mark, pair[1]))
    return pair


def _candidates(mark: re.Pattern[str], text: str) -> list[str]:
    text = PLACEHOLDER.sub("", ENTITY.sub("", text))
    return mark.findall(text) if mark is AMPERSAND or text.count("_") == 1 else []


def _stripped(mark: re.Pattern[str], text: str) -> str:
    text = APPENDED.sub("", text)
    return text if not _candidates(mark, text) else _outside(mark, text)


def _outside(mark: re.Pattern[str], text: str) -> str:
    """Remove a mark from a text, except within entities and placeholders."""
    pieces, end = [], 0
    for match in re.finditer(f"(?:{ENTITY.pattern})|(?:{PLACEHOLDER.pattern})", text):
        pieces += [mark.sub("", text[end : match.start()]), match[0]]
        end = match.end()
    return "".join([*pieces, mark.sub("", text[end:])])
