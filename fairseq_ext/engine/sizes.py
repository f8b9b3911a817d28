"""The parts of an engine model and their bytes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_ext.engine import NUMBERS, files
from fairseq_ext.engine.weights import PLAIN, Packed
from fairseq_ext.text import pipeline


def count(path: str | Path) -> dict[str, Any]:
    """Bytes of an engine model, by what they are for.

    Returns:
        ``architecture``, ``numbers``, ``languages``, ``text`` (how text becomes tokens, in words,
        or None), ``search`` (its own defaults), ``symbols`` of both dictionaries, ``longest``
        source and target, ``operations`` of encoder and decoder by name; ``values``, all that
        it stores, tables of positions included; ``bytes`` by kind and in total.

    Raises:
        CheckpointError: as for :func:`fairseq_ext.engine.files.read`.
    """
    model = files.read(path)
    program, settings = model.program, model.settings
    total = Path(path).stat().st_size
    sizes: Counter[str] = Counter()
    for weight in model.weights:
        sizes[_kind(weight)] += sum(x.nbytes for x in weight if isinstance(x, np.ndarray))
    sizes["dictionaries"] = sum(
        len("\n".join(symbols).encode()) for symbols in (model.source, model.target)
    )
    listed = model.shortlist
    if listed is not None:
        sizes["shortlist"] = listed.frequent.nbytes + listed.counts.nbytes + listed.tokens.nbytes
    sizes["text"] = sum(map(len, model.text.values()))
    sizes["header"] = total - sizes.total()
    return {
        "file": str(path),
        "format_version": files.VERSION,
        "architecture": settings.architecture,
        "numbers": settings.numbers,
        "languages": [settings.src, settings.tgt],
        "text": _steps(model),
        "search": dict(settings.search),
        "symbols": [len(model.source), len(model.target)],
        "longest": [program.longest_source, program.longest_target],
        "operations": {
            side: dict(Counter(one.code.name for one in getattr(program, side)))
            for side in ("encoder", "decoder")
        },
        # Not parameters: tables of positions and the like are among them.
        "values": sum(weight.outputs * weight.inputs for weight in model.weights),
        "bytes": {**sizes, "all": total},
    }


def as_table(report: dict[str, Any]) -> str:
    """The result of :func:`count` for people."""
    total = report["bytes"]["all"]
    symbols, longest = (" and ".join(f"{n:,}" for n in report[k]) for k in ("symbols", "longest"))
    given = ", ".join(f"{name} {value}" for name, value in report["search"].items())
    lines = [
        f"{report['architecture']} for the engine, {' to '.join(report['languages'])}, "
        f"{report['numbers']}, {report['values']:,} values",
        f"text: {report['text'] or 'tokens, as they are'}",
        f"{symbols} symbols, at most {longest} tokens{', ' if given else ''}{given}",
    ]
    for side, found in report["operations"].items():
        many = ", ".join(f"{number} {name}" for name, number in found.items())
        lines.append(f"{side}: {many}")
    lines.append(f"{'what':<24}{'bytes':>14}{'share':>8}")
    for name, size in report["bytes"].items():
        title = "whole file" if name == "all" else name
        lines.append(f"{title:<24}{size:>14,}{size / total:>8.1%}")
    return "\n".join(lines)


def _kind(weight: Packed) -> str:
    if weight.kind == PLAIN:
        return "vectors and tables"
    return f"matrices, {NUMBERS[weight.kind] if weight.kind < len(NUMBERS) else '1 bit'}"


def _steps(model: files.EngineModel) -> str | None:
    """The text pipeline in words."""
    with model.text_folder() as folder:
        made = pipeline.load(folder)
    return made and made.describe()
