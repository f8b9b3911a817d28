"""Turn a bundle back into a checkpoint that fairseq can train, generate with and average."""

from __future__ import annotations

from pathlib import Path

from fairseq_ext.checkpoints import bundle, storage

EXACTNESS = {
    "fp32": "exactly the weights of the bundle",
    "bf16": "exactly the weights of the bundle, which are rounded to bf16",
    "int8": "weights as the bundle rounded them to int8",
    "bits": "binary weights are as large as their bound: the trained ones are not in the bundle",
    "bits-int8": "binary weights are as large as their bound, and embeddings as rounded to int8",
}
"""By the numbers of a bundle: what an exported checkpoint has of the trained one."""


def export(path: Path, output: Path) -> tuple[int, str]:
    """Write the checkpoint, whole or not at all.

    Args:
        path: of the bundle.
        output: of the checkpoint; it has no optimizer state.

    Returns:
        The number of tensors, and how near they are to the trained ones, in words.

    Raises:
        CheckpointError: the bundle is missing or damaged.
        EnvironmentProblem: the checkpoint cannot be written.
    """
    manifest = bundle.read(path)
    checkpoint = storage.load(path)
    storage.save(checkpoint, output)
    return len(checkpoint["model"]), EXACTNESS[manifest.numbers]
