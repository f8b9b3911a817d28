"""Turn a bundle back into a checkpoint, or a model into the format of another tool."""

from __future__ import annotations

import importlib
from pathlib import Path

from fairseq_ext.checkpoints import bundle, storage
from fairseq_ext.utils import files
from fairseq_ext.utils.errors import ConfigError

TOOLS = ("ctranslate2", "huggingface")
"""Other tools, each with a module ``fairseq_ext.model.TOOL_model`` that writes its format."""

EXACTNESS = {
    "fp32": "exactly the weights of the bundle",
    "bf16": "exactly the weights of the bundle, which are rounded to bf16",
    "int8": "weights as the bundle rounded them to int8",
    "bits": "binary and ternary weights that quantize to those of the bundle, which are not the "
    "trained ones",
    "bits-int8": "binary and ternary weights that quantize to those of the bundle, and embeddings "
    "as rounded to int8",
}
"""How near an exported checkpoint is to the trained one, by the numbers of the bundle."""


def export(path: Path, output: Path) -> tuple[int, str]:
    """Write a bundle as a checkpoint, whole or not at all.

    Args:
        path: of the bundle.
        output: the checkpoint's path; it gets no optimizer state.

    Returns:
        The number of tensors, and in words how near they are to the trained ones.

    Raises:
        CheckpointError: the bundle is missing or damaged.
        EnvironmentProblem: the checkpoint cannot be written.
    """
    manifest = bundle.read(path)
    checkpoint = storage.load(path)
    storage.save(checkpoint, output)
    return len(checkpoint["model"]), EXACTNESS[manifest.numbers]


def export_to(tool: str, path: Path, data: Path, output: Path) -> str:
    """Write a model in the format of another tool, whole or not at all.

    Args:
        tool: one of :data:`TOOLS`.
        path: of a checkpoint or bundle.
        data: folder with its dictionaries.
        output: a folder, which must be empty or not exist.

    Returns:
        The name of the model's architecture in fairseq.

    Raises:
        CheckpointError, DataError: the model cannot be read.
        ConfigError: the tool cannot compute it, or the folder has files.
        EnvironmentProblem: a library is missing, or the folder cannot be written.
    """
    from fairseq_ext.model import stock

    writer = importlib.import_module(f"fairseq_ext.model.{tool}_model")
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ConfigError(f"{output} is there already; choose another folder.")
    transformer = stock.load(path, data, writer.TOOL)
    with files.whole_folder(output) as folder:
        writer.write(transformer, folder)
        transformer.copy_text(folder)
    return transformer.architecture
