"""Process streams of pairs: read, encode in several processes, clean, count, deal out to files."""

import functools
import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from itertools import islice, zip_longest
from pathlib import Path
from typing import IO, TypeVar

from fairseq_ext.corpora import rules
from fairseq_ext.text.pipeline import Pipeline
from fairseq_ext.text.reading import raw_lines
from fairseq_ext.text.subwords import Step
from fairseq_ext.utils.errors import DataError
from fairseq_ext.utils.files import write_all

RawPair = tuple[str | None, str | None]  # None: the line is not UTF-8
Item = TypeVar("Item")
Result = TypeVar("Result")
ABOUT_THE_TALK = (b"<url>", b"<talkid>", b"<keywords>")
SPOKEN_TOO = re.compile(rb"</?(?:title|description)>")
SEGMENT = re.compile(rb"<seg id[^>]*>\s*(.*?)\s*(?:</seg>|$)", re.IGNORECASE | re.DOTALL)
CHUNK = 2_000  # pairs that a process takes at a time
KEPT = "kept"
Tally = dict[str, list[int]]
"""Counts of pairs, source tokens and target tokens, by ``kept`` or the reason for dropping."""


def raw_pairs(source: Path, target: Path, form: str) -> Iterator[RawPair]:
    """Yield the sentence pairs of two files in the format ``form``, a key of :data:`FORMS`.

    A sentence is None if it is not UTF-8. Files with different numbers of sentences are refused.
    """
    read = FORMS[form]
    counts = [0, 0]
    for pair in zip_longest(*(read(_lines(path)) for path in (source, target))):
        for side, line in enumerate(pair):
            counts[side] += line is not None
        if None not in pair:
            yield _text(pair[0]), _text(pair[1])
    if counts[0] != counts[1]:
        raise DataError(
            f"`{source}` has {counts[0]} sentences, `{target}` has {counts[1]}; they must have "
            "equally many. Download them again."
        )


def _lines(path: Path) -> Iterator[bytes]:
    if not path.is_file():
        raise DataError(f"`{path}` does not exist: the archive is not the official one.")
    for number, line in enumerate(raw_lines(path)):
        yield line.removeprefix(b"\xef\xbb\xbf") if number == 0 else line


def _text(line: bytes) -> str | None:
    try:
        return line.rstrip(b"\r\n").decode("utf-8")
    except UnicodeDecodeError:
        return None


