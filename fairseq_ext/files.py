"""Files that are whole or absent: atomic writes, staged folders, safe checkpoints and archives.

Nothing here needs fairseq, and torch is imported only to read a checkpoint.
"""

from __future__ import annotations

import errno
import hashlib
import os
import pickle
import re
import shutil
import stat
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import IO, Any

from fairseq_ext.errors import CheckpointError, DataError, EnvironmentProblem

try:
    from lzma import LZMAError
except ImportError:  # a Python built without it reads no .xz, so nothing raises this
    LZMAError = EOFError

_DAMAGED = (tarfile.TarError, zipfile.BadZipFile, zlib.error, LZMAError, EOFError)
_OF_THE_OPTIMIZER = ("last_optimizer_state", "optimizer")
FULL_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def explain(error: OSError, path: str | Path | None = None) -> str:
    """One sentence for a failed file operation: the path, the system's reason, the cure."""
    name = path or error.filename2 or error.filename or "the output"
    if error.errno in FULL_DISK:
        cure = "Free some space, or choose a folder on another disk."
    elif error.errno == errno.ENOENT:
        cure = "Check the path."
    else:
        cure = "Choose a path that this user may read or write."
    return f"cannot use {name}: {error.strerror or error}. {cure}"


def require_file(path: str | Path, what: str = "file") -> Path:
    """Return ``path`` when it is a regular file that can be opened.

    Raises:
        DataError: it is missing, a folder, a device or pipe, or unreadable.
    """
    path = Path(path)
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise DataError(f"{what} {path} is a folder; give the file itself.")
        if not stat.S_ISREG(mode):
            raise DataError(f"{what} {path} is not a regular file; write it to a file first.")
        with path.open("rb"):
            return path
    except FileNotFoundError:
        raise DataError(f"{what} {path} does not exist; check the path.") from None
    except OSError as error:
        raise DataError(f"{what} {path} cannot be read: {error.strerror}.") from None


def sha256(path: str | Path) -> str:
    """The file's SHA-256 checksum as 64 hexadecimal digits."""
    digest = hashlib.sha256()
    with Path(path).open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def require_space(folder: str | Path, size: int) -> None:
    """Check that ``size`` bytes fit into the file system of ``folder`` (which may not exist yet).

    Raises:
        EnvironmentProblem: there is less free space.
    """
    existing = Path(folder).absolute()
    while not existing.exists():
        existing = existing.parent
    free = shutil.disk_usage(existing).free
    if free < size:
        raise EnvironmentProblem(
            f"{folder} needs at least {size:,} bytes, but only {free:,} are free there. "
            "Free some space, or choose a folder on another disk."
        )


@contextmanager
def atomic_write(path: str | Path, mode: str = "w") -> Iterator[IO[Any]]:
    """Open a temporary file beside ``path`` that takes its place once the block has succeeded.

    Readers see the old file or the whole new one, whatever happens in between; after an error
    the temporary file is removed. ``mode`` is ``"w"`` (UTF-8 text, ``\\n`` line ends) or ``"wb"``.

    Raises:
        EnvironmentProblem: the folder is missing or not writable, or the disk is full.
    """
    target = Path(os.path.realpath(path))  # through a symbolic link, as a plain open() would
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    text = {} if "b" in mode else {"encoding": "utf-8", "newline": "\n"}
    try:
        with temporary.open(mode, **text) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except OSError as error:
        if error.errno in FULL_DISK or error.filename in (str(temporary), str(target)):
            raise EnvironmentProblem(explain(error, path)) from error
        raise
    finally:
        with suppress(OSError):
            temporary.unlink()


