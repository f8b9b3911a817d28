"""Run programs on the machine, which is an interpreter in C, through ctypes.

The machine is compiled when the package is installed. A :class:`Machine` has a program and its
weights. All threads read the same Machine. Each thread needs a :class:`Worker`, which has the
memory for intermediate and final results.
"""

import ctypes
import functools
import importlib.util
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, NamedTuple

import numpy as np

from fairseq_ext.engine import ctypes_structs
from fairseq_ext.engine.ctypes_structs import INT, LONG, POINTER
from fairseq_ext.engine.program import Program
from fairseq_ext.engine.search_options import Rows, Rules
from fairseq_ext.engine.shortlist import Shortlist
from fairseq_ext.engine.verify import verify
from fairseq_ext.engine.weights import Packed, Pool, pack
from fairseq_ext.utils.errors import ConfigError, DataError, wrong_value
from fairseq_ext.utils.locks import ForkSafeLock

PATHS = ("c", "avx2", "avx512", "avx512-bf16", "amx")
VARIABLE = "FAIRSEQ_EXT_ENGINE"
INTERFACE = 9  # the version in interface.c
COPIES = 1 << 26  # most bytes of the output layer to copy for sentences with shortlists


@functools.cache
def library() -> Any:
    """Load the compiled C library; return None if it was not built, or is of another version."""
    spec = importlib.util.find_spec("fairseq_ext.engine._machine")
    if spec is None or spec.origin is None:
        return None
    try:
        machine = ctypes.CDLL(spec.origin)
        if machine.engine_interface() != INTERFACE:
            return None
    except (OSError, AttributeError):
        return None
    machine.engine_open.restype = POINTER
    machine.engine_open.argtypes = [POINTER, INT]
    machine.engine_close.argtypes = [POINTER]
    machine.engine_translate.argtypes = [*[POINTER] * 4, LONG, *[POINTER] * 8]
    machine.engine_forget.argtypes = [POINTER]
    machine.engine_product.argtypes = [INT, POINTER, POINTER, LONG, POINTER, INT, POINTER]
    return machine


def available_paths() -> tuple[str, ...]:
    """Return the processor's instruction sets, from :data:`PATHS`; () if there is no C library."""
    machine = library()
    return () if machine is None else PATHS[: machine.engine_best_path() + 1]


def active_path() -> str:
    """Return the instruction set to use: ``FAIRSEQ_EXT_ENGINE``, or else the processor's fastest.

    Raise ConfigError if the engine was not built, or if the processor lacks the instruction set.
    """
    paths = available_paths()
    if not paths:
        raise ConfigError(
            "fairseq-ext was built without its engine; `fairseq-ext doctor` names the cure."
        )
    path = os.environ.get(VARIABLE) or paths[-1]
    if path not in paths:
        raise wrong_value(VARIABLE, f"one of {', '.join(paths)}", path)
    return path


class Hypothesis(NamedTuple):
    """A translation of a sentence, as the search returns it."""

    tokens: np.ndarray  # token ids, `</s>` included
    score: float  # sum of the tokens' log-probabilities, divided by a power of the length
    scores: np.ndarray  # log-probability of each token
    attention: np.ndarray | None  # weights [target tokens, source tokens], if any


class Machine:
    """A program with its packed weights and an optional shortlist of target tokens.

    ``packed`` are the weights. If it is None, the weights in ``program.matrices`` are packed in the
    format ``numbers`` (fp32, bf16 or int8). ``path`` is the instruction set to use, one of
    :data:`PATHS`; None for the result of :func:`active_path`.

    Raises:
        ConfigError: the program or the shortlist does not fit the weights.
    """

    def __init__(
        self,
        program: Program,
        numbers: str = "fp32",
        path: str | None = None,
        packed: Sequence[Packed] | None = None,
        shortlist: Shortlist | None = None,
    ) -> None:
        self.program, self.shortlist = program, shortlist
        self._path = PATHS.index(path or active_path())
        pool = Pool()
        self._packed = packed or [pack(matrix, numbers, pool) for matrix in program.matrices]
        verify(program, self._packed)
        self.source_vocabulary = min(self._packed[table].outputs for table in program.source_tables)
        layers = [self._packed[layer.weight] for layer in program.outputs]
        self.target_vocabulary = layers[0].outputs
        copied = sum(weight.values.nbytes for weight in layers) // self.target_vocabulary
        self._most_listed = COPIES // max(1, copied)
        if shortlist is not None:
            shortlist.check(self.target_vocabulary)
        self._program = ctypes_structs.program_struct(program, self._packed)

    def slices(self, lists: Sequence[np.ndarray]) -> Iterator[slice]:
        """Divide a batch into slices of sentences, which are translated one slice after another.

        ``lists`` has, for each sentence, the ids of the target tokens among which to search. For
        each sentence, the machine copies the output weights of its tokens. A slice has as many
        sentences as fit, with their copies, into :data:`COPIES` bytes, but at least one sentence.
        """
        first = count = 0
        for place, tokens in enumerate(lists):
            if place > first and count + len(tokens) > self._most_listed:
                yield slice(first, place)
                first, count = place, 0
            count += len(tokens)
        yield slice(first, len(lists))

    def worker(self) -> "Worker":
        """Allocate a worker, which one thread at a time may use."""
        return Worker(self)