def _tagged(lines: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the lines of an IWSLT training file, without each talk's address, number and keywords.

    Titles and descriptions of talks stay, without their tags.
    """
    for line in lines:
        if not any(tag in line for tag in ABOUT_THE_TALK):
            yield SPOKEN_TOO.sub(b"", line)


def _segments(lines: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the text in each ``<seg id="…">``; entities stay escaped, as in the papers' scripts."""
    for line in lines:
        if match := SEGMENT.search(line):
            yield match[1]


FORMS: dict[str, Callable[[Iterator[bytes]], Iterator[bytes]]] = {
    "lines": iter,
    "tagged": _tagged,
    "segments": _segments,
}


def processes(workers: int | None) -> int:
    """Return the number of processes to use: ``--workers``, or one for each core."""
    return len(os.sched_getaffinity(0)) if workers is None else max(1, workers)


def ordered_map(
    function: Callable[[Item], Result], items: Iterable[Item], workers: int
) -> Iterator[Result]:
    """Yield ``map(function, items)`` in order, from ``workers`` processes; read few items ahead."""
    if workers == 1:
        yield from map(function, items)
        return
    waiting: deque[Future[Result]] = deque()
    pool = ProcessPoolExecutor(workers)
    try:
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) >= 3 * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool:
        raise DataError(
            "a worker process was killed, perhaps because memory ran out; run the same command "
            "again with fewer `--workers`."
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


@dataclass(frozen=True)
class Encode:
    """An encoder that turns sentence pairs into tokens, and can be sent to another process."""

    pipeline: Pipeline
    rules: tuple[str, ...] = ()  # rules for the tokens of a pair, as for `--rule`
    words: bool = False  # make words only: no subwords, and no escapes of fairseq's symbols
    must_keep: str = ""  # the text's name, if none of its pairs may be dropped
    tag: str = ""  # a word put before the source tokens; none if empty

    def __call__(
        self, pairs: Iterable[Sequence[str | None]], first: int = 1
    ) -> Iterator[tuple[str, str, str]]:
        """Yield ``(fate, source tokens, target tokens)`` of each pair.

        The fate is ``kept``, or the reason to drop the pair. ``first`` is the first pair's number
        in messages.
        """
        to_source, to_target = _steps(self)
        checks = rules.checks(self.rules, (self.pipeline.src, self.pipeline.tgt))
        for number, (source, target) in enumerate(pairs, first):
            left, right, fate = "", "", "not UTF-8"
            if source is not None and target is not None:
                left, right = to_source(source), to_target(target)
                fate = rules.why_left_out(left, right, checks) or KEPT
            if fate != KEPT and self.must_keep:
                raise DataError(
                    f"{self.must_keep}, sentence {number}: {fate}. Every sentence must be kept; "
                    "the archive is not the official one."
                )
            yield fate, left, right

    def kept_pairs(
        self, pairs: Iterable[RawPair], workers: int, tally: Tally
    ) -> Iterator[tuple[str, str]]:
        """Yield the tokens of the kept pairs, in order.

        ``tally`` gets the numbers of pairs, source tokens and target tokens, ``{fate: [pairs,
        source tokens, target tokens]}``. A fate is ``kept``, or a reason to drop a pair.
        """
        pairs = iter(pairs)
        chunks = iter(lambda: list(islice(pairs, CHUNK)), [])
        for encoded in ordered_map(self._encode_chunk, enumerate(chunks), workers):
            for fate, source, target in encoded:
                _add(tally.setdefault(fate, [0, 0, 0]), source, target)
                if fate == KEPT:
                    yield f"{self.tag} {source}" if self.tag else source, target

    def _encode_chunk(self, numbered: tuple[int, Sequence[RawPair]]) -> list[tuple[str, str, str]]:
        number, chunk = numbered
        return list(self(chunk, number * CHUNK + 1))


@functools.lru_cache
def _steps(encode: Encode) -> list[Step]:
    """Return the functions that turn a source line, and a target line, into tokens."""
    make = encode.pipeline.words if encode.words else encode.pipeline.encoder
    return [make(language) for language in (encode.pipeline.src, encode.pipeline.tgt)]


def _add(counts: list[int], *pair: str) -> None:
    """Add a pair to ``counts``, which has the numbers of pairs, source tokens and target tokens."""
    counts[0] += 1
    for place, tokens in enumerate(pair, start=1):
        counts[place] += tokens.count(" ") + 1 if tokens else 0


def deal(pairs: Iterable[tuple[str, str]], turns: Sequence[Sequence[IO[str]]]) -> list[list[int]]:
    """Deal sentence pairs out to pairs of files, in turn.

    Each item of ``turns`` is a source file and a target file; several items may have the same
    files. The first sentence pair goes to the first item, the next to the second, and so on; after
    the last item the first one is next. Return ``[sentence pairs, source tokens, target tokens]``
    for each item.
    """
    counts = [[0, 0, 0] for _ in turns]
    for number, pair in enumerate(pairs):
        turn = number % len(turns)
        for file, line in zip(turns[turn], pair, strict=True):
            file.write(f"{line}\n")
        _add(counts[turn], *pair)
    return counts


def line_pairs(source: Path, target: Path) -> Iterator[tuple[str, str]]:
    """Yield the lines of two aligned files in pairs, unchecked: this package wrote the files."""
    with (
        source.open(encoding="utf-8", newline="\n") as first,
        target.open(encoding="utf-8", newline="\n") as second,
    ):
        for pair in zip(first, second, strict=True):
            yield pair[0].rstrip("\n"), pair[1].rstrip("\n")


def write_pairs(
    folder: Path, texts: Mapping[str, Sequence[tuple[str, str]]], sides: tuple[str, str]
) -> None:
    """Write the pairs of each text into two aligned files ``NAME.SIDE``, all files or none."""
    write_all(
        folder,
        {
            f"{name}.{side}": [pair[place] for pair in pairs]
            for name, pairs in texts.items()
            for place, side in enumerate(sides)
        },
    )
