"""Everything that this plugin changes in fairseq: one ordered table.

fairseq is not maintained any more, torch and numpy have moved on, and some of its commands accept
what they cannot do. Each row (:class:`~fairseq_ext.plugin.patches.table.Patch`) names what goes
wrong without it, what it wraps, and when it can be deleted. Rows are applied in order, so that of
two layers around one function the later row is called first; ``fairseq-ext doctor --patches``
prints them by function. First of all, :mod:`~fairseq_ext.plugin.patches.literals` takes ``eval()``
away from fairseq. The repairs follow:

- :mod:`~fairseq_ext.plugin.patches.noise`: warnings, repeated log lines;
- :mod:`~fairseq_ext.plugin.patches.loading`: what a checkpoint may hold;
- :mod:`~fairseq_ext.plugin.patches.batches`: no sentence is lost;
- :mod:`~fairseq_ext.plugin.patches.indexes`: binarized data above 2 GiB;
- :mod:`~fairseq_ext.plugin.patches.encoders`: weights are kept once;
- :mod:`~fairseq_ext.plugin.patches.machine`: training on CPUs, with several processes, in bf16;
- :mod:`~fairseq_ext.plugin.patches.resume` and :mod:`~fairseq_ext.plugin.patches.precision`: a
  killed run continues exactly;
- :mod:`~fairseq_ext.plugin.patches.averages`: moving averages of any model;
- :mod:`~fairseq_ext.plugin.patches.ending`: a run that is done ends well;
- :mod:`~fairseq_ext.plugin.patches.nan_report`: which layer a NaN came from;

then the rows that a wing brings in its own ``patches.py``; then the checks, which give fairseq's
commands clear errors and whole results, for stock architectures too. None repeats fairseq's work:

- :mod:`~fairseq_ext.plugin.patches.open_files`: enough of them;
- :mod:`~fairseq_ext.plugin.patches.locks`: one training per folder;
- :mod:`~fairseq_ext.plugin.patches.processes`: jobs of which a process is gone;
- :mod:`~fairseq_ext.plugin.patches.arguments`: command lines;
- :mod:`~fairseq_ext.plugin.patches.shards`: ``fairseq-generate --num-shards``;
- :mod:`~fairseq_ext.plugin.patches.commands`: what a command is given, and where its results go;
- :mod:`~fairseq_ext.plugin.patches.training_options`: what fairseq-train is asked for;
- :mod:`~fairseq_ext.plugin.patches.data`: data folders, dictionaries, datasets, lengths;
- :mod:`~fairseq_ext.plugin.patches.checkpoints`: loading and saving;
- :mod:`~fairseq_ext.plugin.patches.dictionaries`: a model keeps to those it was trained with;
- :mod:`~fairseq_ext.plugin.patches.untrusted`: what a file may name and hold;
- :mod:`~fairseq_ext.plugin.patches.programs`: programs that fairseq starts;
- :mod:`~fairseq_ext.plugin.patches.divergence`: losses and weights that are not finite;
- :mod:`~fairseq_ext.plugin.patches.interruption`: Ctrl-C and SIGTERM while training;
- :mod:`~fairseq_ext.plugin.patches.hydra`: all this for ``fairseq-hydra-train``, too.
"""

from __future__ import annotations

import importlib

from fairseq_ext.plugin import wings
from fairseq_ext.plugin.patches import (
    arguments,
    averages,
    batches,
    checkpoints,
    commands,
    data,
    dictionaries,
    divergence,
    encoders,
    ending,
    hydra,
    indexes,
    interruption,
    literals,
    loading,
    locks,
    machine,
    nan_report,
    noise,
    open_files,
    precision,
    processes,
    programs,
    resume,
    shards,
    table,
    training_options,
    untrusted,
)
from fairseq_ext.plugin.patches.table import Layer, Patch

__all__ = ["PATCHES", "Layer", "Patch", "active", "apply", "status"]

PATCHES: tuple[Patch, ...] = (
    *literals.PATCHES,
    *noise.PATCHES,
    *loading.PATCHES,
    *batches.PATCHES,
    *indexes.PATCHES,
    *encoders.PATCHES,
    *machine.PATCHES,
    *resume.PATCHES,
    *precision.PATCHES,
    *averages.PATCHES,
    *ending.PATCHES,
    *nan_report.PATCHES,
    *(
        patch
        for wing in wings.names(with_module="patches")
        for patch in importlib.import_module(f"fairseq_ext.{wing}.patches").PATCHES
    ),
    *open_files.PATCHES,
    *locks.PATCHES,  # inside the next, which removes folders that stayed empty
    *processes.PATCHES,
    *arguments.PATCHES,
    *shards.PATCHES,  # inside the next, which puts results into a folder until they are whole
    *commands.PATCHES,
    *training_options.PATCHES,
    *data.PATCHES,
    *checkpoints.PATCHES,
    *dictionaries.PATCHES,
    *untrusted.PATCHES,  # outermost: names the file in whatever the others do not foresee
    *programs.PATCHES,
    *divergence.PATCHES,
    *interruption.PATCHES,  # outside all these, which have cleaned up when it speaks
    *hydra.PATCHES,  # outermost: calls all of them where they came too late
)

_active: set[str] = set()  # patches apply to the process, so this is the process's state


def apply() -> None:
    """Apply every patch that is needed here, each once per process.

    Raises:
        EnvironmentProblem: a patch does not fit the installed fairseq.
        ImportError: fairseq is missing.
    """
    table.apply(PATCHES, _active)


def active() -> tuple[str, ...]:
    """Names of the patches applied in this process, in order."""
    return tuple(patch.name for patch in PATCHES if patch.name in _active)


def status() -> list[tuple[Patch, bool]]:
    """Every patch, and whether it is applied in this process; works where fairseq is missing."""
    return [(patch, patch.name in _active) for patch in PATCHES]
