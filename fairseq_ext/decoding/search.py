"""Options and results of a search for translations, shared by all translators; without torch."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairseq_ext.engine import DEFAULT, ENGINES, FAIRSEQ, SHORTLIST_HELP, SPECIAL
from fairseq_ext.engine import HELP as ENGINE_HELP
from fairseq_ext.generation.option_checks import STEEPEST, check_gnmt_lenpen, check_sampling
from fairseq_ext.utils.errors import ConfigError, DataError, wrong_value
from fairseq_ext.utils.option_fields import flag, option, require_at_least, specified

if TYPE_CHECKING:
    from fairseq_ext.engine.engine_model import SearchDefaults

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

MODEL_DEFAULTS = ("beam", "lenpen", "max_len_a", "max_len_b")
"""Options for which a model may have defaults."""
SEARCH = ("constraints", "beam", "nbest", "lenpen", "gnmt_lenpen")  # options of a search
DRAWS = ("epsilon_sampling", "sampling_topk", "seed")  # options of samples
EPSILON, UTILITY = 0.02, "chrf"  # defaults of --epsilon-sampling and --utility with --mbr
OPTIONS_OF_MODE = {"search": SEARCH, "sampling": ("nbest", *DRAWS), "mbr": (*DRAWS, "utility")}
"""The options in ``SEARCH``, ``DRAWS`` and ``utility`` that have an effect in each mode."""


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


def _number(default: float, text: str) -> Any:
    """Declare an option that is None if absent; its help is ``text (default)``.

    ``default`` is the value for models that set no default of their own.
    """
    return option(None, f"{text} ({default})")


@dataclass(frozen=True)
class SearchOptions:
    """The command-line options of a :class:`Search`; None stands for a default of the model."""

    beam: int | None = _number(Search.beam, "beam size")
    nbest: int | None = _number(Search.nbest, "translations for each line")
    lenpen: float | None = _number(
        Search.lenpen, "length penalty: scores are divided by length to this power"
    )
    gnmt_lenpen: float | None = _number(
        Search.gnmt_lenpen, "α of GNMT's length penalty, which replaces --lenpen; 0: off"
    )
    max_len_a: float | None = _number(
        Search.max_len_a,
        "longest translation in tokens: --max-len-b plus N times the number of source tokens",
    )
    max_len_b: int | None = _number(Search.max_len_b, "constant part of the limit in --max-len-a")
    max_tokens: int | None = _number(
        Search.max_tokens, "most source tokens in a batch, padding included"
    )
    constraints: str | None = option(
        None,
        "lines may have, after tabs, words that their translations must contain: in this order "
        "(ordered, also if no value is given) or in any order (unordered)",
        nargs="?",
        const="ordered",
        choices=("ordered", "unordered"),
    )
    buffer_size: int | None = _number(BUFFER, "lines to read before translating; 1: line by line")
    skip_long: bool = option(False, "write an empty line for each line that is too long")
    engine: str = option(DEFAULT, f"{ENGINE_HELP} (%(default)s)", choices=(FAIRSEQ, *ENGINES))
    shortlist: Path | None = option(None, SHORTLIST_HELP)
    fp16: bool = option(False, "half precision, for GPUs")
    cpu: bool = option(False, "use the CPU even if there is a GPU")
    sampling: bool = option(
        False, "sample one or --nbest translations of each line, as for back-translation"
    )
    mbr: int | None = option(
        None,
        "draw N samples of each line, and write the one that agrees best with all of them "
        "(minimum Bayes risk); lower --max-tokens if memory runs out",
    )
    epsilon_sampling: float | None = option(
        None,
        "sample only tokens of at least this probability "
        f"({EPSILON} with --mbr; 0 with --sampling or --sampling-topk)",
    )
    sampling_topk: int | None = _number(
        Search.sampling_topk, "sample only the N most probable tokens; 0: all"
    )
    seed: int | None = _number(Search.seed, "seed of the samples")
    utility: str | None = option(
        None,
        "measure of agreement for --mbr: chrf, bleu, comet:MODEL (see `score --metric`; the "
        "variable FAIRSEQ_EXT_METRIC_PYTHON names the Python that has COMET), or mbrs:METRIC of "
        f"the library mbrs, such as mbrs:bleurt ({UTILITY})",
        metavar="U",
    )

    def check(self) -> None:
        """Raise ConfigError for an option without effect, such as ``--seed`` in a search."""
        mode = "sampling" if self.sampling else "search" if self.mbr is None else "mbr"
        if self.mbr is not None:
            require_at_least(self, mbr=1)
        if self.sampling and self.mbr is not None:
            raise ConfigError("`--sampling` does not go with `--mbr`, which samples by itself.")
        for name in specified(self, (*SEARCH, *DRAWS, "utility")):
            if name in OPTIONS_OF_MODE[mode]:
                continue
            fault = "goes with `--mbr`, which is missing"
            if name in SEARCH:
                fault = f"does not go with `--{mode}`, which samples instead of searching"
            elif name in DRAWS:
                fault = "goes with `--mbr` or `--sampling`, which are missing"
            raise ConfigError(f"`{flag(name)}` {fault}.")

    def search(self, model_defaults: "SearchDefaults") -> Search:
        """Return the settings of a search, with a default for each option that is None.

        The default is the model's, in ``model_defaults``, or else that of :class:`Search`. With
        ``--mbr`` and no ``--sampling-topk``, the default of ``--epsilon-sampling`` is
        :data:`EPSILON`. Raise ConfigError as :meth:`check` does.
        """
        self.check()
        names = [name for name in vars(self) if hasattr(Search, name)]
        values = {**model_defaults, **specified(self, names)}
        if self.sampling or self.mbr is not None:
            count = self.mbr or values.get("nbest", Search.nbest)
            values |= {"sampling": True, "beam": count, "nbest": count, "lenpen": Search.lenpen}
        if self.mbr is not None and not self.sampling_topk:
            values.setdefault("epsilon_sampling", EPSILON)
        return Search(**values)


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
