"""Translate sentences by the engine (:mod:`fairseq_ext.engine`), without torch and fairseq."""

import math
import os
from collections.abc import Iterator, Sequence

import numpy as np

from fairseq_ext.decoding.search import Candidate, Counts, Search, require_short, require_writable
from fairseq_ext.engine import BEGIN, END, PAD, UNKNOWN, shortlist
from fairseq_ext.engine.engine_model import EngineModel
from fairseq_ext.engine.library import Hypothesis, Machine, Team
from fairseq_ext.engine.search_options import Rules
from fairseq_ext.utils.errors import ConfigError, DataError
from fairseq_ext.utils.locks import ForkSafeLock


def available_threads() -> int:
    """Return ``OMP_NUM_THREADS``, or else the number of processors that this process may use."""
    setting = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    if setting.isdecimal() and int(setting):
        return int(setting)
    return len(os.sched_getaffinity(0))


class EngineTranslator:
    """A translator of tokenized lines by the engine. Threads that share it take turns.

    The attributes are those of :class:`~fairseq_ext.decoding.translator.Translator`.

    Args:
        search: the default search of all calls; None for the model's own defaults.
        threads: number of the engine's threads, which translate a batch together; None for
            :func:`available_threads`.
    """

    def __init__(
        self, model: EngineModel, search: Search | None = None, threads: int | None = None
    ) -> None:
        self._model = model
        self.search = search or Search(**model.search)
        rules = self._rules(self.search)
        listed = model.shortlist
        if self.search.shortlist is not None:
            listed = shortlist.read(self.search.shortlist, model.source, model.target)
        if listed is not None:
            listed.require(rules.candidate_count + 2)
        machine = Machine(model.program, packed=model.weights, shortlist=listed)
        self._team = Team(machine, threads or available_threads())
        self._numbers = {symbol: number for number, symbol in enumerate(model.source)}
        self._target_numbers = {symbol: number for number, symbol in enumerate(model.target)}
        self._left_out = {BEGIN, END, model.program.symbols.end, *model.affixes[2]}
        self.src, self.tgt = model.src, model.tgt
        self.name = model.architecture
        self.limit, self.limit_name = model.program.longest_source, "the model takes"
        if self.search.max_tokens < self.limit:
            self.limit, self.limit_name = self.search.max_tokens, "`--max-tokens` allows"
        self.counts = Counts()
        self._counting = ForkSafeLock()

    def lengths(self, sentences: Sequence[str]) -> list[int]:
        """Count the source tokens of each sentence, including the model's special symbols."""
        return [len(self._encode(sentence)) for sentence, *_ in map(self._split, sentences)]

    def translate(
        self,
        sentences: Sequence[str],
        numbers: Sequence[int] | None = None,
        search: Search | None = None,
    ) -> list[list[Candidate]]:
        """Translate like :meth:`fairseq_ext.decoding.translator.Translator.translate`."""
        search = search or self.search
        rules = self._rules(search)
        numbers = range(len(sentences)) if numbers is None else numbers
        rows = [self._split(sentence) for sentence in sentences]
        sources = [self._encode(sentence) for sentence, *_ in rows]
        required = [self._encode_constraints(constraints) for _, *constraints in rows]
        first = self._model.affixes[2]
        results: list[list[Candidate]] = [[] for _ in sentences]
        for batch in _batches(list(map(len, sources)), self.search.max_tokens):
            translated = self._team.translate(
                [sources[place] for place in batch],
                rules,
                [first] * len(batch) if first else None,
                [numbers[place] for place in batch],
                [required[place] for place in batch] if self.search.constraints else None,
            )
            for place, hypotheses in zip(batch, translated, strict=True):
                best = hypotheses[: search.nbest]
                self._count(sources[place], best)
                results[place] = [self._candidate(hypothesis) for hypothesis in best]
        return results

    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[np.ndarray]:
        """Return, for each target, the log-probabilities (base e) of its tokens and ``</s>``.

        A shortlist is ignored. Raise DataError if a target has ``</s>``, or more tokens than the
        model can write.
        """
        encoded = [self._encode(line) for line in sources]
        first, end = self._model.affixes[2], self._model.program.symbols.end
        last = (END,) if end == END else (END, end)
        forced = [
            [*first, *(self._target_numbers.get(symbol, UNKNOWN) for symbol in line.split()), *last]
            for line in targets
        ]
        for number, target in enumerate(forced, start=1):
            if not {END, end}.isdisjoint(target[: -len(last)]):
                raise DataError(f"target {number} holds `</s>`, which only ends a sentence.")
        require_short(map(len, forced), self._model.program.longest_target)
        rules = Rules(beam=1, max_len_b=max(map(len, forced), default=1), listed=False)
        scored: list[np.ndarray] = [np.empty(0)] * len(targets)
        for batch in _batches(list(map(len, encoded)), self.search.max_tokens):
            prefixes = [forced[place] for place in batch]
            hypotheses = self._team.translate([encoded[place] for place in batch], rules, prefixes)
            for place, (hypothesis,) in zip(batch, hypotheses, strict=True):
                scored[place] = hypothesis.scores
        return scored

    def _split(self, line: str) -> list[str]:
        """Split a line into its sentence and, if the search allows any, its constraints."""
        return line.split("\t") if self.search.constraints else [line]

    def _encode_constraints(self, constraints: Sequence[str]) -> list[int]:
        """Encode constraints as the engine reads them: the tokens of each, followed by 0."""
        tokens = []
        for text in constraints:
            numbers = [self._target_numbers.get(symbol, UNKNOWN) for symbol in text.split()]
            require_writable(text, numbers, self._model.program.symbols.end)
            tokens += [*numbers, 0]
        return tokens

    def _encode(self, line: str) -> list[int]:
        """Return the token ids of a line with special symbols, cut like sources in training."""
        model = self._model
        numbers = (self._numbers.get(symbol, UNKNOWN) for symbol in line.split())
        tokens = [number for number in numbers if number != PAD]  # fairseq takes it for padding
        if model.cut:
            tokens = tokens[: model.cut - 1]
        before, after, _ = model.affixes
        return [*([BEGIN] if model.begins else []), *before, *tokens, END, *after]

    def _rules(self, search: Search) -> Rules:
        """Convert the options of a search into those of the engine.

        Raise ConfigError for half precision, or a beam too large for the target dictionary.
        """
        if search.fp16:
            raise ConfigError("`--fp16` does not go with a model for the engine.")
        names = ("beam", "max_len_a", "max_len_b", "attention", "sampling", "seed")
        rules = Rules(
            **{name: getattr(search, name) for name in names},
            top_k=search.sampling_topk,
            epsilon=search.epsilon_sampling,
            lenpen=search.gnmt_lenpen or search.lenpen,
            length_offset=5.0 if search.gnmt_lenpen else 0.0,
            unordered=self.search.constraints == "unordered",
        )
        symbols = len(self._model.target)
        if rules.candidate_count + 2 > symbols:
            raise ConfigError(
                f"`--beam` is {search.beam}, but must be at most {(symbols - 2) // 2} for a "
                f"dictionary of {symbols:,} symbols."
            )
        return rules

    def _candidate(self, hypothesis: Hypothesis) -> Candidate:
        symbols = self._model.target
        words = [symbols[token] for token in hypothesis.tokens if token not in self._left_out]
        rows = [] if hypothesis.attention is None else hypothesis.attention.tolist()
        return Candidate(" ".join(words), hypothesis.score / math.log(2), tuple(map(tuple, rows)))

    def _count(self, source: Sequence[int], written: Sequence[Hypothesis]) -> None:
        with self._counting.held():
            self.counts.source += sum(number not in (BEGIN, PAD, END) for number in source)
            self.counts.unknown += sum(number == UNKNOWN for number in source)
            self.counts.target += sum(len(hypothesis.tokens) for hypothesis in written)


def _batches(lengths: Sequence[int], max_tokens: int) -> Iterator[list[int]]:
    """Yield batches of sentences of similar ``lengths``, as lists of their indices.

    A batch has at most ``max_tokens`` source tokens; a longer sentence is a batch of its own.
    """
    batch: list[int] = []
    tokens = 0
    for place in sorted(range(len(lengths)), key=lengths.__getitem__):
        if batch and tokens + lengths[place] > max_tokens:
            yield batch
            batch, tokens = [], 0
        batch.append(place)
        tokens += lengths[place]
    if batch:
        yield batch
