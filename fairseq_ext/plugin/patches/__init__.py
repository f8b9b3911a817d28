"""Everything that this plugin changes in fairseq: one ordered table.

fairseq is not maintained any more, torch and numpy have changed, and some of fairseq's commands
accept options that do not work. Each row (:class:`~fairseq_ext.plugin.patches.table.Patch`) says
what goes wrong without it, what it wraps, and when it can be deleted. Rows are applied in order. If
two rows wrap the same function, the later row is called first. ``fairseq-ext doctor --patches``
prints the rows of each function. The first row, :mod:`~fairseq_ext.plugin.patches.literals`,
replaces ``eval()`` in fairseq. Then come the repairs:

- :mod:`~fairseq_ext.plugin.patches.noise`: warnings, repeated log lines;
- :mod:`~fairseq_ext.plugin.patches.loading`: the classes that a checkpoint may contain;
- :mod:`~fairseq_ext.plugin.patches.batches`: no sentence is lost;
- :mod:`~fairseq_ext.plugin.patches.indexes`: binarized data above 2 GiB, and of the old layout;
- :mod:`~fairseq_ext.plugin.patches.subsets`: several validation sets, sets in several parts;
- :mod:`~fairseq_ext.plugin.patches.corpora`: the start of an epoch over millions of pairs;
- :mod:`~fairseq_ext.plugin.patches.encoders`: weights are stored once;
- :mod:`~fairseq_ext.plugin.patches.machine`: training on CPUs, with several processes, in bf16;
- :mod:`~fairseq_ext.plugin.patches.sharding`: ``--zero-sharding os`` without fairscale;
- :mod:`~fairseq_ext.plugin.patches.resume` and :mod:`~fairseq_ext.plugin.patches.precision`: a
  killed run continues as if it had not been killed;
- :mod:`~fairseq_ext.plugin.patches.averages`: moving averages of any model;
- :mod:`~fairseq_ext.plugin.patches.ending`: a finished run ends without a crash;
- :mod:`~fairseq_ext.plugin.patches.nan_report`: which layer a NaN came from;
- :mod:`~fairseq_ext.plugin.patches.speed`: updates that take less time and memory;
- :mod:`~fairseq_ext.plugin.patches.time_left`: how long a training still takes;
- :mod:`~fairseq_ext.plugin.patches.engine`: ``--engine native``;
- :mod:`~fairseq_ext.plugin.patches.search`: diverse beam search on any sentence.

Then come the rows of the wings, from their ``patches.py``, and then the checks. These give
fairseq's commands clear errors and complete results, also for stock architectures, without doing
any of fairseq's work again:

- :mod:`~fairseq_ext.plugin.patches.open_files`: a higher limit;
- :mod:`~fairseq_ext.plugin.patches.locks`: one training per folder;
- :mod:`~fairseq_ext.plugin.patches.processes`: jobs of which one process has died;
- :mod:`~fairseq_ext.plugin.patches.arguments`: errors in command lines;
- :mod:`~fairseq_ext.plugin.patches.shards`: ``fairseq-generate --num-shards``;
- :mod:`~fairseq_ext.plugin.patches.commands`: checks of a command's input, and complete results;
- :mod:`~fairseq_ext.plugin.patches.training_options`: checks of the options of fairseq-train;
- :mod:`~fairseq_ext.plugin.patches.data`: data folders, dictionaries, datasets, lengths;
- :mod:`~fairseq_ext.plugin.patches.checkpoints`: loading and saving;
- :mod:`~fairseq_ext.plugin.patches.behind`: saving while training goes on;
- :mod:`~fairseq_ext.plugin.patches.dictionaries`: a model keeps the dictionaries of its training;
- :mod:`~fairseq_ext.plugin.patches.untrusted`: checks of files from strangers;
- :mod:`~fairseq_ext.plugin.patches.programs`: programs that fairseq starts;
- :mod:`~fairseq_ext.plugin.patches.divergence`: losses and weights that are not finite;
- :mod:`~fairseq_ext.plugin.patches.interruption`: Ctrl-C and SIGTERM while training;
- :mod:`~fairseq_ext.plugin.patches.hydra`: the same for ``fairseq-hydra-train``.
"""

from __future__ import annotations

import importlib

from fairseq_ext import wings
from fairseq_ext.plugin.patches import (
    arguments,
    averages,
    batches,
    behind,
    checkpoints,
    commands,
    corpora,
    data,
    dictionaries,
    divergence,
    encoders,
    ending,
    engine,
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
    search,
    sharding,
    shards,
    speed,
    subsets,
    table,
    time_left,
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
    *subsets.PATCHES,
    *corpora.PATCHES,
    *encoders.PATCHES,
    *machine.PATCHES,
    *sharding.PATCHES,
    *resume.PATCHES,
    *precision.PATCHES,
    *averages.PATCHES,
    *ending.PATCHES,
    *nan_report.PATCHES,
    *speed.PATCHES,
    *time_left.PATCHES,
    *engine.PATCHES,
    *search.PATCHES,
    *(
        patch
        for wing in wings.names(with_module="patches")
        for patch in importlib.import_module(f"fairseq_ext.{wing}.patches").PATCHES
    ),
    *open_files.PATCHES,
    *locks.PATCHES,  # inside the next one, which removes folders that stayed empty
    *processes.PATCHES,
    *arguments.PATCHES,
    *shards.PATCHES,  # inside `commands`, which moves results only when they are complete
    *commands.PATCHES,
    *training_options.PATCHES,
    *data.PATCHES,
    *checkpoints.PATCHES,
    *behind.PATCHES,
    *dictionaries.PATCHES,
    *untrusted.PATCHES,  # outside the others: names the file in all errors that they do not expect
    *programs.PATCHES,
    *divergence.PATCHES,
    *interruption.PATCHES,  # outside all these: its message comes after their cleaning up
    *hydra.PATCHES,  # outermost: calls all the others if they came too late
)

_active: set[str] = set()  # the state of the process, because patches change the process


def apply() -> None:
    """Apply every patch that this installation needs, each once per process.

    Raises:
        EnvironmentProblem: a patch does not fit the installed fairseq.
        ImportError: fairseq is missing.
    """
    table.apply(PATCHES, _active)


def complete(module: str) -> None:
    """Apply the active patches to the module of a command, which was imported after them.

    Raises:
        EnvironmentProblem: a patch does not fit the installed fairseq.
    """
    table.complete((patch for patch in PATCHES if patch.name in _active), module)


def active() -> tuple[str, ...]:
    """Names of the patches applied in this process, in order."""
    return tuple(patch.name for patch in PATCHES if patch.name in _active)


def status() -> list[tuple[Patch, bool]]:
    """Every patch, and whether it is applied in this process; works without fairseq, too."""
    return [(patch, patch.name in _active) for patch in PATCHES]
