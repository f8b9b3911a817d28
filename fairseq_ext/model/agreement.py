"""Check that a bundle's two descriptions describe the same model.

fairseq builds the model from ``config.json``, and the engine runs ``program.json``. If they differ,
one bundle would give two translations.
"""

from __future__ import annotations

import re
from typing import Any

from fairseq_ext.checkpoints import bundle, layout
from fairseq_ext.engine.program import Code, Program
from fairseq_ext.utils.errors import DataError

LAYER = re.compile(r"(encoder|decoder)\.layers\.(\d{1,6})\.")
WITH_HEADS = {Code.ATTEND, Code.ATTEND_PAST, Code.ATTEND_SOURCE}


def require(
    manifest: bundle.Bundle, begins: Any, cut: Any, program: Program, weights: list[dict[str, Any]]
) -> None:
    """Refuse a bundle whose configuration and program contradict each other.

    ``begins`` and ``cut`` are the program's treatment of a source, and ``weights`` the entries of
    ``program.json`` for its arrays.
    """
    cfg = layout.section(bundle.configuration(manifest), "cfg")
    model, task = layout.section(cfg, "model"), layout.section(cfg, "task")
    _agree(model.get("arch") or model.get("_name"), manifest.architecture)
    _agree(task.get("source_lang"), manifest.src)
    _agree(task.get("target_lang"), manifest.tgt)
    if task.get("_name") == "translation_ext":
        _agree(bool(task.get("source_bos")), begins)
        longest = task.get("max_source_positions")
        if task.get("truncate_source") and type(longest) is int:
            _agree(longest - bool(begins), cut)
    for side, operations in (("encoder", program.encoder), ("decoder", program.decoder)):
        layers = model.get(f"{side}_layers")
        names = {int(n) for name, n in LAYER.findall(str(weights)) if name == side}
        if names and type(layers) is int:
            _agree(layers, len(names))
        heads = model.get(f"{side}_attention_heads")
        for operation in operations:
            if operation.code in WITH_HEADS and operation.ints and type(heads) is int:
                _agree(heads, operation.ints[0])


def _agree(described: Any, used: Any) -> None:
    if described != used:
        raise DataError(
            f"{bundle.CONFIG} says {described!s:.40} where {used!s:.40} is used: they are of two "
            "models"
        )
