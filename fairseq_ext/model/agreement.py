"""Check that a bundle's two descriptions describe the same model.

fairseq builds the model from ``config.json``, and the engine runs ``program.json``. If they differ,
one bundle would give two translations.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from fairseq_ext.checkpoints import bundle
from fairseq_ext.engine.program import Code, Program
from fairseq_ext.utils.errors import DataError

LAYER = re.compile(r"(encoder|decoder)\.layers\.(\d{1,6})\.")
WITH_HEADS = {Code.ATTEND, Code.ATTEND_PAST, Code.ATTEND_SOURCE}


def require(
    manifest: bundle.Bundle, begins: Any, cut: Any, program: Program, weights: list[dict[str, Any]]
) -> None:
    """Refuse a bundle whose configuration and program contradict each other.

    Args:
        manifest: of the bundle.
        begins, cut: the program's treatment of a source.
        program: of the engine.
        weights: the entries of ``program.json`` for the program's arrays.

    Raises:
        DataError: they contradict each other; the message has the first contradiction.
    """
    config = bundle.configuration(manifest)
    cfg = config.get("cfg")
    cfg = cfg if isinstance(cfg, dict) else {}
    model, task = (cfg.get(part) or {} for part in ("model", "task"))
    if not (isinstance(model, dict) and isinstance(task, dict)):
        raise DataError(f"{bundle.CONFIG} has no options of model and task")
    for described, used in _pairs(manifest, model, task, begins, cut):
        _agree(described, used)
    for side, operations in (("encoder", program.encoder), ("decoder", program.decoder)):
        layers = model.get(f"{side}_layers")
        names = {int(n) for name, n in LAYER.findall(str(weights)) if name == side}
        if names and type(layers) is int:
            _agree(layers, len(names))
        heads = model.get(f"{side}_attention_heads")
        for operation in operations:
            if operation.code in WITH_HEADS and operation.ints and type(heads) is int:
                _agree(heads, operation.ints[0])


def _pairs(
    manifest: bundle.Bundle, model: dict[str, Any], task: dict[str, Any], begins: Any, cut: Any
) -> Iterator[tuple[Any, Any]]:
    """Yield values of the configuration, each with its value in the manifest or the program."""
    yield model.get("arch") or model.get("_name"), manifest.architecture
    yield task.get("source_lang"), manifest.src
    yield task.get("target_lang"), manifest.tgt
    if task.get("_name") == "translation_ext":
        yield bool(task.get("source_bos")), begins
        longest = task.get("max_source_positions")
        if task.get("truncate_source") and type(longest) is int:
            yield longest - bool(begins), cut


def _agree(described: Any, used: Any) -> None:
    if described != used:
        raise DataError(
            f"{bundle.CONFIG} says {described!s:.40} where {used!s:.40} is used: they are of two "
            "models"
        )
