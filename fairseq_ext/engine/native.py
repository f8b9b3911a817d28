"""The machine that runs programs, through ctypes.

It is compiled when the package is installed. The memory of a :class:`Worker` is its thread's alone;
all workers of a :class:`Machine` read the same weights.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from fairseq_ext.engine.program import NOTHING, READINGS, Code, Operation, Program
from fairseq_ext.engine.rules import Rules
from fairseq_ext.engine.verify import verify
from fairseq_ext.engine.weights import Packed, pack
from fairseq_ext.errors import ConfigError, DataError

PATHS = ("c", "avx2", "avx512")
VARIABLE = "FAIRSEQ_EXT_ENGINE"
INTERFACE = 3  # as in interface.c

_POINTER, _LONG, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32, ctypes.c_float


class _Weight(ctypes.Structure):
    _fields_ = (
        *(("kind", _INT), ("reading", _INT), ("inputs", _LONG), ("outputs", _LONG)),
        *(("values", _POINTER), ("scales", _POINTER), ("sums", _POINTER)),
        *(("bound", _FLOAT), ("divisor", _FLOAT)),
    )


class _Shape(ctypes.Structure):
    _fields_ = tuple((name, _INT) for name in ("width", "phase", "rows"))


class _Columns(ctypes.Structure):
    _fields_ = tuple((name, _INT) for name in ("index", "offset", "width"))


class _Operation(ctypes.Structure):
    _fields_ = (
        *(("code", _INT), ("out", _Columns), ("inputs", _Columns * 3)),
        *(("weights", _INT * 3), ("ints", _INT * 4), ("reals", _FLOAT * 2)),
    )


class _Program(ctypes.Structure):
    _fields_ = (
        *((name, _POINTER) for name in ("weights", "shapes", "encoder", "decoder")),
        *((name, _INT) for name in ("encoder_count", "decoder_count", "shape_count", "caches")),
        ("result", _Columns),
        *((name, _INT) for name in ("output_weight", "output_bias", "bos", "eos", "pad", "unk")),
    )


class _Translation(ctypes.Structure):
    _fields_ = (
        *(("sentence", _INT), ("length", _INT), ("score", _FLOAT), ("columns", _INT)),
        *(("first", _LONG), ("attention", _LONG)),
    )


class _Results(ctypes.Structure):
    _fields_ = (
        *(("found", ctypes.POINTER(_Translation)), ("count", _LONG), ("room", _LONG)),
        *(("tokens", ctypes.POINTER(_INT)), ("scores", ctypes.POINTER(_FLOAT))),
        *(("length", _LONG), ("length_room", _LONG)),
        *(("attention", ctypes.POINTER(_FLOAT)), ("attention_length", _LONG)),
        ("attention_room", _LONG),
    )


@functools.cache
def library() -> ctypes.CDLL | None:
    """The compiled machine; None if it was not built, or is of another version."""
    spec = importlib.util.find_spec("fairseq_ext.engine._machine")
    if spec is None or spec.origin is None:
        return None
    try:
        found = ctypes.CDLL(spec.origin)
        if found.engine_interface() != INTERFACE:
            return None
    except (OSError, AttributeError):
        return None
    found.engine_open.restype = _POINTER
    found.engine_open.argtypes = [_POINTER, ctypes.c_int]
    found.engine_close.argtypes = [_POINTER]
    found.engine_translate.argtypes = [*[_POINTER] * 4, _LONG, *[_POINTER] * 4]
    found.engine_forget.argtypes = [_POINTER]
    found.engine_product.argtypes = [
        ctypes.c_int,
        _POINTER,
        _POINTER,
        _LONG,
        _POINTER,
        ctypes.c_int,
        _POINTER,
    ]
    return found


@functools.cache
def available_paths() -> tuple[str, ...]:
    """Those of :data:`PATHS` that this processor can run; none without the compiled machine."""
    machine = library()
    return () if machine is None else PATHS[: machine.engine_best_path() + 1]


def active_path() -> str:
    """The one of :data:`PATHS` that is used: the last available one, or ``FAIRSEQ_EXT_ENGINE``'s.

    Raises:
        ConfigError: it is not available, or the machine was not compiled.
    """
    paths = available_paths()
    if not paths:
        raise ConfigError(
            "fairseq-ext was built without its engine; `fairseq-ext doctor` names the cure."
        )
    path = os.environ.get(VARIABLE) or paths[-1]
    if path not in paths:
        raise ConfigError(f"`{VARIABLE}` must be one of {', '.join(paths)}, but is `{path}`.")
    return path


class Found(NamedTuple):
    """One translation.

    Attributes:
        tokens: numbers, ``</s>`` included.
        score: the sum of the log-probabilities over the length's power.
        scores: log-probabilities of the tokens.
        attention: ``[target tokens, source tokens]``, or None.
    """

    tokens: np.ndarray
    score: float
    scores: np.ndarray
    attention: np.ndarray | None


class Machine:
    """A program with its weights laid out.

    Args:
        program: of a model.
        numbers: of the weights; one of ``fp32``, ``bf16`` and ``int8``.
        path: one of :data:`PATHS`; None chooses.
        packed: its weights, where they are laid out already.

    Raises:
        ConfigError: the machine was not compiled, a path that is not available, or a program that
            cannot run.
    """

    def __init__(
        self,
        program: Program,
        numbers: str = "fp32",
        path: str | None = None,
        packed: Sequence[Packed] | None = None,
    ) -> None:
        self.program = program
        self._path = PATHS.index(path or active_path())
        self._packed = packed or [pack(matrix, numbers) for matrix in program.matrices]
        verify(program, self._packed)
        tables = (one.weights[0] for one in program.encoder if one.code is Code.EMBED)
        self.source_vocabulary = min(self._packed[number].outputs for number in tables)
        self.target_vocabulary = self._packed[program.output[0]].outputs
        self._kept = (
            (_Weight * len(self._packed))(*map(_weight, self._packed)),
            (_Shape * len(program.shapes))(*(_Shape(*shape) for shape in program.shapes)),
            (_Operation * len(program.encoder))(*map(_operation, program.encoder)),
            (_Operation * len(program.decoder))(*map(_operation, program.decoder)),
        )
        symbols = program.symbols
        self._program = _Program(
            *map(ctypes.addressof, self._kept),
            *(len(program.encoder), len(program.decoder), len(program.shapes), program.caches),
            _Columns(*program.result),
            *program.output,
            *(symbols.begin, symbols.end, symbols.pad, symbols.unknown),
        )

    def check(self, words: np.ndarray, begins: np.ndarray) -> None:
        """Refuse sentences that the program cannot read: the machine itself checks nothing.

        Raises:
            DataError: a sentence that is empty or too long, or a number that is no token's.
        """
        lengths, longest = np.diff(begins), self.program.longest_source
        if len(lengths) and (lengths.min() < 1 or lengths.max() > longest):
            raise DataError(
                f"a sentence must have 1 to {longest:,} tokens, but one has "
                f"{lengths.max() if lengths.min() else 0:,}."
            )
        size = self.source_vocabulary
        if len(words) and not 0 <= words.min() <= words.max() < size:
            raise DataError(f"a source token's number must be below {size:,} and not negative.")

    def worker(self) -> Worker:
        """Memory for one thread."""
        return Worker(self)


class Worker:
    """One thread's memory; its methods release Python's lock while they compute."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._results = _Results()
        self._space = library().engine_open(ctypes.byref(machine._program), machine._path)
        if not self._space:
            raise MemoryError("No memory for the engine.")

    def __del__(self) -> None:
        if getattr(self, "_space", None):
            library().engine_close(self._space)
            library().engine_forget(ctypes.byref(self._results))
            self._space = None

    def translate(
        self,
        sentences: Sequence[Sequence[int]],
        rules: Rules,
        prefixes: Sequence[Sequence[int]] | None = None,
        numbers: Sequence[int] | None = None,
    ) -> list[list[Found]]:
        """Translations of each sentence, best first, at most ``rules.beam``.

        Args:
            sentences: numbers of source tokens, ``</s>`` included.
            rules: how to search.
            prefixes: numbers of the tokens that each translation has to begin with; after
                ``</s>`` it is complete.
            numbers: of the sentences, which samples depend on; None counts them from 0.

        Raises:
            DataError: a sentence that is empty or too long, or a number that is no token's.
            MemoryError: the batch is too large.
        """
        words, begins = _joined(sentences)
        self._machine.check(words, begins)
        program = self._machine.program
        settings = rules.settings(program)
        forced = forced_begins = None
        if prefixes is not None:
            forced, forced_begins = _joined(prefixes)
            size = self._machine.target_vocabulary
            if len(forced) and not 0 <= forced.min() <= forced.max() < size:
                raise DataError("a prefix must be of tokens of the target, but is not.")
        order = None if numbers is None else np.array(numbers, np.int64)
        failed = library().engine_translate(
            self._space,
            ctypes.byref(settings),
            *(words.ctypes.data, begins.ctypes.data, len(sentences)),
            None if forced is None else forced.ctypes.data,
            None if forced_begins is None else forced_begins.ctypes.data,
            None if order is None else order.ctypes.data,
            ctypes.byref(self._results),
        )
        if failed:
            raise MemoryError(f"No memory to translate {len(words):,} tokens at once.")
        found: list[list[Found]] = [[] for _ in sentences]
        for one in self._results.found[: self._results.count]:
            found[one.sentence].append(self._found(one))
        return [sorted(some, key=lambda one: -one.score) for some in found]

    def _found(self, one: _Translation) -> Found:
        results, span = self._results, slice(one.first, one.first + one.length)
        attention = None
        if one.columns:
            cells = slice(one.attention, one.attention + one.length * one.columns)
            attention = np.array(results.attention[cells], np.float32).reshape(one.length, -1)
        tokens = np.array(results.tokens[span], np.int64)
        return Found(tokens, one.score, np.array(results.scores[span], np.float32), attention)


