"""How ``fairseq-ext translate`` searches or samples: options and their defaults."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairseq_ext.commands.kinds import kind_of
from fairseq_ext.engine import DEFAULT, ENGINES, FAIRSEQ, SHORTLIST_HELP
from fairseq_ext.engine import HELP as ENGINE_HELP

if TYPE_CHECKING:
    from fairseq_ext.decoding.search import Search

SEARCH = {
    "beam": (5, "hypotheses followed"),
    "nbest": (1, "translations of a line"),
    "lenpen": (1.0, "length penalty: scores are divided by length to this power"),
    "gnmt_lenpen": (0.0, "GNMT's length penalty instead, with this α; 0: off"),
}
LIMITS = {
    "max_len_a": (0.0, "at most this times the source tokens, plus --max-len-b, are written"),
    "max_len_b": (200, "see --max-len-a"),
    "max_tokens": (4000, "source tokens in a batch"),
}
OF_A_MODEL = {
    name: {**SEARCH, **LIMITS}[name] for name in ("beam", "lenpen", "max_len_a", "max_len_b")
}
"""Options of the search that a model may bring along."""
BUFFER = 2000
SWITCHES = {"fp16": "half precision, for GPUs", "cpu": "leave a GPU alone"}
SAMPLES = {
    "epsilon_sampling": (0.02, "draw among tokens of at least this probability; for --mbr"),
    "sampling_topk": (0, "draw among so many of the most probable tokens; 0: all"),
    "seed": (1, "of the samples"),
    "utility": (
        "chrf",
        "chrf, bleu, comet:MODEL (see `score --metric`; its Python by FAIRSEQ_EXT_METRIC_PYTHON), "
        "or mbrs:METRIC of the library mbrs, such as mbrs:bleurt",
    ),
}


def add_search(group: Any) -> None:
    """Add the options of a search."""
    for name, (default, text) in {**SEARCH, **LIMITS}.items():
        _add_value(group, name, default, text)
    _add_value(group, "buffer_size", BUFFER, "lines read before they are translated; 1 to converse")
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
    for name, text in SWITCHES.items():
        group.add_argument(f"--{name}", action="store_true", help=text)


def add_samples(group: Any) -> None:
    """Add those of samples in its place."""
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
        _add_value(group, name, default, text)


def _add_value(group: Any, name: str, default: int | float | str, text: str) -> None:
    kind = {"type": type(default), "metavar": name[0].upper()}
    if not isinstance(default, str):
        kind["metavar"] = "N"
    group.add_argument(f"--{name.replace('_', '-')}", **kind, help=f"{text} ({default})")


def chosen_search(args: argparse.Namespace, own: Mapping[str, int | float]) -> Search:
    """How to search, or to sample for ``--mbr``.

    Args:
        args: options; None where one is not given.
        own: the model's own defaults.

    Raises:
        ConfigError: options of the one given with the other.
    """
    from fairseq_ext.decoding.search import Search

    kind = kind_of(args)
    known = {**SEARCH, **LIMITS, **SAMPLES}
    chosen = {name: default for name, (default, _) in known.items()} | dict(own)
    chosen |= {name: value for name in known if (value := getattr(args, name)) is not None}
    fixed = {name: getattr(args, name) for name in (*SWITCHES, "engine", "shortlist")}
    fixed |= {name: chosen[name] for name in LIMITS}
    if kind == "search":
        return Search(**fixed, **{name: chosen[name] for name in SEARCH})
    drawn = args.mbr or chosen["nbest"]
    epsilon = chosen["epsilon_sampling"]
    if args.epsilon_sampling is None and (kind == "sampling" or args.sampling_topk):
        epsilon = 0.0
    samples = {"epsilon": epsilon, "top_k": chosen["sampling_topk"], "seed": chosen["seed"]}
    return Search(**fixed, beam=drawn, nbest=drawn, sampling=True, **samples)
