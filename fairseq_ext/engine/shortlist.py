"""Shortlists of the target tokens that a sentence's translations may have (numpy only).

A shortlist has the most frequent target tokens and, for each source token, the target tokens that
translate it most often. For a sentence, the search chooses only among the frequent tokens and the
tokens listed for the sentence's source tokens: some hundreds instead of tens of thousands. The file
is UTF-8 text::

    fairseq-ext shortlist 1<TAB>number of source symbols that follow
    the most frequent target symbols, separated by spaces
    source symbol<TAB>target symbols, separated by spaces
    ...

`fairseq-ext shortlist` makes a shortlist from training data.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fairseq_ext.engine.lexicon import Side
from fairseq_ext.utils import files
from fairseq_ext.utils.errors import ConfigError, DataError

Tokens = Sequence[int] | np.ndarray
FORMAT = "fairseq-ext shortlist 1"
CURE = "Make it again with `fairseq-ext shortlist`."


@dataclass(frozen=True, eq=False)
class Shortlist:
    """The ids of the target tokens that translations may have.

    Every translation may have the tokens in ``frequent``. If the source has the token i, the
    translation may also have the tokens in ``lists[i]``.
    """

    frequent: Tokens
    lists: Sequence[Tokens]

    def check(self, vocabulary: int) -> None:
        """Raise ConfigError if an id is outside of a target vocabulary of ``vocabulary`` tokens."""
        tokens = np.concatenate([self.frequent, *self.lists])
        if not ((tokens >= 0) & (tokens < vocabulary)).all():
            raise ConfigError(f"the shortlist is for another vocabulary, or damaged. {CURE}")

    def require(self, count: int) -> None:
        """Raise ConfigError if ``frequent`` has fewer than ``count`` tokens."""
        frequent = len(np.unique(self.frequent))
        if frequent < count:
            raise ConfigError(
                f"the shortlist has {frequent:,} frequent tokens, but this search needs {count:,}; "
                "make it with a larger `--frequent`, or lower `--beam`."
            )

    def of(self, sentence: Sequence[int], extra: Sequence[int]) -> np.ndarray:
        """Return the ids of the target tokens that a translation of ``sentence`` may have.

        They are the tokens that the shortlist allows, and those in ``extra``: in int32, ascending,
        each once.
        """
        lists = (self.lists[token] for token in set(sentence) if token < len(self.lists))
        tokens = np.concatenate([self.frequent, extra, *lists], dtype=np.int32, casting="unsafe")
        listed = np.zeros(tokens.max(initial=-1) + 1, bool)
        listed[tokens] = True  # several times as fast as np.unique
        return np.flatnonzero(listed).astype(np.int32)


def write(path: str | Path, frequent: Sequence[str], lists: Mapping[str, Sequence[str]]) -> None:
    """Write a shortlist's file, atomically.

    ``frequent`` has the target symbols that every translation may have, and ``lists`` further
    target symbols for each source symbol.
    """
    with files.atomic_write(path) as file:
        file.write(f"{FORMAT}\t{len(lists)}\n{' '.join(frequent)}\n")
        for symbol, targets in lists.items():
            file.write(f"{symbol}\t{' '.join(targets)}\n")


def read(path: str | Path, source: Sequence[str], target: Sequence[str]) -> Shortlist:
    """Read a shortlist's file; ``source`` and ``target`` are the dictionaries' symbols, by id.

    Raise DataError if the file is damaged, or has symbols of other dictionaries.
    """
    try:
        lines = files.require_file(path, "shortlist").read_bytes().decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 (byte {error.start:,}). {CURE}") from None
    numbers = [{symbol: n for n, symbol in enumerate(side)} for side in (source, target)]
    title, _, count = lines[0].partition("\t")
    if title != FORMAT:
        raise _fault(path, 1, f"must begin with `{FORMAT}`")
    if count != str(len(lines) - 3) or lines[-1]:
        raise _fault(path, len(lines), f"is the last one, but line 1 counts {count:.20} symbols")
    lists = [np.empty(0, np.int32) for _ in source]
    for place, line in enumerate(lines[2:-1], start=3):
        symbol, tab, targets = line.partition("\t")
        number = numbers[0].get(symbol)
        if not tab:
            raise _fault(path, place, "has no tab after a source symbol")
        if number is None:
            raise _fault(path, place, f"has `{symbol:.40}`, which is not in the source dictionary")
        if len(lists[number]):
            raise _fault(path, place, f"has `{symbol:.40}`, which had a line before")
        lists[number] = _numbers(path, place, targets, numbers[1])
    return Shortlist(_numbers(path, 2, lines[1], numbers[1]), lists)


def _numbers(path: str | Path, place: int, line: str, vocabulary: Mapping[str, int]) -> np.ndarray:
    """Return the ids of the target symbols in line number ``place``; refuse unknown symbols."""
    symbols = line.split(" ")
    for symbol in symbols:
        if symbol not in vocabulary:
            raise _fault(path, place, f"has `{symbol:.40}`, which is not in the target dictionary")
    return np.array([vocabulary[symbol] for symbol in symbols], np.int32)


def _fault(path: str | Path, place: int, fault: str) -> DataError:
    return DataError(f"{path}, line {place:,}: the line {fault}. {CURE}")


def coverage(shortlist: Shortlist, source: Side, target: Side) -> tuple[float, float]:
    """Measure a shortlist on 1,000 to 2,000 sentence pairs, spread evenly over a parallel text.

    Return the fraction of target tokens that the shortlist allows for their source sentence, and
    the mean number of tokens that it allows for a sentence. A shorter text is measured as a whole.
    """
    step = max(1, (len(source.begins) - 1) // 1000)
    listed = hits = tokens = count = 0
    for place in range(0, len(source.begins) - 1, step):
        (words, _), (expected, _) = source.words(place, place + 1), target.words(place, place + 1)
        listed_tokens = shortlist.of(words.tolist(), ())
        hits, tokens = hits + np.isin(expected, listed_tokens).sum(), tokens + len(expected)
        listed, count = listed + len(listed_tokens), count + 1
    return hits / max(1, tokens), listed / count
