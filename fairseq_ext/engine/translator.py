"""An engine model as a function from sentences to translations (no torch, no fairseq).

:class:`EngineTranslator` has the interface of :class:`fairseq_ext.decoding.translator.Translator`;
:func:`load` gives one with the model's own steps between text and tokens::

    model = load("model.safetensors")
    model.translate(["Ein Mann schläft.", "Zwei Hunde spielen."])
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fairseq_ext.decoding import stream
from fairseq_ext.decoding.search import Candidate, Counts, Search
from fairseq_ext.decoding.stream import TextCodec
from fairseq_ext.engine.files import EngineModel, read
from fairseq_ext.engine.native import Found, Machine, Team
from fairseq_ext.engine.rules import Rules, Sampling
from fairseq_ext.errors import ConfigError
from fairseq_ext.text import pipeline
from fairseq_ext.text.pipeline import Pipeline

BEGIN, PAD, END, UNKNOWN = range(4)  # in every dictionary of fairseq


def threads() -> int:
    """As many as ``OMP_NUM_THREADS`` says, or as this process may use processors."""
    said = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    if said.isdecimal() and int(said):
        return int(said)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class EngineTranslator:
    """One engine model.

    Args:
        model: from its file.
        search: how to search; None for the model's own defaults.

    Attributes:
        src, tgt: languages.
        limit: the most source tokens in a sentence, its end included.
        limit_name: whose limit this is, as the subject of a sentence.
        counts: tokens so far.

    Raises:
        ConfigError: the engine was not compiled, or options that it does not have.
    """

    def __init__(self, model: EngineModel, search: Search | None = None) -> None:
        self._model = model
        self._search = search or Search(**model.settings.search)
        self._rules = _rules(self._search, len(model.target))
        self._team = Team(Machine(model.program, packed=model.weights), threads())
        self._numbers = {symbol: number for number, symbol in enumerate(model.source)}
        self.src, self.tgt = model.settings.src, model.settings.tgt
        self.limit, self.limit_name = model.program.longest_source, "the model takes"
        if self._search.max_tokens < self.limit:
            self.limit, self.limit_name = self._search.max_tokens, "`--max-tokens` allows"
        self.counts = Counts()

    def lengths(self, sentences: Sequence[str]) -> list[int]:
        """How many source tokens the model would see, its special symbols included."""
        return [len(self._encode(one)) for one in sentences]

    def translate(
        self, sentences: Sequence[str], numbers: Sequence[int] | None = None
    ) -> list[list[Candidate]]:
        """The ``nbest`` translations of each sentence, best first, in the order given.

        Args:
            sentences: lines of source tokens, none longer than ``limit``.
            numbers: of the sentences, which samples depend on; from 0 if None.
        """
        numbers = range(len(sentences)) if numbers is None else numbers
        sources = [self._encode(one) for one in sentences]
        found: list[list[Candidate]] = [[] for _ in sentences]
        for batch in _batches([len(one) for one in sources], self._search.max_tokens):
            translated = self._team.translate(
                [sources[place] for place in batch],
                self._rules,
                numbers=[numbers[place] for place in batch],
            )
            for place, hypotheses in zip(batch, translated, strict=True):
                self._count(sources[place])
                found[place] = [self._candidate(one) for one in hypotheses[: self._search.nbest]]
        return found

    def _encode(self, line: str) -> list[int]:
        """Numbers of a line's tokens, cut and with special symbols as in training."""
        settings = self._model.settings
        known = [self._numbers.get(symbol, UNKNOWN) for symbol in line.split()]
        if settings.cut:
            known = known[: settings.cut - 1]
        return [*([BEGIN] if settings.begins else []), *known, END]

    def _candidate(self, found: Found) -> Candidate:
        self.counts.target += len(found.tokens)
        symbols = self._model.target
        words = [symbols[token] for token in found.tokens if token not in (END, BEGIN)]
        attention = () if found.attention is None else tuple(map(tuple, found.attention.tolist()))
        return Candidate(" ".join(words), found.score / math.log(2), attention)

    def _count(self, source: Sequence[int]) -> None:
        self.counts.source += sum(number not in (BEGIN, PAD, END) for number in source)
        self.counts.unknown += sum(number == UNKNOWN for number in source)


def _rules(search: Search, vocabulary: int) -> Rules:
    """The same for the machine.

    Raises:
        ConfigError: a number that cannot be, or an option of fairseq's generator alone.
    """
    search.check()
    for option, given in (("--fp16", search.fp16), (" ".join(search.flags), search.flags)):
        if given:
            raise ConfigError(f"`{option}` does not go with a model for the engine.")
    followed = 1 if search.sampling else 2 * search.beam
    if followed + 2 > vocabulary:
        raise ConfigError(
            f"`--beam` is {search.beam}, but must be at most {(vocabulary - 2) // 2} for a "
            f"dictionary of {vocabulary:,} symbols."
        )
    names = ("beam", "max_len_a", "max_len_b", "attention")
    return Rules(
        **{name: getattr(search, name) for name in names},
        lenpen=search.gnmt_lenpen or search.lenpen,
        length_offset=5.0 if search.gnmt_lenpen else 0.0,
        sampling=Sampling(search.top_k, epsilon=search.epsilon, seed=search.seed)
        if search.sampling
        else None,
    )


def _batches(lengths: Sequence[int], most: int) -> Iterator[list[int]]:
    """Places of sentences of about equal length, of at most so many tokens together."""
    batch: list[int] = []
    tokens = 0
    for place in sorted(range(len(lengths)), key=lengths.__getitem__):
        if batch and tokens + lengths[place] > most:
            yield batch
            batch, tokens = [], 0
        batch.append(place)
        tokens += lengths[place]
    if batch:
        yield batch


@dataclass(frozen=True)
class TextTranslator:
    """From lines of text to lines of text.

    Attributes:
        translator: of tokens.
        codec: between text and tokens.
    """

    translator: EngineTranslator
    codec: TextCodec

    def translate(self, lines: Sequence[str]) -> list[str]:
        """The best translation of each line; empty lines stay empty.

        Raises:
            DataError: a line that is too long, by number.
        """
        found = stream.translations(lines, self.translator, self.codec, name="the text")
        return [one.texts[0] for one in found]


def load(path: str | Path, search: Search | None = None) -> TextTranslator:
    """An engine model from its file.

    Args:
        path: that ``fairseq-ext pack --engine`` wrote.
        search: how to search; None for the model's own defaults.

    Raises:
        CheckpointError: the file cannot be used.
        ConfigError: the engine was not compiled, options that it does not have, or a library that
            the text needs is not installed.
    """
    model = read(path)
    return TextTranslator(EngineTranslator(model, search), codec_of(model))


def codec_of(model: EngineModel) -> TextCodec:
    """The model's own steps between text and tokens.

    Raises:
        CheckpointError: they cannot be used.
        ConfigError: a library that they need is not installed.
    """
    with model.text_folder() as folder:
        made = pipeline.load(folder) or Pipeline(model.settings.src, model.settings.tgt)
        return TextCodec(made.encoder(), made.decoder())
