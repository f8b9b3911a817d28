"""Which options of decoding go together: those of search, of ``--sampling`` and of ``--mbr``."""

from __future__ import annotations

import argparse

from fairseq_ext.utils.errors import ConfigError

SEARCH = ("beam", "nbest", "lenpen", "gnmt_lenpen")
DRAWS = ("epsilon_sampling", "sampling_topk", "seed")
OF = {
    "search": SEARCH,
    "sampling": ("nbest", *DRAWS),
    "mbr": (*DRAWS, "utility"),
}


def kind_of(args: argparse.Namespace) -> str:
    """The kind that is asked for: a key of :data:`OF`.

    Raises:
        ConfigError: an option that goes with another one only.
    """
    if args.mbr is not None and args.mbr < 1:
        raise ConfigError(f"`--mbr` must be at least 1, but is {args.mbr} instead.")
    if args.sampling and args.mbr is not None:
        raise ConfigError("`--sampling` does not go with `--mbr`, which samples by itself.")
    kind = "sampling" if args.sampling else "search" if args.mbr is None else "mbr"
    for name in dict.fromkeys(name for names in OF.values() for name in names):
        if getattr(args, name) is not None and name not in OF[kind]:
            raise ConfigError(f"`--{name.replace('_', '-')}` {_why_not(name, kind)}.")
    return kind


def _why_not(name: str, kind: str) -> str:
    if name in SEARCH:
        return f"does not go with `--{kind}`, which samples instead of searching"
    if name in DRAWS:
        return "goes with `--mbr` or `--sampling`, which are missing"
    return "goes with `--mbr`, which is missing"