class Worker:
    """The memory with which one thread runs a :class:`Machine`. Translating releases the GIL."""

    def __init__(self, machine: Machine) -> None:
        self._machine, self._process = machine, os.getpid()
        self._results = ctypes_structs.Results()
        self._space = library().engine_open(ctypes.byref(machine._program), machine._path)
        if not self._space:
            raise MemoryError("No memory for the engine.")

    def __del__(self) -> None:
        # In a forked child, the memory may be half written.
        if getattr(self, "_space", None) and self._process == os.getpid():
            library().engine_close(self._space)
            library().engine_forget(ctypes.byref(self._results))
            self._space = None

    def translate(
        self,
        sentences: Rows,
        rules: Rules,
        prefixes: Rows | None = None,
        numbers: Sequence[int] | None = None,
        constraints: Rows | None = None,
    ) -> list[list[Hypothesis]]:
        """Translate each sentence; return at most ``rules.beam`` hypotheses for each, best first.

        Args:
            sentences: ids of source tokens, ``</s>`` included.
            rules: options of the search.
            prefixes: ids of the tokens with which each translation must begin; a prefix that ends
                in ``</s>`` is a complete translation.
            numbers: the sentences' numbers, on which samples depend; None for 0, 1, 2 ….
            constraints: for each sentence, the phrases that its translation must have, as one list
                of token ids; a 0 follows each phrase.

        Raises:
            DataError: a sentence, prefix or constraint has wrong tokens, or the search finds no
                translation with all constraints of a sentence.
            ConfigError: the rules do not go with the constraints or the shortlist.
            MemoryError: the sentences need too much memory.
        """
        machine, shortlist = self._machine, self._machine.shortlist
        check_prefixes(prefixes, machine.target_vocabulary)
        if constraints is not None:
            check_constraints(constraints, sentences, rules, machine)
        numbers = range(len(sentences)) if numbers is None else numbers
        if shortlist is None or not rules.listed:
            return self._translate(sentences, rules, numbers, prefixes, constraints, None)
        shortlist.require(rules.candidate_count + 2)
        none, end = [()] * len(sentences), machine.program.symbols.end
        together = zip(sentences, prefixes or none, constraints or none, strict=True)
        lists = [  # a search must be able to choose its prefix, its constraints and `</s>`
            shortlist.of(sentence, [*prefix, *filter(None, required), end])
            for sentence, prefix, required in together
        ]
        translations = []
        for part in machine.slices(lists):
            rows = (of_all and of_all[part] for of_all in (prefixes, constraints, lists))
            translations += self._translate(sentences[part], rules, numbers[part], *rows)
        return translations

    def _translate(
        self, sentences: Rows, rules: Rules, numbers: Sequence[int], *rows: Sequence[Any] | None
    ) -> list[list[Hypothesis]]:
        """Call ``engine_translate`` in C; ``rows`` are prefixes, constraints, listed target ids."""
        words, begins = joined(sentences)
        program = self._machine.program
        check_sentences(words, begins, program, self._machine.source_vocabulary)
        settings, order = rules.settings(program), np.array(numbers, np.int64)
        prefixes, constraints, listed = (
            (None, None) if values is None else joined(values) for values in rows
        )
        failed = library().engine_translate(
            self._space,
            ctypes.byref(settings),
            *(words.ctypes.data, begins.ctypes.data, len(sentences)),
            *map(ctypes_structs.address, (*prefixes, order, *constraints, *listed)),
            ctypes.byref(self._results),
        )
        if failed:
            raise MemoryError(f"No memory to translate {len(words):,} tokens at once.")
        translations: list[list[Hypothesis]] = [[] for _ in sentences]
        for translation in self._results.found[: self._results.count]:
            translations[translation.sentence].append(self._hypothesis(translation))
        if rows[1] is not None and not all(translations):
            raise DataError(
                "no translation has all constraints of its sentence; raise `--max-len-b`, or "
                "require fewer words."
            )
        for hypotheses in translations:
            hypotheses.sort(key=lambda hypothesis: -hypothesis.score)
        return translations

    def _hypothesis(self, translation: ctypes_structs.Translation) -> Hypothesis:
        results, length, first = self._results, translation.length, translation.first
        tokens = np.array(results.tokens[first : first + length], np.int64)
        scores = np.array(results.scores[first : first + length], np.float32)
        attention, begin = None, translation.attention
        if translation.columns:
            cells = results.attention[begin : begin + length * translation.columns]
            attention = np.array(cells, np.float32).reshape(length, -1)
        return Hypothesis(tokens, translation.score, scores, attention)


