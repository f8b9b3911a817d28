"""Everything that this plugin changes in fairseq: one ordered table.

fairseq is not maintained any more, torch and numpy have changed, and some of fairseq's commands
accept options that do not work. Each row is a :class:`~fairseq_ext.plugin.table.Patch`. The folder
of its module is its kind: a ``repair`` of fairseq, ``security`` against untrusted files, a
``feature`` of this plugin, or a ``check`` that turns a user's mistake into an error of one line.

Rows are applied in order. If two rows wrap the same function, the later row is called first.
``fairseq-ext doctor --patches`` prints the rows of each function.
"""

import importlib

from fairseq_ext.base import wings
from fairseq_ext.plugin import table
from fairseq_ext.plugin.checks import (
    arguments,
    checkpoints,
    commands,
    data,
    divergence,
    hydra,
    processes,
    training_options,
)
from fairseq_ext.plugin.features import (
    async_checkpoints,
    engine,
    large_corpora,
    speed,
    time_left,
)
from fairseq_ext.plugin.repairs import (
    batches,
    cpu_training,
    generation,
    log_filters,
    resume,
    weights,
)
from fairseq_ext.plugin.security import loading
from fairseq_ext.plugin.table import Layer, Patch

__all__ = ["PATCHES", "Layer", "Patch", "active", "apply"]

PATCHES: tuple[Patch, ...] = (
    *loading.LITERALS,  # first, because it also notices modules that are imported later
    # 1. Repairs and features
    *log_filters.PATCHES,
    *batches.PATCHES,
    *large_corpora.PATCHES,
    *cpu_training.PATCHES,
    *resume.PATCHES,
    *weights.PATCHES,
    *speed.PATCHES,
    *time_left.PATCHES,
    *engine.PATCHES,
    # 2. Patches of single architectures
    *(
        patch
        for wing in wings.names(with_module="patches")
        for patch in importlib.import_module(f"fairseq_ext.{wing}.patches").PATCHES
    ),
    # 3. Checks, which wrap fairseq's functions and our patches above
    *processes.PATCHES,  # inside `commands`, which removes folders that stay empty
    *arguments.PATCHES,
    *generation.PATCHES,  # inside `commands`, which moves results only when they are complete
    *commands.PATCHES,
    *training_options.PATCHES,
    *data.PATCHES,
    *checkpoints.PATCHES,
    *async_checkpoints.PATCHES,
    *loading.PATCHES,  # outside the others: names the file in errors that they let through
    *divergence.PATCHES,
    *processes.INTERRUPTION,  # outside all these: its message comes after they have cleaned up
    *checkpoints.TRAINERS,  # outside all others around loading and saving
    *hydra.PATCHES,  # outermost: calls all the others if they came too late
)

_active: set[str] = set()  # global, because patches change the whole process


def apply() -> None:
    """Apply every patch, each once per process."""
    for patch in PATCHES:
        if patch.name not in _active:
            table.apply(patch)
            _active.add(patch.name)


def complete(module: str) -> None:
    """Apply the patches to a command's module that was imported after :func:`apply`."""
    for patch in PATCHES:
        if patch.name in _active:
            table.apply(patch, f"{module}:")


def active() -> tuple[str, ...]:
    """Return the names of the patches applied in this process, in order."""
    return tuple(patch.name for patch in PATCHES if patch.name in _active)
