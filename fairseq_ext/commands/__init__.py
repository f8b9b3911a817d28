"""Subcommands of ``fairseq-ext`` that need more than a few lines: one module each.

A module has ``add(commands)``, which adds its parser and sets ``run``, a function of the parsed
arguments that returns the exit status. It imports argparse alone; the work is imported when it
runs.
"""

MODULES: tuple[str, ...] = (
    "score",
    "compare",
    "translate",
    "demo",
    "plot",
    "fuse",
    "mbr",
    "scaling_fit",
    "pack",
    "unpack",
    "inspect",
    "subwords",
)
