"""Options of search and sampling; their names, types and defaults are those of :class:`Search`."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fairseq_ext.decoding.search import BUFFER, Search
from fairseq_ext.engine import DEFAULT, ENGINES, FAIRSEQ, SHORTLIST_HELP
from fairseq_ext.engine import HELP as ENGINE_HELP
from fairseq_ext.utils.errors import ConfigError

HELP = {
    "beam": "beam size",
    "nbest": "translations of a line",
    "lenpen": "length penalty: scores are divided by length to this power",
    "gnmt_lenpen": "GNMT's length penalty instead, with this α; 0: off",
    "max_len_a": "at most this times the source tokens, plus --max-len-b, are written",
    "max_len_b": "see --max-len-a",
    "max_tokens": "source tokens in a batch",
}
OF_A_MODEL = ("beam", "lenpen", "max_len_a", "max_len_b")
"""Options that a model may have defaults for."""
SEARCH = ("beam", "nbest", "lenpen", "gnmt_lenpen")
LIMITS = ("max_len_a", "max_len_b", "max_tokens")
SAMPLES = {
    "epsilon_sampling": (0.02, "draw among tokens of at least this probability; for --mbr"),
    "sampling_topk": (0, "draw among this many of the most probable tokens; 0: all"),
    "seed": (1, "seed of the samples"),
    "utility": (
        "chrf",
        "chrf, bleu, comet:MODEL (see `score --metric`; its Python by FAIRSEQ_EXT_METRIC_PYTHON), "
        "or mbrs:METRIC of the library mbrs, such as mbrs:bleurt",
    ),
}
DRAWS = ("epsilon_sampling", "sampling_topk", "seed")
OPTIONS_OF_MODE = {
    "search": SEARCH,
    "sampling": ("nbest", *DRAWS),
    "mbr": (*DRAWS, "utility"),
}


def add(group: Any, names: Iterable[str], **replaced_help: str) -> None:
    """Add options, which are None where they are not given.

    Args:
        group: a parser, or a group of its options.
        names: keys of :data:`HELP`.
        replaced_help: help of an option instead of that in :data:`HELP`.
    """
    for name in names:
        add_value(group, name, getattr(Search, name), replaced_help.get(name, HELP[name]))


def add_value(group: Any, name: str, default: int | float | str, text: str) -> None:
    """Add an option, None where it is not given, with the type of its default."""
    metavar = name[0].upper() if isinstance(default, str) else "N"
    group.add_argument(
        f"--{name.replace('_', '-')}",
        type=type(default),
        metavar=metavar,
        help=f"{text} ({default})",
    )


def specified(args: Any, names: Iterable[str] = OF_A_MODEL) -> dict[str, Any]:
    """The options that are on the command line, by name."""
    return {name: value for name in names if (value := getattr(args, name)) is not None}


@dataclass(frozen=True)
class SearchOptions:
    """Search and sampling as the command line of ``translate`` asks for them.

    A number is None where the command line leaves it to the model; see :meth:`search`.
    """

    beam: int | None = None
    nbest: int | None = None
    lenpen: float | None = None
    gnmt_lenpen: float | None = None
    max_len_a: float | None = None
    max_len_b: int | None = None
    max_tokens: int | None = None
    engine: str = DEFAULT
    shortlist: Path | None = None
    fp16: bool = False
    cpu: bool = False
    sampling: bool = False
    mbr: int | None = None
    epsilon_sampling: float | None = None
    sampling_topk: int | None = None
    seed: int | None = None
    utility: str | None = None

    @property
    def mode(self) -> str:
        """A key of :data:`OPTIONS_OF_MODE`."""
        return "sampling" if self.sampling else "search" if self.mbr is None else "mbr"

    def check(self) -> None:
        """Refuse an option that another one makes useless.

        Raises:
            ConfigError: the first of them.
        """
        if self.mbr is not None and self.mbr < 1:
            raise ConfigError(f"`--mbr` must be at least 1, but is {self.mbr} instead.")
        if self.sampling and self.mbr is not None:
            raise ConfigError("`--sampling` does not go with `--mbr`, which samples by itself.")
        for name in (*SEARCH, *SAMPLES):
            if getattr(self, name) is not None and name not in OPTIONS_OF_MODE[self.mode]:
                raise ConfigError(f"`--{name.replace('_', '-')}` {self._why_not(name)}.")

    def _why_not(self, name: str) -> str:
        if name in SEARCH:
            return f"does not go with `--{self.mode}`, which samples instead of searching"
        if name in DRAWS:
            return "goes with `--mbr` or `--sampling`, which are missing"
        return "goes with `--mbr`, which is missing"

    def search(self, model_defaults: Mapping[str, int | float]) -> Search:
        """Combine the options with the defaults of a model and of the command.

        Raises:
            ConfigError: an option that another one makes useless.
        """
        self.check()
        values = {name: getattr(Search, name) for name in (*SEARCH, *LIMITS)}
        values |= {name: default for name, (default, _) in SAMPLES.items()}
        values |= dict(model_defaults) | specified(self, [*values])
        fixed = {name: getattr(self, name) for name in ("fp16", "cpu", "engine", "shortlist")}
        fixed |= {name: values[name] for name in LIMITS}
        if self.mode == "search":
            return Search(**fixed, **{name: values[name] for name in SEARCH})
        count = self.mbr or values["nbest"]
        epsilon = values["epsilon_sampling"]
        if self.epsilon_sampling is None and (self.mode == "sampling" or self.sampling_topk):
            epsilon = 0.0
        samples = {"epsilon": epsilon, "top_k": values["sampling_topk"], "seed": values["seed"]}
        return Search(**fixed, beam=count, nbest=count, sampling=True, **samples)

    def of_job(self) -> dict[str, Any]:
        """The options that change translations, by name; files are named by their checksums."""
        elsewhere = ("cpu", "fp16", "max_tokens", "shortlist")
        values = {name: value for name, value in asdict(self).items() if name not in elsewhere}
        return {n: value for n, value in values.items() if value is not None and value is not False}


def add_search(parser: argparse.ArgumentParser) -> None:
    """Add the options of :class:`SearchOptions`, as two groups."""
    group = parser.add_argument_group("search")
    add(group, (*SEARCH, *LIMITS))
    add_value(group, "buffer_size", BUFFER, "lines read before they are translated; 1 to converse")
    group.add_argument(
        "--skip-long", action="store_true", help="leave lines empty that are too long, and go on"
    )
    group.add_argument(
        "--engine",
        choices=(FAIRSEQ, *ENGINES),
        default=DEFAULT,
        help=f"{ENGINE_HELP} (%(default)s)",
    )
    group.add_argument("--shortlist", type=Path, metavar="FILE", help=SHORTLIST_HELP)
    group.add_argument("--fp16", action="store_true", help="half precision, for GPUs")
    group.add_argument("--cpu", action="store_true", help="leave a GPU alone")
    group = parser.add_argument_group("samples instead of search")
    group.add_argument(
        "--sampling",
        action="store_true",
        help="draw a translation of each line, or --nbest of them, as for back-translation",
    )
    group.add_argument(
        "--mbr",
        type=int,
        metavar="N",
        help="draw N samples of each line and give the one that agrees best with all of them "
        "(minimum Bayes risk); lower --max-tokens where memory is short",
    )
    for name, (default, text) in SAMPLES.items():
        add_value(group, name, default, text)
