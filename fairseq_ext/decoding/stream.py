"""Translate a file or a pipe line by line, in order, in bounded memory; empty lines stay empty."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from fairseq_ext.decoding.search import BUFFER, Candidate, Search
from fairseq_ext.text.placeholders import Keeper
from fairseq_ext.text.sentences import UNSPLIT, SentenceSplitter, is_copied, texts_to_translate
from fairseq_ext.text.subwords import Step
from fairseq_ext.utils.errors import DataError, wrong_value

if TYPE_CHECKING:
    from fairseq_ext.decoding.loading import Translates

_T = TypeVar("_T")


class TextCodec(NamedTuple):
    """A function that turns a line of text into a line of tokens, and a function that undoes it."""

    encode: Step
    decode: Step

    def with_constraints(self, encode_target: Step) -> "TextCodec":
        """Return a codec that also encodes constraints: the target texts after tabs in a line.

        ``encode_target`` turns such a text into a line of tokens.
        """

        def encode(line: str) -> str:
            text, *constraints = line.split("\t")
            tokens = self.encode(text)
            required = filter(None, map(encode_target, constraints))
            return "\t".join([tokens, *required]) if tokens else ""

        return self._replace(encode=encode)

    def ranked(self, candidates: Sequence[Candidate]) -> "Ranked":
        """Return the translations of a sentence, as text and as tokens."""
        return Ranked([self.decode(candidate.tokens) for candidate in candidates], candidates)


class Ranked(NamedTuple):
    """The translations of a sentence, best first, as text and as tokens; there may be none."""

    texts: Sequence[str]
    candidates: Sequence[Candidate]


@dataclass(frozen=True)
class Translation:
    """A line of the input with its translations.

    Attributes:
        line: the number of the line, from 1.
        source: the text of the line.
        texts: translations, best first; one empty text for an empty or skipped line.
        candidates: the translations as tokens with scores; empty if nothing was translated.
        text: the best translation.
    """

    line: int
    source: str
    texts: Sequence[str]
    candidates: Sequence[Candidate]

    @property
    def text(self) -> str:
        return self.texts[0]


def translations(
    lines: Iterable[str],
    translator: "Translates",
    codec: TextCodec,
    *,
    search: Search | None = None,
    name: str = "the input",
    first: int = 1,
    before: int = 0,
    buffer: int = BUFFER,
    skip_long: bool = False,
    splitter: SentenceSplitter = UNSPLIT,
    keeper: Keeper | None = None,
) -> Iterator[Translation]:
    """Translate lines as they come; yield a :class:`Translation` for each line, in order.

    Args:
        search: how to search; None for the translator's own search.
        name: name of the input, for messages.
        first: line number of the first line in its input. Messages give these line numbers.
        before: number of lines in earlier inputs. It is added to the line numbers of this input in
            :attr:`Translation.line`.
        buffer: lines to read before translating them in batches of about equal length.
        skip_long: whether lines that are too long get empty translations and a warning.
        splitter: splits lines into sentences to translate one by one.
        keeper: finds spans of text to keep unchanged.

    Raises:
        ConfigError: ``buffer`` is below 1, or the search is not possible.
        DataError: a line is too long, and ``skip_long`` is not set.
    """
    if buffer < 1:
        raise wrong_value("--buffer-size", "at least 1", buffer)
    search = search or translator.search

    def translate(
        sentences: Sequence[str], line_numbers: Sequence[int], search: Search = search
    ) -> list[Ranked]:
        """Translate sentences; those that are empty or too long get no translation."""
        encoded = enumerate(map(codec.encode, sentences))
        tokens = {place: line for place, line in encoded if line.strip()}  # without blank lines
        lengths = translator.lengths(list(tokens.values()))
        for place, length in zip(list(tokens), lengths, strict=True):
            if length <= translator.limit:
                continue
            fact = (
                f"{name}, line {line_numbers[place]}: {length:,} source tokens, but "
                f"{translator.limit_name} at most {translator.limit:,}"
            )
            if not skip_long:
                raise DataError(
                    f"{fact}. Split the line into sentences, or leave such lines empty with "
                    "`--skip-long`."
                )
            print(f"warning: {fact}; left empty", file=sys.stderr)
            del tokens[place]
        numbers = [before + line_numbers[place] - 1 for place in tokens]
        results = translator.translate(list(tokens.values()), numbers, search)
        by_place = dict(zip(tokens, results, strict=True))
        return [codec.ranked(by_place.get(place, [])) for place in range(len(sentences))]

    lines = iter(lines)
    while block := list(islice(lines, buffer)):
        split_line = keeper.split_by(splitter.split) if keeper else splitter.split
        split = [split_line(line) for line in block]
        sentences = [sentence for parts in split for sentence in texts_to_translate(parts)]
        line_numbers = [first + place for place, parts in enumerate(split) for _ in parts]
        if keeper is None:
            ranked = translate(sentences, line_numbers)
        else:
            spanned = SpannedSentences(sentences, keeper)
            # Of all translations in the beam, the best that has every span is taken.
            widest = replace(search, nbest=search.beam)
            masked = translate(spanned.texts, line_numbers, widest)
            texts, places = spanned.restore(masked, search.nbest)
            numbers = [line_numbers[place] for place in places]
            ranked = spanned.complete(translate(texts, numbers) if texts else [])
        rows = iter(ranked)
        for number, (source, parts) in enumerate(zip(block, split, strict=True), start=first):
            yield Translation(before + number, source, *join_parts(parts, rows, splitter))
        first += len(block)


class SpannedSentences:
    """Sentences with spans that must stay unchanged, such as URLs.

    The caller translates ``texts``, in which masks replace the spans; :meth:`restore` puts the
    spans back. If every translation of a sentence has lost a mask, the caller translates the texts
    between its spans one by one; :meth:`complete` joins these translations with the spans.
    """

    def __init__(self, sentences: Sequence[str], keeper: Keeper) -> None:
        self._sentences = sentences
        self._masked = [keeper.mask(sentence) for sentence in sentences]
        self._results: list[Ranked | None] = []
        self.texts = [line.text for line in self._masked]

    def restore(self, ranked: Sequence[Ranked], most: int) -> tuple[list[str], list[int]]:
        """Put the kept spans back into ``ranked``, the translations of :attr:`texts`.

        In these translations a mask, such as a number, stands for each span. Of the translations
        that have all masks of their sentence, the best ``most`` are stored for :meth:`complete`,
        with the spans in place of the masks.

        Returns:
            Two lists of equal length, about the sentences for which no translation was stored:
            the texts between their spans, which the caller must translate; and for each text, the
            index of its sentence.
        """
        for sentence, line, row in zip(self._sentences, self._masked, ranked, strict=True):
            restored = zip(map(line.restored, row.texts), row.candidates, strict=True)
            pairs = [(text, best) for text, best in restored if text is not None][:most]
            if line.spans and not any(line.texts()):
                self._results.append(Ranked([sentence], []))
            elif pairs:
                self._results.append(Ranked(*zip(*pairs, strict=True)))
            elif line.text and not row.texts:  # skipped, because it is too long
                self._results.append(row)
            else:
                self._results.append(None)
        lost = [place for place, result in enumerate(self._results) if result is None]
        parts = [(part, place) for place in lost for part in self._masked[place].texts()]
        return [part for part, _ in parts], [place for _, place in parts]

    def complete(self, ranked: Iterable[Ranked]) -> list[Ranked]:
        """Return the translations of all sentences, with the kept spans in them.

        ``ranked`` has the translations of the texts that :meth:`restore` returned.
        """
        translated, results = iter(ranked), list[Ranked]()
        for line, result in zip(self._masked, self._results, strict=True):
            if result is None:
                rows = [*islice(translated, len(line.parts))]
                bests = [row.candidates[0] for row in rows if row.candidates]
                text = line.joined([row.texts[0] if row.texts else "" for row in rows])
                result = Ranked([text], [_concatenated(bests)] if bests else [])
            results.append(result)
        return results


def join_parts(
    parts: Sequence[str], translated: Iterator[Ranked], splitter: SentenceSplitter
) -> Ranked:
    """Join the translations of a line's parts into translations of the line, best first.

    The line's best translation joins the best translations of its parts, and so on. ``splitter``
    has split the line into ``parts``. ``translated`` yields the translations of the parts of all
    lines; this function takes those of ``parts`` from it. Indentation, bullets and numbers of list
    items stay. A part without a translation becomes "".
    """
    rows = [*islice(translated, len(parts))]
    if len(parts) == 1:
        return Ranked(rows[0].texts or [""], rows[0].candidates)
    for place, part in enumerate(parts):
        if is_copied(part):
            rows[place] = Ranked([part], [])
    ranks = by_rank([row.texts or [""] for row in rows])
    texts = [splitter.join(parts, options) for options in ranks]
    candidates = map(_concatenated, by_rank([row.candidates for row in rows]))
    return Ranked(texts or [""], [*candidates])


def by_rank(rows: Sequence[Sequence[_T]]) -> list[list[_T]]:
    """Return the first entries of all rows, then the second entries, and so on.

    Rows that are too short repeat their last entry, and empty rows are left out: ``[1, 2], [3]``
    becomes ``[1, 3], [2, 3]``.
    """
    rows = [row for row in rows if row]
    ranks = range(max(map(len, rows), default=0))
    return [[row[min(rank, len(row) - 1)] for row in rows] for rank in ranks]


def _concatenated(candidates: Sequence[Candidate]) -> Candidate:
    """Join candidates into one, without attention; its score is their mean, weighted by length."""
    lengths = [len(candidate.tokens.split()) + 1 for candidate in candidates]
    scores = [candidate.score * n for candidate, n in zip(candidates, lengths, strict=True)]
    tokens = " ".join(candidate.tokens for candidate in candidates)
    return Candidate(tokens, sum(scores) / sum(lengths))
