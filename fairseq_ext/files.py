"""Files that are whole or absent: atomic writes, staged folders, safe checkpoints.

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
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from fairseq_ext.errors import CheckpointError, DataError, EnvironmentProblem

# What unpickling and torch's own checks raise on damaged data.
_UNREADABLE = (
    *(RuntimeError, EOFError, LookupError, ValueError, TypeError, AttributeError, AssertionError),
    *(ArithmeticError, MemoryError, struct.error),
)
_OF_THE_OPTIMIZER = ("last_optimizer_state", "optimizer")
FULL_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
TOO_MANY_FILES = {errno.EMFILE, errno.ENFILE}


def explain(error: OSError, path: str | Path | None = None) -> str:
    """One sentence for a failed file operation: the path, the system's reason, the cure."""
    name = path or error.filename2 or error.filename or "the output"
    if error.errno in FULL_DISK:
        cure = "Free some space, or choose a folder on another disk."
    elif error.errno in TOO_MANY_FILES:
        cure = "Allow more of them: ulimit -n 4096"
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
    except (OSError, RuntimeError) as error:
        reason = system_error(error)
        ours = (str(temporary), str(target))
        if reason is not None and (reason.errno in FULL_DISK or reason.filename in ours):
            raise EnvironmentProblem(explain(reason, path)) from error
        raise
    finally:
        with suppress(OSError):
            temporary.unlink()


def system_error(error: BaseException) -> OSError | None:
    """The failed file operation behind an error; torch reports some of them as a RuntimeError."""
    reason: BaseException | None = error
    while reason is not None and not isinstance(reason, OSError):
        reason = reason.__context__
    return reason


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


def load_checkpoint(path: str | Path, *, checksums: bool = True) -> dict[str, Any]:
    """Read a checkpoint safely: checksums first, then tensors and plain data only.

    Beyond those, unpickling accepts just the classes that were allowed with
    ``torch.serialization.add_safe_globals``; code in the file is never run. Tensors are mapped
    from the file, not copied, and live on the CPU.

    Args:
        path: of the checkpoint.
        checksums: check them, which reads the whole file; not needed to look at the settings.

    Raises:
        CheckpointError: the file is missing, empty, truncated, damaged, in the format torch had
            before 1.6, not a checkpoint, or contains an object that is not allowed or parts
            without end (see :func:`fairseq_ext.untrusted.require_plain`).
    """
    import torch

    from fairseq_ext import untrusted

    path = _whole_archive(path, checksums)
    try:
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError as error:
        raise CheckpointError(_refusal(path, str(error))) from None
    except OSError as error:
        raise CheckpointError(explain(error, path)) from None
    except _UNREADABLE as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        raise CheckpointError(
            f"{path} is not a checkpoint torch can read ({reason}). Use another copy."
        ) from None
    if not isinstance(state, dict) or not isinstance(state.get("model"), dict):
        raise CheckpointError(
            f"{path} is not a fairseq checkpoint: it has no `model` entry with the weights. "
            "Give a file that fairseq-train or the averaging command wrote."
        )
    try:
        untrusted.require_plain(state, path.stat().st_size)
    except CheckpointError as error:
        raise CheckpointError(f"{path} {error}, so it was refused. Do not use it.") from None
    return state


def without_training_state(checkpoint: Mapping[str, Any]) -> dict[str, Any]:
    """A checkpoint without what fits its weights only as they were trained.

    That is the optimizer's state, and a second, exponentially averaged copy of the model.
    """
    kept = {name: value for name, value in checkpoint.items() if name not in _OF_THE_OPTIMIZER}
    extra = checkpoint.get("extra_state") or {}
    kept["extra_state"] = {name: v for name, v in extra.items() if not name.startswith("ema")}
    return kept


def _whole_archive(path: str | Path, checksums: bool = True) -> Path:
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
            _require_as_written(archive, path)
            # torch.load itself never looks at the checksums
            damaged = archive.testzip() if checksums else None
    except CheckpointError:
        raise
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, OSError, ValueError) as error:
        raise CheckpointError(
            f"{path} is truncated or damaged ({error}; {path.stat().st_size:,} bytes). {again}"
        ) from None
    if damaged is not None:
        raise CheckpointError(
            f"{path} is damaged: the checksum of its part `{damaged}` is wrong. {again}"
        )
    return path


def _require_as_written(archive: zipfile.ZipFile, path: Path) -> None:
    """Refuse an archive that torch did not write: it never compresses, repeats or links."""
    fault = next(_faults(archive, path.stat().st_size), None)
    if fault is not None:
        raise CheckpointError(
            f"{path} has {fault}, which no checkpoint has, so it was refused. Do not use it."
        )


def _faults(archive: zipfile.ZipFile, size: int) -> Iterator[str]:
    """What is wrong with an archive; what comes later relies on what comes before."""
    parts = archive.infolist()
    if any(part.compress_type != zipfile.ZIP_STORED for part in parts):
        yield "compressed parts"
    if len({part.filename for part in parts}) < len(parts):
        yield "two parts of one name"
    if sum(part.file_size for part in parts) > size:
        yield "parts that overlap"
    if any(stat.S_ISLNK(part.external_attr >> 16) for part in parts):
        yield "parts that are links"
    if any(".." in part.filename or part.filename.startswith("/") for part in parts):
        yield "parts outside its folder"
    for part in parts:
        if part.filename.endswith("data.pkl"):
            content = archive.read(part)
            if b"builtin" in content and b"\nbytearray\n" in content:
                yield "a `bytearray` in it"  # it takes as many bytes as it names, at once


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
