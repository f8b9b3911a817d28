"""Bundles as one file, ``NAME.zip`` or ``NAME.tar.zst``: a folder ``NAME`` with a bundle's files.

An archive is written whole or not at all, and equal bundles give equal bytes. Before its first use
it is unpacked into a folder of the user's cache, named by the checksum of the very bytes that are
unpacked, even if the file changes meanwhile.
"""

from __future__ import annotations

import functools
import hashlib
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from fairseq_ext.utils import extras, files
from fairseq_ext.utils.archives import safe_extract
from fairseq_ext.utils.errors import CheckpointError, ConfigError, DataError, EnvironmentProblem
from fairseq_ext.utils.file_versions import Version, version

SUFFIXES = (".zip", ".tar.zst")
OTHERS = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".txz", ".tar.bz2", ".tbz2", ".7z")
"""Endings of archives that are not written; a folder with such a name would mislead."""
# An archive may unpack to this many times its size, plus this many bytes.
MOST_TIMES, SPARE = 100, 64 << 20
LEVEL = 10  # of zstd

Check = Callable[[Path], None]


def suffix(path: str | Path) -> str:
    """Return the suffix of :data:`SUFFIXES` with which a name ends, or ""."""
    return next((ending for ending in SUFFIXES if Path(path).name.endswith(ending)), "")


def require_kind(path: Path) -> None:
    """Refuse a name with the ending of an archive that cannot be written.

    Raises:
        ConfigError: the name has such an ending.
    """
    for other in OTHERS:
        if path.name.lower().endswith(other):
            stem = path.with_name(path.name[: -len(other)])
            names = " or ".join(f"{stem}{ending}" for ending in SUFFIXES)
            raise ConfigError(
                f"`--output {path}`: no archive of this kind is written; use {names}."
            )


def write(folder: Path, path: Path, first: str) -> None:
    """Write the files of a folder into an archive, whole or not at all.

    Args:
        folder: with files alone.
        path: of the archive; its name ends as one of :data:`SUFFIXES`.
        first: the file that stands first in it.

    Raises:
        EnvironmentProblem: the archive cannot be written, or zstandard is not installed.
    """
    kind = suffix(path)
    home = path.name.removesuffix(kind)
    file_paths = sorted(folder.iterdir(), key=lambda file: (file.name != first, file.name))
    members = {f"{home}/{file_path.name}": file_path for file_path in file_paths}
    with files.atomic_write(path, "wb") as out:
        if kind == ".zip":
            with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
                for name, file_path in members.items():
                    entry = zipfile.ZipInfo(
                        name
                    )  # dated 1980, so that equal files give equal bytes
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


def unpacked(path: str | Path, manifest: str, check: Check) -> Path | None:
    """Unpack an archived bundle into the cache and return its folder; None if it is not an archive.

    Args:
        path: any path; its name tells whether it is an archive.
        manifest: a file that the folder must have.
        check: raises :class:`CheckpointError` where a folder's files are damaged.

    Raises:
        CheckpointError: the archive is damaged or unsafe.
        EnvironmentProblem: it cannot be unpacked: space or a library is missing.
    """
    path = Path(path)
    if not suffix(path) or not path.is_file():
        return None
    return _unpacked(path.absolute(), version(path), manifest, check)


@functools.cache
def _unpacked(path: Path, former: Version, manifest: str, check: Check) -> Path | None:
    """Unpack an archive, once for each version of the file."""
    if suffix(path) == ".zip" and not _zip_has(path, manifest):
        return None
    checksum = files.sha256(path)
    if version(path) != former:  # or this folder would be remembered for the former version
        raise CheckpointError(f"{path} was written to while it was read; run the command again.")
    folder = _cache(path) / checksum
    home = _inside(folder, manifest)
    if home is not None:
        with suppress(CheckpointError):
            check(home)
            return home
        shutil.rmtree(folder, ignore_errors=True)  # it was damaged later; unpack it again
    try:
        with files.whole_folder(folder) as stage, _copy(path, checksum, stage.parent) as content:
            safe_extract(path, stage, MOST_TIMES * former.size + SPARE, content=content)
            if any(entry.is_symlink() for entry in stage.rglob("*")):
                raise DataError(f"{path} is unsafe: it has links.")
            inside = _inside(stage, manifest)
            if inside is None:
                raise DataError(f"{path} has no {manifest}: it is not a bundle.")
            try:
                check(inside)
            except CheckpointError as error:
                raise DataError(f"{path} cannot be used: {_within(error, inside)}") from None
    except DataError as error:
        raise CheckpointError(str(error)) from None
    except EnvironmentProblem:
        if _inside(folder, manifest) is None:  # otherwise another process was quicker
            raise
    return _inside(folder, manifest)


@contextmanager
def _copy(path: Path, checksum: str, folder: Path) -> Iterator[IO[bytes]]:
    """Copy an archive into an unnamed file, which nobody else can write to.

    Raises:
        DataError: its content does not have this checksum any more.
    """
    with tempfile.TemporaryFile(dir=folder) as copy:
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
                copy.write(block)
        if digest.hexdigest() != checksum:
            raise DataError(f"{path} was written to while it was read; run the command again.")
        yield copy


def _cache(path: Path) -> Path:
    try:
        return files.cache_folder() / "bundles"
    except RuntimeError:
        raise EnvironmentProblem(
            f"{path} cannot be unpacked, since there is no home folder; set XDG_CACHE_HOME."
        ) from None


def _within(error: Exception, folder: Path) -> str:
    """Return an error's message without the folder's path."""
    return str(error).replace(f"{folder}/", "")


def _zip_has(path: Path, name: str) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return any(member.rpartition("/")[2] == name for member in archive.namelist())
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, UnicodeDecodeError):
        return False


def _inside(folder: Path, manifest: str) -> Path | None:
    """Return the folder, or the only folder in it, if the manifest is there; else None."""
    if not folder.is_dir():
        return None
    top = [*folder.iterdir()]
    home = top[0] if len(top) == 1 and top[0].is_dir() else folder
    return home if (home / manifest).is_file() else None