@contextmanager
def staged_folder(folder: str | Path, *, last: str = "dict.") -> Iterator[Path]:
    """Yield an empty folder inside ``folder`` whose files move up once the block has succeeded.

    After an error ``folder`` is as it was before, also when it did not exist. Files whose name
    starts with ``last`` are moved last, so that their presence means the others are there too.

    Raises:
        EnvironmentProblem: ``folder`` cannot be made or written to.
    """
    folder = Path(folder)
    with no_empty_folder(folder):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            stage = Path(tempfile.mkdtemp(prefix=".partial-", dir=folder))
        except OSError as error:
            raise EnvironmentProblem(explain(error, folder)) from error
        try:
            yield stage
            for path in sorted(stage.iterdir(), key=lambda p: (p.name.startswith(last), p.name)):
                path.replace(folder / path.name)
        finally:
            shutil.rmtree(stage, ignore_errors=True)


@contextmanager
def no_empty_folder(folder: str | Path) -> Iterator[None]:
    """After an error, remove ``folder`` and its parents if the block made but did not fill them."""
    missing = [path for path in (Path(folder), *Path(folder).parents) if not os.path.lexists(path)]
    try:
        yield
    except BaseException:
        for path in missing:
            with suppress(OSError):
                path.rmdir()
        raise


def load_checkpoint(path: str | Path) -> dict[str, Any]:
    """Read a checkpoint safely: checksums first, then tensors and plain data only.

    Beyond those, unpickling accepts just the classes that were allowed with
    ``torch.serialization.add_safe_globals``; code in the file is never run. Tensors are mapped
    from the file, not copied, and live on the CPU.

    Raises:
        CheckpointError: the file is missing, empty, truncated, damaged, in the format torch had
            before 1.6, not a checkpoint, or contains an object that is not allowed.
    """
    import torch

    path = _whole_archive(path)
    try:
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError as error:
        raise CheckpointError(_refusal(path, str(error))) from None
    except (RuntimeError, EOFError, KeyError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckpointError(
            f"{path} is not a checkpoint torch can read ({reason}). Use another copy."
        ) from None
    if not isinstance(state, dict) or not isinstance(state.get("model"), dict):
        raise CheckpointError(
            f"{path} is not a fairseq checkpoint: it has no `model` entry with the weights. "
            "Give a file that fairseq-train or the averaging command wrote."
        )
    return state


def without_training_state(checkpoint: Mapping[str, Any]) -> dict[str, Any]:
    """A checkpoint without what fits its weights only as they were trained.

    That is the optimizer's state, and a second, exponentially averaged copy of the model.
    """
    kept = {name: value for name, value in checkpoint.items() if name not in _OF_THE_OPTIMIZER}
    extra = checkpoint.get("extra_state") or {}
    kept["extra_state"] = {name: v for name, v in extra.items() if not name.startswith("ema")}
    return kept


def _whole_archive(path: str | Path) -> Path:
    """Check everything about a checkpoint file that needs no unpickling; return its path."""
    try:
        path = require_file(path, "checkpoint")
    except DataError as error:
        raise CheckpointError(str(error)) from None
    with path.open("rb") as file:
        head = file.read(64)
    again = "Copy or download it again, or use an earlier checkpoint."
    if not head:
        raise CheckpointError(f"{path} is empty. {again}")
    if not head.startswith(b"PK"):
        raise CheckpointError(_foreign(path, head))
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()  # torch.load itself never looks at the checksums
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, OSError, ValueError) as error:
        raise CheckpointError(
            f"{path} is truncated or damaged ({error}; {path.stat().st_size:,} bytes). {again}"
        ) from None
    if damaged is not None:
        raise CheckpointError(
            f"{path} is damaged: the checksum of its part `{damaged}` is wrong. {again}"
        )
    return path


def _foreign(path: Path, head: bytes) -> str:
    """Say what a file is that is not a zip archive."""
    if head.lstrip()[:1] == b"<":
        return (
            f"{path} is a web page, not a checkpoint: a download link gave an error page. "
            "Download the file itself."
        )
    if head[:1] == b"\x80":  # a pickle's first opcode
        return (
            f"{path} is in the format of torch before 1.6, which cannot be checked for damage. "
            "If you trust its origin, load and save it once with a current torch."
        )
    if head[8:9] == b"{":  # safetensors: a length, then JSON
        return f"{path} is a packed model; `fairseq-ext unpack` makes a checkpoint of it."
    return f"{path} is not a checkpoint (it starts with the bytes {head[:8]!r}). Check the path."


