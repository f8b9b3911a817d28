"""Count the bytes of each part of a packed model, and how much smaller the bits make it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from fairseq_ext.binary import switches
from fairseq_ext.binary.packed import model_file
from fairseq_ext.binary.packed.model_file import PackedModel
from fairseq_ext.checkpoints.layout import architecture

# In the order of the table.
KINDS = {
    "bits": "signs",
    "level": "levels",
    "table": "embeddings and output",
    "other": "norms, biases, other",
    "dictionary": "dictionaries",
    "header": "header",
}


def count(path: str | Path) -> dict[str, Any]:
    """Sizes of a packed model, in bytes if nothing else is said.

    Returns:
        ``architecture``, ``stage``, ``languages`` and ``layers``; ``binary_inputs``: whether any
        layer or product has them; ``bytes``: for each kind of tensor and in total; ``binary``: the
        numbers in packed layers, their bytes packed, in fp32 and in bf16, and the two factors by
        which packing makes them smaller; ``signs_alone``: the same without levels;
        ``whole_file``: the same for all numbers and the whole file.

    Raises:
        CheckpointError: as :func:`fairseq_ext.binary.packed.model_file.read`.
    """
    packed = model_file.read(path)
    total = Path(path).stat().st_size
    sizes = {name: 0 for name in KINDS}
    for name, tensor in packed.tensors.items():
        sizes[_kind(name)] += tensor.nbytes
    sizes["header"] = total - sum(sizes.values())
    binary = binary_numbers(packed)
    others = (t.numel() for n, t in packed.tensors.items() if _is_number(n, t))
    settings = packed.cfg["task"]
    return {
        "file": str(path),
        "format_version": model_file.VERSION,
        "architecture": architecture({"cfg": packed.cfg}),
        "stage": packed.stage,
        "binary_inputs": _has_binary_inputs(packed),
        "languages": [settings.get("source_lang"), settings.get("target_lang")],
        "layers": len(packed.layers),
        "bytes": {**sizes, "all": total},
        "binary": _compression(binary, sizes["bits"] + sizes["level"]),
        "signs_alone": _compression(binary, sizes["bits"]),
        "whole_file": _compression(binary + sum(others), total),
    }


def binary_numbers(packed: PackedModel) -> int:
    """The number of weights that have one bit."""
    return sum(packed.layer(name)[0].shape[0] * k for name, k in packed.layers.items())


def _has_binary_inputs(packed: PackedModel) -> bool:
    """In stage 2, the inputs named by the options are binary; there may be none."""
    options = packed.cfg["model"]
    named = str(options.get("binary_activations") or "")
    row = switches.PRESETS.get(str(options.get("bmt_preset")), switches.Switches())
    chosen = {*named.split(",")} - {"none"} if named else row.activations
    return packed.stage == 2 and bool(chosen)


def as_table(report: dict[str, Any]) -> str:
    """The result of :func:`count` as a table."""
    sizes, total = report["bytes"], report["bytes"]["all"]
    binary = "binary weights and activations" if report["binary_inputs"] else "binary weights"
    lines = [
        f"{report['architecture']}, {' to '.join(map(str, report['languages']))}, {binary}, "
        f"{report['layers']} packed layers",
        f"{'what':<24}{'bytes':>14}{'share':>8}",
    ]
    for name, title in KINDS.items():
        lines.append(f"{title:<24}{sizes[name]:>14,}{sizes[name] / total:>8.1%}")
    lines.append(f"{'whole file':<24}{total:>14,}{1:>8.1%}")
    lines.append(f"{'smaller than':<24}{'numbers':>14}{'fp32':>8}{'bf16':>8}")
    for key, title in (
        ("signs_alone", "binary weights: signs"),
        ("binary", "… with their levels"),
        ("whole_file", "whole file"),
    ):
        one = report[key]
        lines.append(
            f"{title:<24}{one['numbers']:>14,}{one['over_fp32']:>7.1f}×{one['over_bf16']:>7.1f}×"
        )
    return "\n".join(lines)


def _kind(name: str) -> str:
    kind = model_file.kind(name)
    if kind in ("int8", "scale") or name.endswith(("embed_tokens.weight", "projection.weight")):
        return "table"
    return "other" if kind == "state" else kind


def _is_number(name: str, tensor: Tensor) -> bool:
    """Whether each element of a tensor of this name is a parameter."""
    kind = model_file.kind(name)
    return kind == "int8" or (kind == "state" and tensor.is_floating_point())


def _compression(numbers: int, size: int) -> dict[str, float]:
    return {
        "numbers": numbers,
        "bytes": size,
        "bytes_fp32": 4 * numbers,
        "bytes_bf16": 2 * numbers,
        "over_fp32": round(4 * numbers / size, 3),
        "over_bf16": round(2 * numbers / size, 3),
    }
