"""Unpack untrusted archives whole and inside a folder, or not at all.

Nothing here needs fairseq or torch.
"""

from __future__ import annotations

import bz2
import contextlib
import errno
import gzip
import math
import os
import shutil
import stat
import struct
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path, PurePosixPath
from typing import IO

from fairseq_ext.utils import extras
from fairseq_ext.utils.errors import DataError, EnvironmentProblem, FairseqExtError
from fairseq_ext.utils.files import explain, require_file, staged_folder

try:
    import lzma
except ImportError:  # a Python built without lzma cannot read .xz
    lzma = None  # type: ignore[assignment]

# All errors that tarfile, zipfile and the decompressors raise for bytes that are not an archive.
_DAMAGED = (
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error, struct.error, EOFError),
    *(LookupError, ValueError, ArithmeticError, RuntimeError),
    MemoryError,  # a compressed file declares how much memory its reader needs
    *((lzma.LZMAError,) if lzma else ()),
)
# System errors for a name that is too long, or for a file in the place of another member's folder.
_OF_NAMES = (errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG)
_MOST_MEMBERS = 100_000  # tarfile remembers all of them
_HEADER = 1 << 24  # bytes; no archive may decide how much memory its headers take
_MOST_HEADERS = 1 << 28  # bytes, of all members of a tar file
_TAR_END = 1024  # bytes of zeros
_ZSTD = b"\x28\xb5\x2f\xfd"


def safe_extract(
    archive: str | Path,
    folder: str | Path,
    max_bytes: int = 20 << 30,
    *,
    content: IO[bytes] | None = None,
) -> list[Path]:
    """Unpack a tar or zip archive into ``folder``, whole or not at all.

    The archive is opened only once, so that no other file can take its name meanwhile.

    Args:
        archive: a ``.zip``, or a tar file, plain or in gzip, bzip2, xz or zstd.
        folder: made if missing; nothing in it is overwritten.
        max_bytes: the most that the unpacked files may take together.
        content: the archive's bytes if they are already open; ``archive`` then is for messages.

    Returns:
        The top-level files and folders, sorted.

    Raises:
        DataError: the archive is damaged or too large; a member is absolute, leaves the folder, is
            a link out of it or a device, or would overwrite a file.
        EnvironmentProblem: the disk is full, or the library that reads zstd is not installed.
    """
    archive = Path(archive) if content else require_file(archive, "archive")
    folder = Path(folder)
    try:
        with (
            nullcontext(content) if content else archive.open("rb") as file,
            whole_archive(archive),
            staged_folder(folder) as stage,
        ):
            unpack = _unzip if zipfile.is_zipfile(file) else _untar
            try:
                unpack(archive, file, stage, max_bytes)
            except OSError as error:
                if error.errno not in _OF_NAMES:
                    raise
                raise ValueError(f"its members cannot be files ({error.strerror})") from None
            names = sorted(path.name for path in stage.iterdir())
            if conflicts := [name for name in names if (folder / name).exists()]:
                raise DataError(
                    f"{folder / conflicts[0]} is there already; remove it or unpack elsewhere."
                )
    except OSError as error:
        raise EnvironmentProblem(explain(error)) from error
    return [folder / name for name in names]


@contextmanager
def whole_archive(path: str | Path) -> Iterator[None]:
    """Turn every error from damaged bytes of an archive into DataError.

    Raises:
        DataError: the file is damaged.
        OSError: the system has another problem, such as a full disk.
    """
    try:
        yield
    except FairseqExtError:
        raise
    except (OSError, *_DAMAGED) as error:
        # gzip and bz2 report wrong bytes as an OSError without a number; the system reports a wrong
        # offset in a zip as an invalid argument.
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise
        reason = str(error.args[0] if error.args else "").partition("\n")[0] or type(error).__name__
        raise DataError(
            f"{path} is damaged or unsafe: {reason[:200].rstrip(':')}. Download it again."
        ) from None


