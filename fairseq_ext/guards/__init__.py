"""Thin wrappers that give fairseq's own commands clear errors and whole results.

Every wrapper checks what the user gave before fairseq reads it, or turns an error of fairseq into
one of :mod:`fairseq_ext.errors`; none repeats fairseq's work. They serve stock architectures too.

- :mod:`~fairseq_ext.guards.commands`: what a command is given, and where its results go;
- :mod:`~fairseq_ext.guards.data`: data folders, dictionaries, datasets, lengths;
- :mod:`~fairseq_ext.guards.checkpoints`: loading and saving.
"""

from __future__ import annotations

from fairseq_ext.guards import checkpoints, commands, data

__all__ = ["install"]


def install() -> None:
    """Wrap the running command and the functions of fairseq that commands call, each once."""
    commands.install()
    data.install()
    checkpoints.install()
