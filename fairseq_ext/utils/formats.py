"""Check the format and version that a file of this project declares, before reading the rest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from fairseq_ext.utils.errors import CheckpointError


def require_format(
    path: str | Path,
    metadata: Mapping[str, str],
    *,
    name: str,
    version: int,
    checksum: Callable[[], str],
    command: str,
) -> None:
    """Require that a safetensors file is of a format and version, and undamaged.

    Args:
        path: for messages.
        metadata: of the file: its ``format``, ``version`` and ``checksum``.
        name: of the format.
        version: of the format that this installation reads.
        checksum: computes what the file's checksum must be.
        command: which writes such files.

    Raises:
        CheckpointError: it is of another format or version, or damaged.
    """
    if metadata.get("format") != name:
        raise CheckpointError(
            f"{path} is a safetensors file of something else; give one that `{command}` wrote."
        )
    if metadata.get("version") != str(version):
        raise CheckpointError(
            f"{path} is of format version {metadata.get('version')!r:.40}, but this installation "
            f"reads version {version}; install another version of fairseq-ext, or pack again."
        )
    if checksum() != metadata.get("checksum"):
        raise CheckpointError(
            f"{path} is damaged: its checksum is wrong. Copy or download it again."
        )