def _require_members(archive: Path, members: Iterable[tuple[str, int]], max_bytes: int) -> None:
    """Check names and sizes of all members before anything is written."""
    total = 0
    for number, (name, size) in enumerate(members, start=1):
        _require_inside(archive, name)
        total += size
        if size < 0 or number > _MOST_MEMBERS:
            defect = f"a size of {size}" if size < 0 else f"more than {_MOST_MEMBERS:,} members"
            raise DataError(f"{archive} is damaged or unsafe: it has {defect}. Download it again.")
        if total > max_bytes:
            raise DataError(
                f"{archive} unpacks to more than the {max_bytes:,} bytes that are allowed."
            )


class _InPieces:
    """A file that limits tarfile, which reads a header in one piece of any declared size.

    Attributes:
        left: bytes that may still be read, since tarfile keeps the headers of all members.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self.seek, self.tell = file, file.seek, file.tell
        self.left = float(_MOST_HEADERS)

    def read(self, size: int) -> bytes:
        if not 0 <= size <= min(_HEADER, self.left):
            raise tarfile.ReadError(f"a header of {size} bytes")
        self.left -= size
        return self._file.read(size)


def _decompressed(path: Path, file: IO[bytes], folder: Path, max_bytes: int) -> IO[bytes]:
    file.seek(0)
    head = file.read(6)
    file.seek(0)
    if head.startswith(_ZSTD):
        return _from_zstd(path, file, folder, max_bytes)
    if head.startswith(b"\x1f\x8b"):
        return gzip.GzipFile(fileobj=file)
    if head.startswith(b"BZh"):
        return bz2.open(file)
    if lzma and head in (b"\xfd7zXZ\0", b"\x5d\0\0\x80\0\0"):
        return lzma.open(file)
    return file


def _from_zstd(path: Path, file: IO[bytes], folder: Path, max_bytes: int) -> IO[bytes]:
    """Decompress a whole tar file to an unnamed file, since tarfile cannot seek in zstd streams."""
    extras.need("zstandard")
    import zstandard

    plain: IO[bytes] = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
    try:
        reader = zstandard.ZstdDecompressor().stream_reader(
            file, read_across_frames=True, closefd=False
        )
        while block := reader.read(1 << 20):
            plain.write(block)
            if plain.tell() > max_bytes + _MOST_HEADERS:
                raise DataError(f"{path} unpacks to more than {max_bytes:,} bytes.")
        plain.seek(max(0, plain.tell() - _TAR_END))
        if plain.read() != bytes(_TAR_END):  # or a file that was cut off would pass for a whole one
            raise ValueError("it is cut off")
        plain.seek(0)
    except BaseException as error:
        plain.close()
        if isinstance(error, zstandard.ZstdError):
            raise ValueError(str(error)) from None
        raise
    return plain


def _untar(archive: Path, packed: IO[bytes], folder: Path, max_bytes: int) -> None:
    with (
        _decompressed(archive, packed, folder, max_bytes) as file,
        tarfile.open(fileobj=(pieces := _InPieces(file)), mode="r:") as tar,
    ):
        sizes = ((member.name, member.size) for member in _forwards(tar))
        _require_members(archive, sizes, max_bytes)
        while file.read(1 << 20):  # the checksum comes after the part that tarfile reads
            if file.tell() > max_bytes + _MOST_HEADERS:
                raise DataError(f"{archive} unpacks to more than {max_bytes:,} bytes.")
        pieces.left = math.inf  # contents follow, which have their own limit
        _require_no_path_through_a_link(archive, tar)
        extract_members(tar, folder)


def _forwards(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Yield the members; refuse negative sizes, which make tarfile repeat a member forever."""
    place = -1
    for member in tar:
        if member.offset_data <= place:
            raise tarfile.ReadError("its members overlap")
        place = member.offset_data
        yield member


