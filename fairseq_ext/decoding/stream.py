"""A file or a pipe, translated line by line: order kept, empty lines kept, memory bounded."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from fairseq_ext.decoding.search import BUFFER, Candidate, Search, Translates
from fairseq_ext.text.subwords import Step
from fairseq_ext.utils.errors import ConfigError, DataError


class TextCodec(NamedTuple):
    """Functions from a line of text to a line of tokens, and back."""

    encode: Step
    decode: Step


@dataclass(frozen=True)
class Translation:
    """One line of the input.

    Attributes:
        line: its number, from 1.
        source: its text.
        texts: translations, best first; one empty text for a line that was left out.
        candidates: the translations as tokens with scores; none for a line that was left out.
        text: the best translation.
    """

    line: int
    source: str
    texts: Sequence[str]
    candidates: Sequence[Candidate]

    @property
    def text(self) -> str:
        return self.texts[0]


def decoded(lines: Iterable[bytes], name: str) -> Iterator[str]:
    """Decode lines of UTF-8, which end in a line feed, or a carriage return and a line feed.

    Raises:
        DataError: a line that is not UTF-8, by number.
    """
    for number, line in enumerate(lines, start=1):
        try:
            yield line.decode("utf-8").removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError as error:
            raise DataError(
                f"{name}, line {number}: not UTF-8, byte 0x{line[error.start]:02x}. If it is "
                "Latin-1, convert it: iconv -f latin1 -t utf-8"
            ) from None


def unmarked(lines: Iterable[bytes], name: str) -> Iterator[bytes]:
    """Yield the lines unchanged; refuse a byte-order mark in the first one.

    This is for a pipe: files are checked earlier.

    Raises:
        DataError: the first one starts with a byte-order mark.
    """
    for number, line in enumerate(lines):
        if number == 0 and line.startswith(codecs.BOM_UTF8):
            raise DataError(
                f"{name}, line 1: starts with a byte-order mark (UTF-8), which would become part "
                "of the first word. Remove it: … | tail -c +4 | fairseq-ext translate …"
            )
        yield line


def translations(
    lines: Iterable[str],
    translator: Translates,
    codec: TextCodec,
    *,
    search: Search | None = None,
    name: str = "the input",
    first: int = 1,
    before: int = 0,
    buffer: int = BUFFER,
    skip_long: bool = False,
) -> Iterator[Translation]:
    """Translate lines as they come.

    Args:
        lines: text.
        translator: of its tokens.
        codec: between text and tokens.
        search: how to search; None as the translator was told.
        name: of the input, for messages.
        first: number of the first line in it.
        before: lines of other inputs before it; they count in the numbers of translations.
        buffer: lines read before they are translated, in batches of about equal length.
        skip_long: give empty translations of lines that are too long, with a warning.

    Raises:
        ConfigError: a buffer of no lines.
        DataError: a line that is too long, by number.
    """
    if buffer < 1:
        raise ConfigError(f"`--buffer-size` must be at least 1, but is {buffer} instead.")
    encode, lines = codec.encode, iter(lines)
    while block := list(islice(lines, buffer)):
        tokens = _fit_to_translate(block, first, encode, translator, name, skip_long)
        numbers = [before + first - 1 + place for place in tokens]
        results = translator.translate(list(tokens.values()), numbers, search)
        results_by_place = dict(zip(tokens, results, strict=True))
        texts = (
            codec.decode(candidate.tokens)
            for candidates in results_by_place.values()
            for candidate in candidates
        )
        for place, source in enumerate(block):
            candidates = results_by_place.get(place, [])
            words = [next(texts) for _ in candidates] or [""]
            yield Translation(before + first + place, source, words, candidates)
        first += len(block)


def _fit_to_translate(
    block: Sequence[str],
    first: int,
    encode: Step,
    translator: Translates,
    name: str,
    skip_long: bool,
) -> dict[int, str]:
    """Encode the lines that are neither empty nor too long: tokens by place in the block."""
    encoded = enumerate(map(encode, block))
    tokens = {place: line for place, line in encoded if line.strip()}  # a blank may be all it had
    lengths = translator.lengths(list(tokens.values()))
    for place, length in zip(list(tokens), lengths, strict=True):
        if length <= translator.limit:
            continue
        fact = (
            f"{name}, line {first + place}: {length:,} source tokens, but {translator.limit_name} "
            f"at most {translator.limit:,}"
        )
        if not skip_long:
            raise DataError(
                f"{fact}. Split the line into sentences, or leave such lines empty with "
                "`--skip-long`."
            )
        print(f"warning: {fact}; left empty", file=sys.stderr)
        del tokens[place]
    return tokens