class Team:
    """Workers of one machine that share out the sentences of a batch; the result is one worker's.

    Args:
        machine: what they run.
        threads: how many.
    """

    def __init__(self, machine: Machine, threads: int) -> None:
        self._workers = [machine.worker() for _ in range(threads)]
        self._pool = ThreadPoolExecutor(threads)
        self._free = threading.Lock()  # whoever calls from another thread waits for the workers

    def translate(
        self,
        sentences: Sequence[Sequence[int]],
        rules: Rules,
        prefixes: Sequence[Sequence[int]] | None = None,
        numbers: Sequence[int] | None = None,
    ) -> list[list[Found]]:
        """As :meth:`Worker.translate`; several threads may call it."""
        with self._free:
            return self._shared_out(sentences, rules, prefixes, numbers)

    def _shared_out(
        self,
        sentences: Sequence[Sequence[int]],
        rules: Rules,
        prefixes: Sequence[Sequence[int]] | None,
        numbers: Sequence[int] | None,
    ) -> list[list[Found]]:
        count = min(len(self._workers), len(sentences))
        numbers = range(len(sentences)) if numbers is None else numbers
        if count < 2:
            return self._workers[0].translate(sentences, rules, prefixes, numbers)
        parts = [slice(first, None, count) for first in range(count)]  # about equally long ones
        started = [
            self._pool.submit(
                worker.translate, sentences[part], rules, prefixes and prefixes[part], numbers[part]
            )
            for worker, part in zip(self._workers, parts, strict=False)
        ]
        found: list[list[Found]] = [[]] * len(sentences)
        for part, one in zip(parts, started, strict=True):
            found[part] = one.result()
        return found


def _joined(lists: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """All numbers in a row, and where each list begins (and the last one ends)."""
    begins = np.zeros(len(lists) + 1, np.int64)
    np.cumsum([len(one) for one in lists], out=begins[1:])
    whole = np.concatenate([*map(np.asarray, lists), np.empty(0)])
    return np.ascontiguousarray(whole, np.int32), begins


def _weight(packed: Packed) -> _Weight:
    scales, sums = (None if x is None else x.ctypes.data for x in (packed.scales, packed.sums))
    how, bound, divisor = packed.reading
    return _Weight(
        *(packed.kind, READINGS.index(how), packed.inputs, packed.outputs),
        *(packed.values.ctypes.data, scales, sums, bound, divisor),
    )


def _operation(one: Operation) -> _Operation:
    made = _Operation(one.code, _Columns(*one.out))
    for i in range(3):
        made.inputs[i] = _Columns(*(one.inputs[i] if i < len(one.inputs) else NOTHING))
        made.weights[i] = one.weights[i] if i < len(one.weights) else -1
    for i, value in enumerate(one.ints):
        made.ints[i] = value
    for i, value in enumerate(one.reals):
        made.reals[i] = value
    return made
