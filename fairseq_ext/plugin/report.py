"""``fairseq-ext doctor --patches``: the table of patches, grouped by fairseq's functions."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from fairseq_ext.plugin.table import Patch

WIDTH = 110


def by_target(patches: Sequence[Patch]) -> dict[str, list[Patch]]:
    """For each wrapped attribute of fairseq, its patches in the order in which they are called."""
    targets: dict[str, list[Patch]] = {}
    for patch in patches:
        for layer in patch.layers:
            for target in layer.targets:
                targets.setdefault(target, []).insert(0, patch)
    return dict(sorted(targets.items()))


def as_text(patches: Sequence[Patch]) -> str:
    """The functions with their layers, the outermost first; then each patch with its reason."""
    lines = ["Functions of fairseq, and the patches around each in the order they are called:", ""]
    targets = by_target(patches)
    for target, layers in targets.items():
        lines.append(target)
        lines += [f"  {number}. {patch.name}" for number, patch in enumerate(layers, 1)]
    lines += ["", "The patches, in the order they are applied:", ""]
    for patch in patches:
        text = f"{patch.name} ({patch.kind}): {patch.reason}."
        lines += textwrap.wrap(text, WIDTH, subsequent_indent="  ", break_on_hyphens=False)
    lines += ["", f"{len(patches)} patches around {len(targets)} functions"]
    return "\n".join(lines)


def as_json(patches: Sequence[Patch]) -> list[dict[str, Any]]:
    """The patches in the order in which they are applied."""
    return [
        {
            "name": patch.name,
            "kind": patch.kind,
            "reason": patch.reason,
            "targets": [target for layer in patch.layers for target in layer.targets],
        }
        for patch in patches
    ]
