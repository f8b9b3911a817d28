"""How ``fairseq-ext translate`` searches or samples: options and their defaults."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairseq_ext.commands import search_options
from fairseq_ext.commands.decoding_modes import kind_of
from fairseq_ext.decoding.search import BUFFER, Search
from fairseq_ext.engine import DEFAULT, ENGINES, FAIRSEQ, SHORTLIST_HELP
from fairseq_ext.engine import HELP as ENGINE_HELP

SEARCH = ("beam", "nbest", "lenpen", "gnmt_lenpen")
LIMITS = ("max_len_a", "max_len_b", "max_tokens")
DEVICE_FLAGS = {"fp16": "half precision, for GPUs", "cpu": "leave a GPU alone"}
SAMPLES = {
    "epsilon_sampling": (0.02, "draw among tokens of at least this probability; for --mbr"),
    "sampling_topk": (0, "draw among this many of the most probable tokens; 0: all"),
    "seed": (1, "of the samples"),
    "utility": (
        "chrf",
        "chrf, bleu, comet:MODEL (see `score --metric`; its Python by FAIRSEQ_EXT_METRIC_PYTHON), "
        "or mbrs:METRIC of the library mbrs, such as mbrs:bleurt",
    ),
}


def add_search(group: Any) -> None:
    """Add the options of a search."""
    search_options.add(group, (*SEARCH, *LIMITS))
    text = "lines read before they are translated; 1 to converse"
    search_options.add_value(group, "buffer_size", BUFFER, text)
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
    for name, text in DEVICE_FLAGS.items():
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
        search_options.add_value(group, name, default, text)


def chosen_search(args: argparse.Namespace, own: Mapping[str, int | float]) -> Search:
    """How to search, or to sample for ``--mbr``.

    Args:
        args: options; None where one is not given.
        own: the model's own defaults.

    Raises:
        ConfigError: options of the one given with the other.
    """
    kind = kind_of(args)
    defaults = {name: getattr(Search, name) for name in (*SEARCH, *LIMITS)}
    defaults |= {name: default for name, (default, _) in SAMPLES.items()}
    chosen = defaults | dict(own) | search_options.given(args, defaults)
    fixed = {name: getattr(args, name) for name in (*DEVICE_FLAGS, "engine", "shortlist")}
    fixed |= {name: chosen[name] for name in LIMITS}
    if kind == "search":
        return Search(**fixed, **{name: chosen[name] for name in SEARCH})
    drawn = args.mbr or chosen["nbest"]
    epsilon = chosen["epsilon_sampling"]
    if args.epsilon_sampling is None and (kind == "sampling" or args.sampling_topk):
        epsilon = 0.0
    samples = {"epsilon": epsilon, "top_k": chosen["sampling_topk"], "seed": chosen["seed"]}
    return Search(**fixed, beam=drawn, nbest=drawn, sampling=True, **samples)
