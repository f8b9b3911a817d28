"""Packed weights in a bundle: its ``model.safetensors`` is a packed model, with all its checks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fairseq.models import BaseFairseqModel
from fairseq.tasks.translation import TranslationTask

from fairseq_ext.binary.packed import model_file, pack, unpack


def save(
    model: BaseFairseqModel, cfg: Any, task: TranslationTask, path: Path, int8_embeddings: bool
) -> None:
    """Write a model with a bit for each binary weight, all other numbers in fp32.

    Args:
        model, cfg, task: as for :func:`~.pack.pack`.
        path: of the file.
        int8_embeddings: embeddings and output projection in int8.

    Raises:
        CheckpointError: nothing in it is binary. The message is the end of a sentence.
    """
    model_file.write(pack.pack(model, cfg, task, int8_embeddings=int8_embeddings), path)


def load(path: Path) -> dict[str, Any]:
    """A checkpoint of the same translations, as :func:`~.unpack.unpack` makes it.

    Raises:
        CheckpointError: the file cannot be used.
    """
    from fairseq_ext import register

    register()  # the model is built, to find out what its layers make of the bits
    return unpack.unpack_file(path)
