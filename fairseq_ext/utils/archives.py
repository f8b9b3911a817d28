"""Unpack untrusted archives, only inside a folder."""

import bz2
import errno
import functools
import gzip
import hashlib
import shutil
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any

from fairseq_ext.utils import extras, files
from fairseq_ext.utils.errors import CheckpointError, DataError, EnvironmentProblem, FairseqExtError

# All errors that tarfile, zipfile and the decompressors raise for bytes that are not an archive.
_DAMAGED = (
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error, struct.error, EOFError),
    *(LookupError, ValueError, ArithmeticError, RuntimeError),
    MemoryError,  # a compressed file declares how much memory its reader needs
)
_OF_OPTIONAL_LIBRARIES = ("LZMAError", "ZstdError")
# System errors for a name that is too long, or for a file in the place of another member's folder.
_OF_NAMES = (errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG)
_MOST_MEMBERS = 100_000  # tarfile keeps all members in memory
_HEADER = 1 << 20  # bytes; no archive may decide how much memory its headers take
_MOST_HEADERS = 1 << 28  # bytes of the headers of all members of a tar file
_TAR_END = bytes(1024)
_ZSTD = b"\x28\xb5\x2f\xfd"
# An archive of a model may unpack to this many times its size, plus this many bytes.
MOST_TIMES, SPARE = 100, 64 << 20


def extract(archive: str | Path, folder: Path, max_bytes: int) -> None:
    """Unpack a tar or zip archive into an empty ``folder``; after an error, some files are there.

    A tar file may be compressed by gzip, bzip2, xz or zstd.

    Raises:
        DataError: the archive is damaged or unpacks to more than ``max_bytes``; or a member is
            absolute, leaves the folder, is a link or a device, or cannot be written as a file.
        EnvironmentProblem: the library that reads zstd is not installed.
        OSError: the folder cannot be written to.
    """
    archive = files.require_file(archive, "archive")
    with archive_errors(archive), archive.open("rb") as file:
        unpack = _unzip if zipfile.is_zipfile(file) else _untar
        try:
            unpack(file, folder, max_bytes)
        except OSError as error:
            if error.errno not in _OF_NAMES:
                raise
            fault = f"its members cannot be written as files ({error.strerror})"
            raise ValueError(fault) from None


def unpacked_in_cache(path: Path, kind: str, find: Callable[[Path], Path]) -> Path:
    """Unpack a model's archive into the user's cache, once for each version of the archive.

    ``kind`` is a folder in the cache. ``find`` takes the folder of unpacked files; it returns the
    model's folder in it, or raises DataError or CheckpointError. Return the model's folder.

    Raises:
        CheckpointError: the archive is damaged or unsafe, or ``find`` raises one of its errors.
        EnvironmentProblem: the cache cannot be written to.
    """
    return _unpacked(path.absolute(), files.version(path), kind, find)


@functools.cache
def _unpacked(path: Path, former: files.Version, kind: str, find: Callable[[Path], Path]) -> Path:
    key = hashlib.sha256(repr((str(path), former)).encode()).hexdigest()
    folder = files.cache_folder() / kind / key[:32]
    if folder.is_dir():
        try:
            return find(folder)
        except (CheckpointError, DataError):
            shutil.rmtree(folder, ignore_errors=True)  # damaged since then: unpack again
    try:
        with files.atomic_folder(folder) as stage:
            extract(path, stage, MOST_TIMES * path.stat().st_size + SPARE)
            if files.version(path) != former:
                raise DataError(f"{path} was written to while it was read; run the command again.")
            try:
                place = find(stage).relative_to(stage)
            except (CheckpointError, DataError) as error:
                reason = str(error).replace(f"{stage}/", "")
                raise DataError(f"{path} cannot be used: {reason}") from None
    except DataError as error:
        raise CheckpointError(str(error)) from None
    except OSError as error:
        raise EnvironmentProblem(files.explain(error)) from error
    except EnvironmentProblem:
        if not folder.is_dir():
            raise
        return find(folder)  # another process was quicker
    return folder / place


@contextmanager
def archive_errors(path: str | Path) -> Iterator[None]:
    """Turn errors in the ``with`` block about a damaged or unsafe file ``path`` into DataError."""
    try:
        yield
    except FairseqExtError:
        raise
    except Exception as error:
        damaged = isinstance(error, (OSError, *_DAMAGED))
        if not damaged and type(error).__name__ not in _OF_OPTIONAL_LIBRARIES:
            raise
        # gzip and bz2 report wrong bytes as an OSError without a number; the system reports a wrong
        # offset in a zip as an invalid argument.
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise
        reason = str(error.args[0] if error.args else "").partition("\n")[0] or type(error).__name__
        raise DataError(
            f"{path} is damaged or unsafe: {reason[:200].rstrip(':')}. Download it again."
        ) from None


