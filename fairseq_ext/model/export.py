"""Turn a bundle back into a checkpoint."""

from pathlib import Path

from fairseq_ext.checkpoints import bundle, storage

EXACTNESS = {
    "fp32": "exactly the weights of the bundle",
    "bf16": "exactly the weights of the bundle, which are rounded to bf16",
    "int8": "weights as the bundle rounded them to int8",
    "bits": "binary and ternary weights that quantize to those of the bundle, which are not the "
    "trained ones",
    "bits-int8": "binary and ternary weights that quantize to those of the bundle, and embeddings "
    "as rounded to int8",
}
"""How near an exported checkpoint is to the trained one, by the bundle's number format."""


def export(path: Path, output: Path) -> tuple[int, str]:
    """Write a bundle as a checkpoint without optimizer state, whole or not at all.

    Return the number of tensors, and in words how near they are to the trained ones.
    """
    checkpoint = storage.load(path)
    storage.save(checkpoint, output)
    return len(checkpoint["model"]), EXACTNESS[bundle.read(path).numbers]
