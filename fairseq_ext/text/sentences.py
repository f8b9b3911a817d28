"""Split text into sentences, and join their translations.

Models are trained on single sentences, so they translate several at once badly. The library
sentence-splitter applies Moses' rules, with the abbreviations of each language.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from fairseq_ext.text.languages import short_code
from fairseq_ext.utils import extras

UNSPACED = ("ja", "zh", "yue")  # languages without a space between sentences
LONGEST_WORD = 1_000
"""Lines with a word of more letters are not split: the library's time grows with their square."""
# Ends of sentences in Chinese and Japanese, Hindi and its neighbours, Amharic, Burmese, Urdu,
# Armenian, Khmer and Tibetan. Unlike the full stop they have no other use, except in Khmer's ។ល។,
# “etc.”. Tibetan repeats its mark after a space.
_MARKS, _QUOTES = "。！？।॥።፧။۔؟։។៕།༎", '」』”）’»"'
_END = f"(?<=[{_MARKS}])(?<!។ល។)(?!ល។|[{_QUOTES}]|\\s*[{_MARKS}])|(?<=[{_MARKS}][{_QUOTES}])"
_AROUND = r"(?:<[^<>]*>|[^\w<])*"
_COPIED = rf"\s*|{_AROUND}(?:\d+(?:\.\d+)*[.)]|\w\)|[-–—*•·]){_AROUND}"
"""Parts of a line that are not translated: indentation, or a list item's number or bullet."""
_ITEM = r"\s*(?:\(?(?:\d{1,3}|[^\W\d_])\)|[-–—*•·])\s+(?=\S)|\s+(?=\S)"
"""The start of a line before its text: indentation, and a bullet or number such as ``1)``."""

# The end of a sentence (not of abbreviations like “Mr.”) and the first letter of the next word.
_NEXT = re.compile(rf"(?:\w{{4}}\.|[!?…])[{_QUOTES}]*\s+\W*(\w)")


def seem_several(line: str) -> bool:
    """Guess whether a line has several sentences, by marks such as ``.``, without a library."""
    if any(match[1].isupper() for match in _NEXT.finditer(line)):
        return True
    return any(mark in line for mark in _MARKS) and bool(re.search(_END, line[:-2]))


@dataclass(frozen=True)
class SentenceSplitter:
    """A splitter of source lines into sentences, which also joins translated sentences.

    ``split`` splits a line into parts. A part is a sentence, an indentation, or the bullet or
    number of a list item; an empty line is one empty part. If several spaces separate two parts,
    the first part ends in them. ``joint`` is the text to put between translated sentences.
    """

    split: Callable[[str], list[str]]
    joint: str

    def join(self, parts: Sequence[str], translations: Sequence[str]) -> str:
        """Join the translations of a line's parts; leave out parts with the translation "".

        An indentation stays, and so do two or more spaces between two parts. Elsewhere, ``joint``
        is put between the parts.
        """
        pairs = [pair for pair in zip(parts, translations, strict=True) if pair[1]]
        line = ""
        for part, translation in pairs[:-1]:
            text, space = part.rstrip(), part[len(part.rstrip()) :]
            line += translation.rstrip() + (self.joint if text and len(space) < 2 else space)
        return line + pairs[-1][1] if pairs else ""


def texts_to_translate(parts: list[str]) -> list[str]:
    """Return a line's parts, with "" for each part that needs no translation (:func:`is_copied`).

    The only part of a line stays, even if it is a number.
    """
    return parts if len(parts) == 1 else ["" if is_copied(part) else part for part in parts]


def is_copied(part: str) -> bool:
    """Return whether a part of a line needs no translation: indentation, a bullet or a number."""
    return re.fullmatch(_COPIED, part) is not None


UNSPLIT = SentenceSplitter(lambda line: [line], "")
"""A splitter that leaves each line as it is."""


def sentence_splitter(src: str, tgt: str) -> SentenceSplitter:
    """Make a splitter for text that is translated from ``src`` to ``tgt``.

    Languages that the library sentence-splitter lacks are split by its rules for English.
    """
    source, target = map(short_code, (src, tgt))
    joint = "" if target in UNSPACED else " "
    if source in UNSPACED:
        return SentenceSplitter(_with_layout(_split_at_marks), joint)
    extras.need("sentence_splitter")
    from sentence_splitter import SentenceSplitter as Library
    from sentence_splitter import SentenceSplitterException

    try:
        library = Library(source)
    except SentenceSplitterException:
        library = Library("en")

    def split(line: str) -> list[str]:
        if max(map(len, line.split()), default=0) > LONGEST_WORD:
            return [line]
        sentences = library.split(line) or [line]
        return [part for sentence in sentences for part in _split_at_marks(sentence)]

    return SentenceSplitter(_with_layout(split), joint)


def _with_layout(split: Callable[[str], list[str]]) -> Callable[[str], list[str]]:
    """Return a function that splits like ``split``, but keeps indentation, bullets and spaces."""

    def split_line(line: str) -> list[str]:
        line = line.rstrip()
        item = re.match(_ITEM, line)
        start = line[: item.end()] if item else ""
        parts = [start] * bool(start) + split(line.removeprefix(start))
        letters = [place for place, letter in enumerate(line) if not letter.isspace()]
        ends = [*accumulate(len("".join(part.split())) for part in parts)]
        if ends[-1] != len(letters):  # the library has changed the text
            return parts
        starts = [0, *(letters[end] for end in ends[:-1]), len(line)]
        spaced = [line[start:end] for start, end in pairwise(starts)]
        return [
            part if not part.strip() or part[-2:].isspace() else part.rstrip() for part in spaced
        ]

    return split_line


def _split_at_marks(line: str) -> list[str]:
    sentences = [part.strip() for part in re.split(_END, line)]
    return [sentence for sentence in sentences if sentence] or [line]
