"""Pack the folder ``NAME`` of a bundle into one file, ``NAME.zip`` or ``NAME.tar.zst``."""

from __future__ import annotations

import shutil
import tarfile
import zipfile
from pathlib import Path

from fairseq_ext.checkpoints.bundle import MANIFEST, SUFFIXES, suffix
from fairseq_ext.utils import extras, files
from fairseq_ext.utils.errors import ConfigError

OTHERS = (".tar", ".gz", ".tgz", ".xz", ".txz", ".bz2", ".tbz2", ".7z")
"""Endings of archives that are not written; a folder with such a name would mislead."""
LEVEL = 10  # of zstd


def require_kind(path: Path) -> None:
    """Refuse a name with the ending of an archive that cannot be written."""
    if path.name.lower().endswith(OTHERS):
        endings = " or ".join(SUFFIXES)
        raise ConfigError(f"`--output {path}`: an archive's name must end in {endings}.")


def write(folder: Path, path: Path) -> None:
    """Archive a bundle, whole or not at all; the same files always give the same bytes.

    Args:
        folder: of the bundle, without folders in it.
        path: of the archive; its name ends with one of :data:`SUFFIXES`.
    """
    kind = suffix(path)
    home = path.name.removesuffix(kind)
    file_paths = sorted(folder.iterdir(), key=lambda file: (file.name != MANIFEST, file.name))
    members = {f"{home}/{file_path.name}": file_path for file_path in file_paths}
    with files.atomic_write(path, "wb") as out:
        if kind == ".zip":
            with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
                for name, file_path in members.items():
                    entry = zipfile.ZipInfo(name)  # dated 1980
                    entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o100644 << 16
                    entry.file_size = file_path.stat().st_size  # above 2 GB the headers differ
                    with file_path.open("rb") as file, archive.open(entry, "w") as member:
                        shutil.copyfileobj(file, member, 1 << 20)
            return
        extras.need("zstandard")
        import zstandard

        compressor = zstandard.ZstdCompressor(level=LEVEL)
        with (
            compressor.stream_writer(out, closefd=False) as stream,
            tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT) as tar,
        ):
            for name, file_path in members.items():
                entry = tarfile.TarInfo(name)
                entry.size, entry.mode = file_path.stat().st_size, 0o644
                with file_path.open("rb") as file:
                    tar.addfile(entry, file)