class Team:
    """Threads that share the sentences of each batch; their number changes no translation."""

    def __init__(self, machine: Machine, threads: int) -> None:
        self._machine, self._threads, self._free = machine, threads, ForkSafeLock()
        self._start()

    def _start(self) -> None:
        self._process = os.getpid()
        self._workers = [self._machine.worker() for _ in range(self._threads)]
        self._pool = ThreadPoolExecutor(self._threads)

    def translate(
        self,
        sentences: Rows,
        rules: Rules,
        prefixes: Rows | None = None,
        numbers: Sequence[int] | None = None,
        constraints: Rows | None = None,
    ) -> list[list[Hypothesis]]:
        """Translate as :meth:`Worker.translate` does; several threads may call this method."""
        count = max(1, min(len(self._workers), len(sentences)))
        numbers = range(len(sentences)) if numbers is None else numbers
        # Neighbours often have similar lengths, so the parts take about equal times.
        parts = [slice(first, None, count) for first in range(count)]
        translations: list[list[Hypothesis]] = [[]] * len(sentences)
        with self._free.held():
            if self._process != os.getpid():  # a forked child has no other threads
                self._start()
            futures = [
                self._pool.submit(
                    worker.translate,
                    sentences[part],
                    rules,
                    prefixes and prefixes[part],
                    numbers[part],
                    constraints and constraints[part],
                )
                for worker, part in zip(self._workers, parts, strict=False)
            ]
            wait(futures)  # even after an error, because the next call needs these workers
            for part, future in zip(parts, futures, strict=True):
                translations[part] = future.result()
        return translations


def check_sentences(words: np.ndarray, begins: np.ndarray, program: Program, size: int) -> None:
    """Raise DataError if a sentence is empty, too long, or has ids outside the source vocabulary.

    ``words`` and ``begins`` come from :func:`joined`; ``size`` is the size of the vocabulary.
    """
    lengths, longest = np.diff(begins), program.longest_source
    if len(lengths) and (lengths.min() < 1 or lengths.max() > longest):
        raise DataError(
            f"a sentence must have 1 to {longest:,} tokens, but one has "
            f"{lengths.max() if lengths.min() else 0:,}."
        )
    if len(words) and not 0 <= words.min() <= words.max() < size:
        raise DataError(f"a source token's number must be below {size:,} and not negative.")


def check_prefixes(prefixes: Rows | None, size: int) -> None:
    """Raise DataError if a prefix has ids outside the target vocabulary of ``size`` tokens."""
    for prefix in prefixes or ():
        if len(prefix) and not 0 <= min(prefix) <= max(prefix) < size:
            raise DataError("a prefix must consist of target tokens, but has other numbers.")


def check_constraints(constraints: Rows, sentences: Rows, rules: Rules, machine: Machine) -> None:
    """Refuse constraints that no translation can meet, and constraints with sampling.

    Raises:
        DataError: a constraint has wrong tokens, or a sentence's constraints are too long.
        ConfigError: ``rules`` ask for sampling.
    """
    if rules.sampling:
        raise ConfigError("`--constraints` does not go with `--sampling`.")
    program, size = machine.program, machine.target_vocabulary
    for required, sentence in zip(constraints, sentences, strict=True):
        if len(required) and not (0 <= min(required) <= max(required) < size):
            raise DataError("a constraint must consist of target tokens, but has other numbers.")
        if not {program.symbols.end, program.symbols.pad}.isdisjoint(required):
            raise DataError("a constraint must not have `</s>` or `<pad>`.")
        count, longest = sum(map(bool, required)), rules.longest(len(sentence), program)
        if count > longest:
            raise DataError(
                f"constraints of {count:,} tokens do not fit into a translation of at most "
                f"{longest:,}; raise `--max-len-b`, or require fewer words."
            )


def joined(lists: Rows) -> tuple[np.ndarray, np.ndarray]:
    """Concatenate lists of ids (int32); also return each list's first index, and the total size."""
    begins = np.zeros(len(lists) + 1, np.int64)
    np.cumsum([len(numbers) for numbers in lists], out=begins[1:])
    parts = [np.asarray(numbers, getattr(numbers, "dtype", np.int64)) for numbers in lists]
    values = np.concatenate([*parts, np.empty(0, np.int32)])
    if values.dtype != np.int32:  # a number that does not fit must not wrap to a token id
        values = values.clip(-1, np.iinfo(np.int32).max).astype(np.int32)
    return values, begins
