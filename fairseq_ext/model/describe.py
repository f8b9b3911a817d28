"""Describe a bundle: its languages, what it computes, and where its bytes are."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fairseq_ext.checkpoints import bundle
from fairseq_ext.checkpoints.size import parameters_of
from fairseq_ext.engine.program import Code, Operation, Phase, Program
from fairseq_ext.engine.tensors import BITS, INT8, LEVELS, SCALE, TRITS, Tensors
from fairseq_ext.engine.weights import PLAIN, Packed
from fairseq_ext.model import program_file
from fairseq_ext.text import pipeline


def describe(path: str | Path) -> dict[str, Any]:
    """Read and check a bundle; return a report on it as a dictionary.

    The entry ``bytes`` maps purposes, such as ``dictionaries``, to numbers of bytes. A bundle with
    a program for the engine also has these entries:

    - ``symbols``: the sizes of the source dictionary and the target dictionary;
    - ``longest``: the lengths in tokens of the longest source and the longest target;
    - ``operations``: for ``encoder`` and ``decoder``, the number of operations by name;
    - ``multiply_adds``: the result of :func:`multiply_adds`.
    """
    manifest = bundle.read(path)
    manifest.check()
    tensors = Tensors(manifest.folder / bundle.WEIGHTS)
    text = pipeline.load(manifest.folder)
    sizes = {
        name: (manifest.folder / name).stat().st_size for name in (*manifest.files, bundle.MANIFEST)
    }
    parts = _weights(tensors)
    parts["weights, names"] = sizes.pop(bundle.WEIGHTS) - parts.total()
    for name, size in sizes.items():
        parts["dictionaries" if name.startswith("dict.") else KINDS.get(name, "text")] += size
    report = {
        "bundle": str(path),
        "format_version": bundle.VERSION,
        "architecture": manifest.architecture,
        "numbers": manifest.numbers,
        "languages": [manifest.src, manifest.tgt],
        "text": text and text.describe(),
        "search": dict(manifest.search),
        "parameters": parameters_of(tensors, manifest),
        "bytes": {**parts, "all": parts.total()},
    }
    if bundle.PROGRAM in manifest.files:
        model = program_file.read(path)
        program = model.program
        report["longest"] = [program.longest_source, program.longest_target]
        report["operations"] = {
            side: dict(Counter(operation.code.name for operation in getattr(program, side)))
            for side in ("encoder", "decoder")
        }
        report["multiply_adds"] = multiply_adds(program, model.weights)
        report["symbols"] = [len(model.source), len(model.target)]
    return report


def multiply_adds(program: Program, weights: Sequence[Packed]) -> dict[str, int]:
    """Count the multiplications with weights for each source token and each target token.

    The result has the keys ``source token`` and ``target token`` (of a single hypothesis).
    Products of activations, such as queries with keys, are not counted: their number depends on
    the length of the sentence.
    """

    def count(operations: Iterable[Operation], phase: Phase) -> int:
        used = [
            weights[number]
            for operation in operations
            if operation.code is not Code.EMBED
            and program.shapes[operation.out.register].phase == phase
            for number in operation.weights
            if number >= 0
        ]
        return sum(weight.outputs * weight.inputs for weight in used if weight.kind != PLAIN)

    output = (weights[layer.weight] for layer in program.outputs)
    return {
        "source token": count(program.encoder, Phase.TOKENS),
        "target token": count(program.decoder, Phase.HYPOTHESES)
        + sum(weight.outputs * weight.inputs for weight in output),
    }


def _weights(tensors: Tensors) -> Counter[str]:
    """Count the bytes of all tensors, by the format in which they are stored."""
    parts: Counter[str] = Counter()
    for name in tensors.all_names():
        kind = tensors.number_format(name)
        if name.startswith(bundle.CONSTANT):
            kind = "of the program alone"
        elif name.endswith((BITS, TRITS, LEVELS)):
            kind = "binary or ternary"
        elif name.endswith((INT8, SCALE)):
            kind = "int8"
        parts[f"weights, {kind}"] += tensors.stored(name).nbytes
    return parts


KINDS = {
    bundle.MANIFEST: "options and checksums",
    bundle.CONFIG: "options and checksums",
    bundle.PROGRAM: "program",
    bundle.SHORTLIST: "shortlist",
}
"""The purpose of each file in a bundle; all files but these are dictionaries or text."""


def as_table(report: dict[str, Any]) -> str:
    """Format the result of :func:`describe` as text."""
    total = report["bytes"]["all"]
    search = ", ".join(f"{name} {value}" for name, value in report["search"].items())
    lines = [
        f"{report['architecture']}, {' to '.join(report['languages'])}, {report['numbers']}, "
        f"{report['parameters']:,} parameters",
        f"text: {report['text'] or 'tokens, as they are'}",
    ]
    if search:
        lines.append(f"search: {search}")
    if "operations" in report:
        symbols, longest = (
            " and ".join(f"{n:,}" for n in report[k]) for k in ("symbols", "longest")
        )
        lines.append(f"{symbols} symbols, at most {longest} tokens")
        costs = " and ".join(f"{n:,} a {token}" for token, n in report["multiply_adds"].items())
        lines.append(f"multiplications with weights: {costs} of each hypothesis")
        for side, operations in report["operations"].items():
            counts = ", ".join(f"{number} {name}" for name, number in operations.items())
            lines.append(f"{side}: {counts}")
    else:
        lines.append("no program for the engine: it needs torch and fairseq to translate")
    lines.append(f"{'what':<32}{'bytes':>14}{'share':>8}")
    for name, size in report["bytes"].items():
        lines.append(f"{name:<32}{size:>14,}{size / total:>8.1%}")
    return "\n".join(lines)
