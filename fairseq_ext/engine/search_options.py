"""The options of beam search and sampling in the engine."""

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass

from fairseq_ext.engine.program import Program

INT32 = 2**31 - 1
Rows = Sequence[Sequence[int]]
"""Lists of token ids, one list for each of several sentences."""


@dataclass(frozen=True)
class Rules:
    """The options of a search, named as in fairseq-generate and with its defaults.

    Four options are not fairseq-generate's: ``length_offset`` (added to lengths in the length
    penalty; 5 for GNMT's), ``epsilon`` (smallest probability of a sampled token), ``unordered``
    (whether constraints may be met in any order), and ``listed`` (whether to keep to the tokens of
    a shortlist). The random numbers of ``sampling`` depend only on the seed, the sentence's number,
    the step, and the index of the hypothesis within its sentence.

    With ``match_source_len``, as in fairseq, the translation of n source tokens has n + 1 tokens;
    neither number counts ``</s>``. The ``</s>`` of the translation adds nothing to its score.
    """

    beam: int = 5
    min_len: int = 1
    max_len_a: float = 0.0
    max_len_b: int = 200
    lenpen: float | None = 1.0  # None leaves scores as sums of log-probabilities
    length_offset: float = 0.0
    unkpen: float = 0.0
    temperature: float = 1.0
    match_source_len: bool = False
    no_repeat_ngram_size: int = 0  # no n-gram of this size occurs twice; 0: no limit
    sampling: bool = False  # whether to draw tokens instead of searching
    top_k: int = 0  # draw only among this many most probable tokens; 0: all
    top_p: float = 0.0  # draw only among the most probable tokens, up to this total; 0: all
    epsilon: float = 0.0  # draw only tokens of at least this probability, or the most probable one
    seed: int = 1  # seed of the samples, 0 to 2^64 - 1
    attention: bool = False  # whether to return the attention
    unordered: bool = False
    listed: bool = True

    @property
    def candidate_count(self) -> int:
        """Number of candidates for the next token of a hypothesis: 1 if sampling, else 2 · beam."""
        return 1 if self.sampling else 2 * self.beam

    def longest(self, source_length: int, program: Program) -> int:
        """Return the largest number of tokens that a translation may have before ``</s>``.

        ``source_length`` includes the source's ``</s>``.
        """
        a, b = (min(bound, program.longest_target) for bound in (self.max_len_a, self.max_len_b))
        limit = source_length if self.match_source_len else int(a * source_length + b)
        return min(limit, program.longest_target - 1)

    def score(self, total: float, length: int) -> float:
        """Return the score of a translation: ``total``, divided by the length penalty.

        ``total`` is the sum of the log-probabilities of the translation's ``length`` tokens. If
        ``lenpen`` is None, return ``total``.
        """
        if self.lenpen is None:
            return total
        return total / ((self.length_offset + length) / (self.length_offset + 1)) ** self.lenpen

    def settings(self, program: Program) -> ctypes.Structure:
        """Convert the rules to the C structure with which the engine runs ``program``."""
        # Larger numbers would have the same effect, but do not fit into the machine's types.
        lengths = (self.min_len, self.max_len_a, self.max_len_b, self.no_repeat_ngram_size)
        min_len, a, b, no_repeat = (min(value, program.longest_target) for value in lengths)
        return _Rules(
            *(self.beam, min_len, b, program.longest_target - 1),
            *(self.attention and program.has_alignment, self.match_source_len, no_repeat),
            *(self.sampling, min(self.top_k, INT32), self.unordered),
            *(a, self.unkpen, self.temperature),
            *(math.nan if self.lenpen is None else self.lenpen, self.length_offset),
            *(self.top_p, self.epsilon, self.seed),
        )


class _Rules(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int32) for name in ("beam", "min_len", "max_len_b", "most", "attention")),
        *((name, ctypes.c_int32) for name in ("match_source", "no_repeat", "sampling", "top_k")),
        ("unordered", ctypes.c_int32),
        ("max_len_a", ctypes.c_double),
        *((name, ctypes.c_float) for name in ("unkpen", "temperature", "lenpen")),
        *((name, ctypes.c_float) for name in ("length_offset", "top_p", "epsilon")),
        ("seed", ctypes.c_uint64),
    )