def _require_no_path_through_a_link(archive: Path, members: Iterable[tarfile.TarInfo]) -> None:
    links: set[PurePosixPath] = set()
    for member in members:
        path = PurePosixPath(member.name)
        if links.intersection((path, *path.parents)):
            raise DataError(
                f"{archive} is unsafe: its member `{member.name[:60]}` would be written through a "
                "link. Unpack it elsewhere, and pack it again without links."
            )
        if member.issym() or member.islnk():
            links.add(path)


def extract_members(tar: tarfile.TarFile, folder: str | Path = ".") -> None:
    """Write the members of a tar file below a folder: files, folders, and links that stay inside.

    tarfile's own safe filter is missing in older Pythons, and follows links to find a member's
    place, in which it could be deceived up to 3.11.12 (CVE-2025-4517). Here no link is followed.
    Owners are not restored; files keep their time, but lose write permission for others.

    Raises:
        tarfile.TarError: a member would leave the folder, or is a link out of it or a device.
    """
    folder, links = Path(folder), set[PurePosixPath]()
    for member in tar:
        name = PurePosixPath(member.name)
        if name.is_absolute() or ".." in name.parts or links.intersection((name, *name.parents)):
            raise tarfile.ReadError(f"its member {member.name[:60]!r} would leave the folder")
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if member.isdir():
            path.mkdir(exist_ok=True)
        elif member.issym():
            _require_target_inside(member)
            path.symlink_to(member.linkname)
            links.add(name)
        elif member.islnk():
            target = PurePosixPath(member.linkname)
            outside = target.is_absolute() or ".." in target.parts
            if outside or links.intersection((target, *target.parents)):
                raise tarfile.ReadError(f"{member.name[:60]!r} is a link out of the folder")
            if not (folder / target).is_file():
                raise tarfile.ReadError(f"its member {member.linkname[:60]!r} not found")
            os.link(folder / target, path)
        elif member.isreg():
            _write_file(tar, member, path)
        else:
            raise tarfile.ReadError(f"its member {member.name[:60]!r} is a device")


def _require_target_inside(link: tarfile.TarInfo) -> None:
    """Refuse a symbolic link whose target is outside, or goes up again after a name.

    The name may be another link, so the text of `name/..` does not show where it leads.

    Raises:
        tarfile.TarError: there is such a link.
    """
    target = PurePosixPath(link.linkname)
    levels = sum(part == ".." for part in target.parts)
    depth = len(PurePosixPath(link.name).parts) - 1
    if target.is_absolute() or levels > depth or ".." in target.parts[levels:]:
        raise tarfile.ReadError(f"{link.name[:60]!r} is a link out of the folder")


def _write_file(tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    content = tar.extractfile(member)
    if content is None:
        raise tarfile.ReadError(f"its member {member.name[:60]!r} has no content")
    with content, path.open("wb") as file:
        shutil.copyfileobj(content, file, 1 << 20)
        if file.tell() != member.size:
            raise tarfile.ReadError("unexpected end of data")
    path.chmod(0o755 if member.mode & stat.S_IXUSR else 0o644)
    with contextlib.suppress(OverflowError):  # a time that no file can have
        os.utime(path, (member.mtime, member.mtime))


def _unzip(archive: Path, file: IO[bytes], folder: Path, max_bytes: int) -> None:
    with zipfile.ZipFile(file) as container:
        members = container.infolist()
        sizes = ((member.filename, member.file_size) for member in members)
        _require_members(archive, sizes, max_bytes)
        for member in members:
            if stat.S_IFMT(member.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise DataError(f"{archive} has a link or device in it (`{member.filename[:60]}`).")
            if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                # zipfile decompresses other kinds in one piece of any size
                raise DataError(
                    f"{archive} has a member (`{member.filename[:60]}`) that is not compressed as "
                    "usual. Unpack it elsewhere, and pack it again."
                )
        container.extractall(folder)


def _require_inside(archive: Path, name: str) -> None:
    # Python would silently strip a leading slash, but a file that has one cannot be trusted.
    if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts or "\\" in name:
        raise DataError(f"{archive} is unsafe: its member `{name[:60]}` would leave the folder.")
