"""Options and results of a search for translations, shared by all translators; without torch."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path

from fairseq_ext.engine import DEFAULT, SPECIAL
from fairseq_ext.generation.option_checks import STEEPEST, check_gnmt_lenpen, check_sampling
from fairseq_ext.utils.errors import ConfigError, DataError, wrong_value
from fairseq_ext.utils.option_fields import flag

# Numeric options of a search, by field: type, minimum and maximum.
RANGES: dict[str, tuple[type, float, float]] = {
    "beam": (Integral, 1, math.inf),
    "nbest": (Integral, 1, math.inf),
    "max_len_b": (Integral, 1, math.inf),
    "max_tokens": (Integral, 1, math.inf),
    "sampling_topk": (Integral, 0, math.inf),
    "seed": (Integral, 0, 2**32 - 1),  # numpy, which fairseq also seeds, allows no others
    "lenpen": (Real, -STEEPEST, STEEPEST),
    "max_len_a": (Real, 0, 1_000_000),
}

BUFFER = 2000  # lines to read before translating them
DATA_HELP = (
    "folder with the dictionaries, written by fairseq-preprocess (default: the model's own "
    "dictionaries, or those of its training)"
)
KEEP_HELP = "regular expression of text to keep as it is, such as \\{\\w+\\}; may be repeated"


@dataclass(frozen=True)
class Search:
    """The options of a search for translations, or of sampling.

    Attributes:
        beam: beam size, or number of samples.
        nbest: translations returned for each sentence.
        lenpen: a score is divided by the translation's length to this power.
        gnmt_lenpen: α of GNMT's length penalty, which replaces ``lenpen``; 0 for ``lenpen``.
        sampling: whether to draw tokens instead of searching.
        epsilon_sampling: draw only among tokens of at least this probability.
        sampling_topk: draw only among this many most probable tokens; 0 for all.
        seed: seed of the samples.
        attention: whether to return attention weights, if all models have them.
        max_len_a, max_len_b: a translation has at most ``a × source length + b`` tokens.
        max_tokens: most source tokens in a batch; fairseq counts padding, too.
        fp16: whether to use half precision.
        cpu: whether to use the CPU even if there is a GPU.
        engine: :data:`fairseq_ext.engine.FAIRSEQ`, or one of :data:`fairseq_ext.engine.ENGINES`.
        shortlist: file of `fairseq-ext shortlist` with the tokens that translations may have.
        constraints: if not None, a sentence may have constraints after tabs: target tokens that its
            translation must have. ``ordered``: in the order of the line; ``unordered``: in any
            order.

    Raises:
        ConfigError: options are out of range or do not go together.
    """

    beam: int = 5
    nbest: int = 1
    lenpen: float = 1.0
    gnmt_lenpen: float = 0.0
    sampling: bool = False
    epsilon_sampling: float = 0.0
    sampling_topk: int = 0
    seed: int = 1
    attention: bool = False
    max_len_a: float = 0.0
    max_len_b: int = 200
    max_tokens: int = 4000
    fp16: bool = False
    cpu: bool = False
    engine: str = DEFAULT
    shortlist: str | Path | None = None
    constraints: str | None = None

    def __post_init__(self) -> None:
        for name, (kind, minimum, maximum) in RANGES.items():
            value = getattr(self, name)
            is_number = isinstance(value, kind)
            if is_number and minimum <= value <= maximum:
                continue
            wish = "a whole number" if kind is Integral else "a number"
            if is_number:
                wish = f"at least {minimum}" if value < minimum else f"at most {maximum}"
            raise wrong_value(flag(name), wish, value)
        if self.constraints not in (None, "ordered", "unordered"):
            raise wrong_value("--constraints", "ordered or unordered", self.constraints)
        if self.nbest > self.beam:
            raise wrong_value("--nbest", f"at most `--beam`, which is {self.beam}", self.nbest)
        check_sampling(self.epsilon_sampling, self)
        check_gnmt_lenpen(self.gnmt_lenpen, self)


@dataclass(frozen=True)
class Candidate:
    """One translation of a sentence, with its score.

    Attributes:
        tokens: the tokens that the model wrote, separated by spaces.
        score: log-probability (base 2) over the length penalty, as fairseq-generate prints it.
        attention: weights ``[T][S]`` of T target and S source tokens, ``</s>`` included;
            empty if :attr:`Search.attention` is false.
    """

    tokens: str
    score: float
    attention: tuple[tuple[float, ...], ...] = ()


@dataclass
class Counts:
    """Counts of source tokens read, of unknown source tokens, and of target tokens written."""

    source: int = 0
    unknown: int = 0
    target: int = 0


def require_compatible(constraints: str | None, **options: object) -> None:
    """Raise ConfigError if ``constraints`` and one of ``options`` are both set.

    ``options`` are passed with their names, such as ``keep=…``. They change a line before it is
    translated, and would also change the constraints in this line.
    """
    names = [flag(name) for name, value in options.items() if value]
    if constraints is not None and names:
        raise ConfigError(f"`{names[0]}` does not go with `--constraints`; give one of them.")


def require_short(lengths: Iterable[int], longest: int) -> None:
    """Raise DataError if a target has more than ``longest`` tokens, ``</s>`` included."""
    for number, length in enumerate(lengths, start=1):
        if length > longest:
            raise DataError(
                f"target {number} has {length:,} tokens, but the model writes at most {longest:,}."
            )


def require_writable(constraint: str, tokens: Iterable[int], end: int) -> None:
    """Raise DataError if a constraint has special tokens or ``end``, which ends a translation."""
    if not {*SPECIAL, end}.isdisjoint(tokens):
        raise DataError(f"constraint `{constraint:.60}` has tokens that the model does not write.")
