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
    sources, targets = ({symbol: n for n, symbol in enumerate(side)} for side in (source, target))
    lists: list[np.ndarray] = [np.empty(0, np.int32) for _ in source]
    content, place = files.require_file(path, "shortlist").read_bytes(), 1
    try:
        title, frequent, *rows, rest = content.decode("utf-8").split("\n")
        if title != f"{FORMAT}\t{len(rows)}" or rest:
            raise ValueError
        place = 2
        common = _numbers(frequent, targets)
        for row in rows:
            place += 1
            symbol, listed = row.split("\t")
            number = sources[symbol]
            if len(lists[number]):
                raise ValueError
            lists[number] = _numbers(listed, targets)
    except (ValueError, KeyError):
        raise DataError(
            f"{path}, line {place:,}: the line is damaged, or for other dictionaries. {CURE}"
        ) from None
    return Shortlist(common, lists)


def _numbers(symbols: str, vocabulary: Mapping[str, int]) -> np.ndarray:
    """Return the ids of target symbols separated by spaces; KeyError for an unknown symbol."""
    return np.array([vocabulary[symbol] for symbol in symbols.split(" ")], np.int32)


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
