"""A model for the engine: its program, packed weights, dictionaries and search defaults."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any, TypedDict, TypeGuard

from fairseq_ext.engine import SPECIAL
from fairseq_ext.engine.program import Program, int32, merged
from fairseq_ext.engine.shortlist import Shortlist
from fairseq_ext.engine.weights import Packed
from fairseq_ext.utils.errors import ConfigError

NO_AFFIXES: tuple[tuple[int, ...], ...] = ((), (), ())


class SearchDefaults(TypedDict, total=False):
    """Options of :class:`fairseq_ext.decoding.search.Search` for which a model may set defaults."""

    beam: int
    lenpen: float
    max_len_a: float
    max_len_b: int


@dataclass(frozen=True)
class EngineModel:
    """A model that the engine can run.

    Its matrices are in ``weights``; ``program.matrices`` is empty. ``affixes`` are three tuples of
    token ids to put before a source, after its ``</s>``, and at the beginning of every translation.
    """

    program: Program
    weights: Sequence[Packed]
    architecture: str  # name of the model in fairseq
    src: str
    tgt: str
    source: Sequence[str]  # symbols of the source dictionary, fairseq's special symbols first
    target: Sequence[str]  # symbols of the target dictionary, fairseq's special symbols first
    begins: bool = False  # whether each source begins with <s> (`--source-bos`)
    cut: int = 0  # longest source without <s> (`--truncate-source`); 0: never cut
    affixes: tuple[tuple[int, ...], ...] = NO_AFFIXES
    search: SearchDefaults = field(default_factory=SearchDefaults)
    shortlist: Shortlist | None = None
    path: Path = Path("the model")

    def check(self) -> None:
        """Check all fields except the program, which :mod:`fairseq_ext.engine.verify` checks.

        Raises:
            ConfigError: a field is wrong; the message names it.
            DataError: an id or a length is not a whole number.
        """
        cut = int32(self.cut)
        _require(type(self.begins) is bool and cut >= 0, "its `begins` or `cut` is wrong")
        sizes = len(self.source), len(self.source), len(self.target)
        _require(len(self.affixes) == 3, "its `affixes` are wrong")
        for numbers, size in zip(self.affixes, sizes, strict=True):
            fits = all(0 <= int32(number) < size for number in numbers)
            _require(fits, "its `affixes` are wrong")
        rows = min(self.weights[number].outputs for number in self.program.source_tables)
        fits = len(SPECIAL) <= len(self.source) <= rows
        _require(fits, "its source dictionary belongs to another model")
        rows = self.weights[self.program.outputs[0].weight].outputs
        _require(len(self.target) == rows, "its target dictionary belongs to another model")


def ensemble(models: Sequence[EngineModel]) -> EngineModel:
    """Join models into an ensemble, which averages the models' probabilities of each token.

    Fields other than the program and the weights come from the first model. Raise ConfigError if
    the models differ in dictionaries, in languages, or in the tokens that they add to sentences or
    cut from them (``begins``, ``affixes``, ``cut``).
    """
    first, *rest = models
    shared = attrgetter("src", "tgt", "begins", "cut", "affixes", "source", "target")
    for model in rest:
        if shared(model) != shared(first):
            raise ConfigError(
                f"{first.path} and {model.path} cannot form an ensemble: they have different "
                "dictionaries, languages or options for sources, such as `--truncate-source`."
            )
    programs, counts = [m.program for m in models], [len(m.weights) for m in models]
    weights = [*chain(*(model.weights for model in models))]
    return replace(first, program=merged(programs, counts), weights=weights)


def is_search(defaults: Any) -> TypeGuard[SearchDefaults]:
    """Return whether ``defaults`` is a dictionary of search options that a model may set."""
    types = SearchDefaults.__annotations__
    return isinstance(defaults, dict) and all(
        name in types and type(value) in (int, types[name]) for name, value in defaults.items()
    )


def _require(condition: bool, fault: str) -> None:
    if not condition:
        raise ConfigError(fault)