def _refusal(path: Path, reason: str) -> str:
    """Turn torch's page-long advice into one sentence that names the refused object."""
    found = re.search(
        r"(?:GLOBAL|Unsupported (?:global|class)\S*:?(?: GLOBAL)?) `?([\w.]+)", reason
    )
    what = f"the object `{found[1]}`" if found else "an object"
    return (
        f"{path} contains {what}, which is not plain data and could run code, so it was refused "
        "and nothing was run. Do not use this file unless you know what put it there."
    )


def safe_extract(archive: str | Path, folder: str | Path, max_bytes: int = 20 << 30) -> list[Path]:
    """Unpack a tar or zip archive into ``folder``, whole or not at all.

    Args:
        archive: a ``.zip``, or a tar file in any compression Python knows.
        folder: made if missing; nothing in it is overwritten.
        max_bytes: the most the unpacked files may take together.

    Returns:
        The top-level files and folders, sorted.

    Raises:
        DataError: damaged, too large, or with a member that is absolute, leaves the folder, or is
            a link out of it or a device; or a result would overwrite what is there.
        EnvironmentProblem: this Python's tarfile has no safe filter, or the disk is full.
    """
    archive, folder = require_file(archive, "archive"), Path(folder)
    try:
        with staged_folder(folder) as stage:
            if zipfile.is_zipfile(archive):
                _unzip(archive, stage, max_bytes)
            else:
                _untar(archive, stage, max_bytes)
            names = sorted(path.name for path in stage.iterdir())
            if taken := [name for name in names if (folder / name).exists()]:
                raise DataError(
                    f"{folder / taken[0]} is there already; remove it or unpack elsewhere."
                )
    except _DAMAGED as error:
        reason = str(error).partition("\n")[0].rstrip(":")  # tarfile lists all it has tried
        raise DataError(f"{archive} is damaged or unsafe: {reason}. Download it again.") from None
    except OSError as error:
        if error.errno is None:  # not the system's: how gzip and bz2 report wrong bytes
            raise DataError(f"{archive} is damaged: {error}. Download it again.") from None
        raise EnvironmentProblem(explain(error)) from error
    return [folder / name for name in names]


def _require_size(archive: Path, total: int, max_bytes: int) -> None:
    if total > max_bytes:
        raise DataError(f"{archive} unpacks to {total:,} bytes; at most {max_bytes:,} are allowed.")


def _untar(archive: Path, folder: Path, max_bytes: int) -> None:
    if not hasattr(tarfile, "data_filter"):
        raise EnvironmentProblem(
            "this Python unpacks tar files unsafely; use 3.10.12, 3.11.4 or later."
        )
    with tarfile.open(archive) as tar:
        _require_size(archive, sum(member.size for member in tar), max_bytes)
        while tar.fileobj.read(1 << 20):  # the checksum comes after what tarfile looks at
            pass
        for member in tar:
            _require_inside(archive, member.name)
        tar.extractall(folder, filter="data")


def _unzip(archive: Path, folder: Path, max_bytes: int) -> None:
    with zipfile.ZipFile(archive) as container:
        members = container.infolist()
        _require_size(archive, sum(member.file_size for member in members), max_bytes)
        for member in members:
            _require_inside(archive, member.filename)
            if stat.S_IFMT(member.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise DataError(f"{archive} has a link or device in it (`{member.filename}`).")
        container.extractall(folder)


def _require_inside(archive: Path, name: str) -> None:
    # Python would strip a leading slash silently; a file that has one is not to be trusted.
    if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts or "\\" in name:
        raise DataError(f"{archive} is unsafe: its member `{name}` would leave the folder.")
