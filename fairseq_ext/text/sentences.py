"""Split text into sentences, and join their translations.

Models are trained on single sentences, so they translate several at once badly. The library
sentence-splitter applies Moses' rules, with the abbreviations of each language.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fairseq_ext.text.languages import short_code
from fairseq_ext.utils import extras

UNSPACED = ("ja", "zh", "yue")  # languages without a space between sentences
LONGEST_WORD = 1_000
"""Most letters of a word to split: the library's time grows with the square of its length."""
# Ends of sentences in Chinese and Japanese, Hindi and its neighbours, Amharic, Burmese, Urdu,
# Armenian, Khmer and Tibetan. Unlike the full stop they have no other use, except in Khmer's ។ល។,
# “etc.”. Tibetan repeats its mark after a space.
_MARKS, _QUOTES = "。！？।॥።፧။۔؟։។៕།༎", '」』”）’»"'
_END = re.compile(
    f"(?<=[{_MARKS}])(?<!។ល។)(?!ល។|[{_QUOTES}]|\\s*[{_MARKS}])|(?<=[{_MARKS}][{_QUOTES}])"
)
_AROUND = r"(?:<[^<>]*>|[^\w<])*"
NUMBER = re.compile(rf"{_AROUND}\d+(?:\.\d+)*[.)]{_AROUND}")
"""The number of a list's item, which is a part of a line by itself, but is not translated."""

# The end of a sentence (not of abbreviations like “Mr.”) and the first letter of the next word.
_NEXT = re.compile(rf"(?:\w{{4}}\.|[!?…])[{_QUOTES}]*\s+\W*(\w)")


def seem_several(line: str) -> bool:
    """Guess whether a line has several sentences, without a library and any language's rules."""
    return any(match[1].isupper() for match in _NEXT.finditer(line)) or bool(_END.search(line[:-2]))


@dataclass(frozen=True)
class SentenceSplitter:
    """A splitter of source lines into sentences, which also joins translated sentences."""

    # Function that splits a line into sentences, an empty line into an empty one.
    split: Callable[[str], list[str]]
    joint: str  # separator of translated sentences

    def join(self, sentences: Sequence[str]) -> str:
        """Join the translated sentences of a line."""
        return self.joint.join(sentence for sentence in sentences if sentence)


UNSPLIT = SentenceSplitter(lambda line: [line], "")
"""A splitter that leaves each line as it is."""


def sentence_splitter(src: str, tgt: str) -> SentenceSplitter:
    """Make a splitter; languages without a list of abbreviations use the English one."""
    source, target = map(short_code, (src, tgt))
    joint = "" if target in UNSPACED else " "
    if source in UNSPACED:
        return SentenceSplitter(_split_at_marks, joint)
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

    return SentenceSplitter(split, joint)


def _split_at_marks(line: str) -> list[str]:
    sentences = [part.strip() for part in _END.split(line)]
    return [sentence for sentence in sentences if sentence] or [line]