def _require_inside(name: str) -> None:
    # Python would silently strip a leading slash, but a file that has one cannot be trusted.
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name:
        raise ValueError(f"its member `{name[:60]}` would leave the folder")


def _require_size(total: int, max_bytes: int) -> None:
    if total > max_bytes:
        raise ValueError(f"it unpacks to more than the {max_bytes:,} bytes that are allowed")


class _Member(tarfile.TarInfo):
    """A member of a tar file; reading it fails if its header has an impossible size."""

    # Newer Pythons, and Debian's, build follow-up headers without `frombuf`, but all call this.
    def _proc_member(self, tar: tarfile.TarFile) -> tarfile.TarInfo:
        # A negative size would make tarfile read one member forever.
        if self.size < 0 or (self.size > _HEADER and not self.isreg()):
            raise tarfile.ReadError(f"a header of {self.size} bytes")
        return super()._proc_member(tar)  # type: ignore[misc]  # it has no type


class _Limited:
    """A file that raises ValueError once more than ``limit`` bytes are read."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._count = file, 0
        self.limit, self.end = _MOST_HEADERS, b""  # `end`: the last 1024 bytes that were read

    def read(self, size: int) -> bytes:
        content = self._file.read(size)
        self._count += len(content)
        if self._count > self.limit:
            raise ValueError("its headers are too large")
        self.end = (self.end + content[-len(_TAR_END) :])[-len(_TAR_END) :]
        return content


def _untar(packed: IO[bytes], folder: Path, max_bytes: int) -> None:
    packed.seek(0)
    head = packed.read(6)
    packed.seek(0)
    file = _Limited(decompressed(packed, head))
    total = 0
    # tarfile only reads from `file`, though its type asks for more.
    with tarfile.open(fileobj=file, mode="r|", tarinfo=_Member) as tar:  # type: ignore[call-overload]
        for number, member in enumerate(tar, start=1):
            total += member.size
            _require_size(total, max_bytes)
            if number > _MOST_MEMBERS:
                raise ValueError(f"it has more than {_MOST_MEMBERS:,} members")
            file.limit = total + _MOST_HEADERS
            write_member(tar, member, folder)
    while file.read(1 << 20):  # the checksum comes after the part that tarfile reads
        pass
    if head.startswith(_ZSTD) and file.end != _TAR_END:  # zstandard accepts a truncated file
        raise ValueError("it is cut off")


def decompressed(file: IO[bytes], head: bytes) -> Any:
    """Return a file object for the decompressed content of ``file``.

    ``head`` has the first six bytes, which show the compression. If ``file`` is not compressed,
    return ``file``.
    """
    if head.startswith(_ZSTD):
        extras.need("zstandard")
        import zstandard

        decompressor = zstandard.ZstdDecompressor()
        return decompressor.stream_reader(file, read_across_frames=True, closefd=False)
    if head.startswith(b"\x1f\x8b"):
        return gzip.GzipFile(fileobj=file)
    if head.startswith(b"BZh"):
        return bz2.open(file)
    if head in (b"\xfd7zXZ\0", b"\x5d\0\0\x80\0\0"):
        import lzma  # here, because a Python may be built without lzma

        return lzma.open(file)
    return file


def write_member(tar: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    """Write a member of a tar file below ``folder``, without its owner, times and permissions.

    Raise ValueError if the member would leave the folder, or is a link or a device. tarfile's own
    filter is not used: older Pythons lack it, or let links lead out of the folder (CVE-2025-4517).
    """
    _require_inside(member.name)
    path = folder / member.name
    if member.isdir():
        path.mkdir(parents=True, exist_ok=True)
        return
    content = tar.extractfile(member) if member.isreg() else None
    if content is None:
        raise ValueError(f"its member `{member.name[:60]}` is a link or a device")
    if path == folder:
        raise ValueError(f"its member `{member.name[:60]}` is a file without a name")
    path.parent.mkdir(parents=True, exist_ok=True)
    with content, path.open("wb") as file:
        shutil.copyfileobj(content, file, 1 << 20)
        if file.tell() != member.size:
            raise EOFError("unexpected end of data")


def _unzip(file: IO[bytes], folder: Path, max_bytes: int) -> None:
    with zipfile.ZipFile(file) as container:
        members = container.infolist()
        _require_size(sum(member.file_size for member in members), max_bytes)
        for member in members:
            name = f"its member `{member.filename[:60]}`"
            _require_inside(member.filename)
            if stat.S_IFMT(member.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise ValueError(f"{name} is a link or a device")
            if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                # zipfile decompresses other kinds in one piece of any size
                raise ValueError(f"{name} is not compressed as usual; pack it again")
        container.extractall(folder)
