"""Everything that this plugin changes in fairseq: one ordered table.

fairseq is not maintained any more, torch and numpy have changed, and some of fairseq's commands
accept options that do not work. Each row is a :class:`~fairseq_ext.plugin.patching.Patch`. The
folder of the patch's module decides its kind: a ``repair`` of fairseq, ``security`` against
untrusted files, a ``feature`` of this plugin, or a ``check`` that turns a user's mistake into an
error of one line.

The decorator of a function names the function's patch. The docstring of a patch's first function
ends with a paragraph that begins with “Problem:” and tells what happens without the patch.

Rows are applied in order. If two rows wrap the same function, the later row is *outside*: it is
called first, and it calls the earlier row, which is *inside*. ``fairseq-ext doctor --patches``
prints the rows of each function.
"""

import importlib
import textwrap
from typing import Any

from fairseq_ext.plugin import patching
from fairseq_ext.plugin.patching import Patch

MODULES = (
    # 1. Repairs and features
    "repairs.log_filters",
    "repairs.batches",
    "features.fast_start",
    "repairs.cpu_training",
    "repairs.resume",
    "repairs.models",
    "features.speed",
    "features.time_left",
    "features.engine",
    # 2. Checks, which wrap fairseq's functions and the patches above
    "checks.processes",  # inside `commands`, which removes folders that stay empty
    "checks.arguments",
    "repairs.generation",  # inside `commands`, which moves results only when they are complete
    "checks.commands",
    "checks.training_options",
    "checks.data",
    "checks.checkpoints",
    "features.async_checkpoints",
    "security.loading",  # outside the others: names the file in errors that they let through
    "checks.divergence",
    "checks.hydra",
)
FIRST = (
    "warnings of a normal run",  # before the next patch imports fairseq, which warns
    "no string is evaluated",  # before other patches import modules of fairseq, which it changes
)
LAST = (
    "log file",  # outside `processes of a training`, whose warning belongs in the file, too
    "interruption",  # outside all others: its message comes after they have cleaned up
    "trainers of other programs",  # outside all others around loading and saving
    "fairseq-hydra-train",  # outermost: runs the others if the plugin was loaded too late for them
)


def _table() -> tuple[Patch, ...]:
    modules = (importlib.import_module(f"fairseq_ext.plugin.{name}") for name in MODULES)
    rows = {patch.name: patch for module in modules for patch in patching.patches_of(module)}
    first, last = ([rows.pop(name) for name in names] for names in (FIRST, LAST))
    return *first, *rows.values(), *last


PATCHES = _table()
active: list[Patch] = []  # the patches applied in this process


def apply() -> None:
    """Apply every patch once; raise EnvironmentProblem if fairseq lacks what a patch changes."""
    for patch in PATCHES:
        if patch not in active:
            patching.apply(patch)
            active.append(patch)


def complete(module: str) -> None:
    """Apply the patches to ``module``, a command's module imported after :func:`apply`."""
    for patch in active:
        patching.apply(patch, f"{module}:")


def by_target() -> dict[str, list[Patch]]:
    """Map each patched function of fairseq to its patches, the outermost first."""
    targets: dict[str, list[Patch]] = {}
    for patch in PATCHES:
        for layer in patch.layers:
            for target in layer.targets:
                targets.setdefault(target, []).insert(0, patch)
    return dict(sorted(targets.items()))


def as_text() -> str:
    """Return a text that lists the patches of each function, then the reason of each patch."""
    lines = ["Functions of fairseq, and the patches around each in the order they are called:", ""]
    targets = by_target()
    for target, layers in targets.items():
        lines.append(target)
        lines += [f"  {number}. {patch.name}" for number, patch in enumerate(layers, 1)]
    lines += ["", "The patches, in the order they are applied:", ""]
    for patch in PATCHES:
        text = f"{patch.name} ({patch.kind}): {patch.reason}."
        lines += textwrap.wrap(text, 110, subsequent_indent="  ", break_on_hyphens=False)
    lines += ["", f"{len(PATCHES)} patches around {len(targets)} functions"]
    return "\n".join(lines)


def as_json() -> list[dict[str, Any]]:
    """List the patches in order, as dictionaries: ``name``, ``kind``, ``reason``, ``targets``."""
    return [
        {
            "name": patch.name,
            "kind": patch.kind,
            "reason": patch.reason,
            "targets": [target for layer in patch.layers for target in layer.targets],
        }
        for patch in PATCHES
    ]
