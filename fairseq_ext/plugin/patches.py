"""Everything that this plugin changes in fairseq: one ordered table.

fairseq is not maintained any more, torch and numpy have changed, and some of fairseq's commands
accept options that do not work. Each row (:class:`~fairseq_ext.plugin.table.Patch`) says
what goes wrong without it, what it wraps, and when it can be deleted. Rows are applied in order. If
two rows wrap the same function, the later row is called first. ``fairseq-ext doctor --patches``
prints the rows of each function. The first row, :mod:`~fairseq_ext.plugin.security.literals`,
replaces ``eval()`` in fairseq. Then come the repairs:

- :mod:`~fairseq_ext.plugin.repairs.log_filters`: warnings, repeated log lines;
- :mod:`~fairseq_ext.plugin.security.loading`: the classes that a checkpoint may contain;
- :mod:`~fairseq_ext.plugin.repairs.batches`: no sentence is lost;
- :mod:`~fairseq_ext.plugin.repairs.indexes`: binarized data above 2 GiB, and of the old layout;
- :mod:`~fairseq_ext.plugin.repairs.subsets`: several validation sets, sets in several parts;
- :mod:`~fairseq_ext.plugin.features.large_corpora`: the start of an epoch over millions of pairs;
- :mod:`~fairseq_ext.plugin.repairs.encoders`: weights are stored once;
- :mod:`~fairseq_ext.plugin.repairs.cpu_training`: training on CPUs, with several
  processes, in bf16;
- :mod:`~fairseq_ext.plugin.features.sharding`: ``--zero-sharding os`` without fairscale;
- :mod:`~fairseq_ext.plugin.repairs.resume` and :mod:`~fairseq_ext.plugin.repairs.precision`: a
  killed run continues as if it had not been killed;
- :mod:`~fairseq_ext.plugin.repairs.averages`: moving averages of any model;
- :mod:`~fairseq_ext.plugin.repairs.background_threads`: a finished run ends without a crash;
- :mod:`~fairseq_ext.plugin.repairs.nan_report`: which layer a NaN came from;
- :mod:`~fairseq_ext.plugin.features.speed`: updates that take less time and memory;
- :mod:`~fairseq_ext.plugin.features.time_left`: how long a training still takes;
- :mod:`~fairseq_ext.plugin.features.engine`: ``--engine native``;
- :mod:`~fairseq_ext.plugin.repairs.diverse_search`: diverse beam search on any sentence.

Then come the rows of the wings, from their ``patches.py``, and then the checks. These give
fairseq's commands clear errors and complete results, also for stock architectures, without doing
any of fairseq's work again:

- :mod:`~fairseq_ext.plugin.checks.open_files`: a higher limit;
- :mod:`~fairseq_ext.plugin.checks.locks`: one training per folder;
- :mod:`~fairseq_ext.plugin.checks.processes`: jobs of which one process has died;
- :mod:`~fairseq_ext.plugin.checks.arguments`: errors in command lines;
- :mod:`~fairseq_ext.plugin.repairs.shards`: ``fairseq-generate --num-shards``;
- :mod:`~fairseq_ext.plugin.checks.commands`: checks of a command's input, and complete results;
- :mod:`~fairseq_ext.plugin.checks.training_options`: checks of the options of fairseq-train;
- :mod:`~fairseq_ext.plugin.checks.data`: data folders, dictionaries, datasets, lengths;
- :mod:`~fairseq_ext.plugin.checks.checkpoints`: loading and saving;
- :mod:`~fairseq_ext.plugin.features.async_checkpoints`: saving while training goes on;
- :mod:`~fairseq_ext.plugin.checks.dictionaries`: a model keeps the dictionaries of its training;
- :mod:`~fairseq_ext.plugin.security.untrusted`: checks of files from strangers;
- :mod:`~fairseq_ext.plugin.security.shell_commands`: programs that fairseq starts;
- :mod:`~fairseq_ext.plugin.checks.divergence`: losses and weights that are not finite;
- :mod:`~fairseq_ext.plugin.checks.interruption`: Ctrl-C and SIGTERM while training;
- :mod:`~fairseq_ext.plugin.checks.hydra`: the same for ``fairseq-hydra-train``.
"""

from __future__ import annotations

import importlib

from fairseq_ext.base import wings
from fairseq_ext.plugin import table
from fairseq_ext.plugin.checks import (
    arguments,
    checkpoints,
    commands,
    data,
    dictionaries,
    divergence,
    hydra,
    interruption,
    locks,
    open_files,
    processes,
    training_options,
)
from fairseq_ext.plugin.features import (
    async_checkpoints,
    engine,
    large_corpora,
    sharding,
    speed,
    time_left,
)
from fairseq_ext.plugin.repairs import (
    averages,
    background_threads,
    batches,
    cpu_training,
    diverse_search,
    encoders,
    indexes,
    log_filters,
    nan_report,
    precision,
    resume,
    shards,
    subsets,
)
from fairseq_ext.plugin.security import literals, loading, shell_commands, untrusted
from fairseq_ext.plugin.table import Layer, Patch

__all__ = ["PATCHES", "Layer", "Patch", "active", "apply", "status"]

PATCHES: tuple[Patch, ...] = (
    *literals.PATCHES,
    *log_filters.PATCHES,
    *loading.PATCHES,
    *batches.PATCHES,
    *indexes.PATCHES,
    *subsets.PATCHES,
    *large_corpora.PATCHES,
    *encoders.PATCHES,
    *cpu_training.PATCHES,
    *sharding.PATCHES,
    *resume.PATCHES,
    *precision.PATCHES,
    *averages.PATCHES,
    *background_threads.PATCHES,
    *nan_report.PATCHES,
    *speed.PATCHES,
    *time_left.PATCHES,
    *engine.PATCHES,
    *diverse_search.PATCHES,
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
    *async_checkpoints.PATCHES,
    *dictionaries.PATCHES,
    *untrusted.PATCHES,  # outside the others: names the file in all errors that they do not expect
    *shell_commands.PATCHES,
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
