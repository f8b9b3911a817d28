"""Checkpoint files: loaded safely, saved whole.

Loading needs torch, but neither fairseq nor the plugin.
"""

from __future__ import annotations

import argparse
import pickle
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch

from fairseq_ext.checkpoints import bundle, pickle_allowlist, untrusted
from fairseq_ext.checkpoints.numpy_pickles import STAND_INS
from fairseq_ext.utils.errors import CheckpointError, DataError
from fairseq_ext.utils.files import atomic_write, explain, head, require_file

# What unpickling and torch's own checks raise on damaged data.
_UNREADABLE = (
    *(RuntimeError, EOFError, LookupError, ValueError, TypeError, AttributeError, AssertionError),
    *(ArithmeticError, MemoryError, struct.error),
)


def harmless_classes() -> list[Any]:
    """Return the classes that stock fairseq stores besides tensors and plain Python values.

    ``argparse.Namespace`` holds the options of legacy architectures; numpy arrays of numbers are
    the n-gram counts of ``--eval-bleu``, kept by the meters. The list stays as short as real
    checkpoints allow, so that a malicious file is still refused.
    """
    return [argparse.Namespace, *STAND_INS]


def allow_harmless_classes() -> None:
    """Let ``torch.load(…, weights_only=True)`` read them, in this process from now on."""
    torch.serialization.add_safe_globals(harmless_classes())


def _harmless_classes_allowed() -> AbstractContextManager[Any]:
    """Let it read them within a ``with`` block; what was allowed before stays allowed."""
    allowed = torch.serialization.get_safe_globals()
    missing = [one for one in harmless_classes() if one not in allowed]
    return torch.serialization.safe_globals(missing) if missing else nullcontext()


def is_archive(path: str | Path) -> bool:
    """Whether a file starts as torch's checkpoints do."""
    return head(path, 2) == b"PK"


def is_checkpoint(path: str | Path) -> bool:
    """Whether :func:`load` is for a path: a file of torch's, or a bundle."""
    return bundle.is_bundle(path) or is_archive(path)


def save(checkpoint: Mapping[str, Any], path: str | Path) -> None:
    """Write a checkpoint, whole or not at all.

    Raises:
        EnvironmentProblem: the folder is missing or not writable, or the disk is full.
    """
    with atomic_write(path, "wb") as file:
        torch.save(checkpoint, file)


def load(path: str | Path, *, checksums: bool = True) -> dict[str, Any]:
    """Read a checkpoint safely: checksums first, then tensors and plain data only.

    Beyond those, unpickling accepts just :func:`harmless_classes`; code in the file is never run.
    Tensors are mapped from the file, not copied, and live on the CPU.

    Args:
        path: of the checkpoint, or of a bundle.
        checksums: check them, which reads the whole file; not needed to look at the settings.

    Raises:
        CheckpointError: the file is missing, empty, truncated, damaged, in the format torch had
            before 1.6, not a checkpoint, or contains an object that is not allowed or parts
            without end (see :func:`fairseq_ext.checkpoints.untrusted.require_plain`).
    """
    if bundle.is_bundle(path):
        state = bundle.load(path, checksums=checksums)
        found = bundle.read(path)
        grows = 32 if found.is_packed else 4  # to fp32, tied weights counted twice
        return _plain(state, Path(path), grows * (found.folder / bundle.WEIGHTS).stat().st_size)
    path = _whole_archive(path, checksums)
    try:
        with _harmless_classes_allowed():
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
    return _plain(state, path, path.stat().st_size)


def _plain(state: dict[str, Any], path: Path, size: int) -> dict[str, Any]:
    """The same, if it is plain data."""
    try:
        untrusted.require_plain(state, size)
    except CheckpointError as error:
        raise CheckpointError(f"{path} {error}, so it was refused. Do not use it.") from None
    return state


def _whole_archive(path: str | Path, checksums: bool = True) -> Path:
    """Check everything about a checkpoint file that needs no unpickling; return its path."""
    try:
        path = require_file(path, "checkpoint")
    except DataError as error:
        raise CheckpointError(str(error)) from None
    with path.open("rb") as file:
        start = file.read(64)
    again = "Copy or download it again, or use an earlier checkpoint."
    if not start:
        raise CheckpointError(f"{path} is empty. {again}")
    if not start.startswith(b"PK"):
        raise CheckpointError(_foreign(path, start))
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
    for part in archive.infolist():
        if not part.filename.lower().endswith(".pkl"):
            continue
        called = pickle_allowlist.unusual(archive.read(part))
        if called:
            raise CheckpointError(_refusal(path, f"GLOBAL {called}"))


def _faults(archive: zipfile.ZipFile, size: int) -> Iterator[str]:
    """Yield the faults of an archive; each check relies on those before it."""
    parts = archive.infolist()
    if any(part.compress_type != zipfile.ZIP_STORED for part in parts):
        yield "compressed parts"
    if len({part.filename.lower() for part in parts}) < len(parts):  # torch ignores case
        yield "two parts of one name"
    if sum(part.file_size for part in parts) > size:
        yield "parts that overlap"
    if any(stat.S_ISLNK(part.external_attr >> 16) for part in parts):
        yield "parts that are links"
    if any(".." in part.filename or part.filename.startswith("/") for part in parts):
        yield "parts outside its folder"


def _foreign(path: Path, start: bytes) -> str:
    """Say what a file is that is not a zip archive, by its first bytes."""
    if start.lstrip()[:1] == b"<":
        return (
            f"{path} is a web page, not a checkpoint: a download link gave an error page. "
            "Download the file itself."
        )
    if start[:1] == b"\x80":  # a pickle's first opcode
        return (
            f"{path} is in the format of torch before 1.6, which cannot be checked for damage. "
            "If you trust its origin, load and save it once with a current torch."
        )
    if start[8:9] == b"{":  # safetensors: a length, then JSON
        return f"{path} is a packed model; `fairseq-ext unpack` makes a checkpoint of it."
    return f"{path} is not a checkpoint (it starts with the bytes {start[:8]!r}). Check the path."


def _refusal(path: Path, reason: str) -> str:
    """Turn torch's page-long advice into one sentence that names the refused object."""
    found = re.search(
        r"(?:GLOBAL|Unsupported (?:global|class)\S*:?(?: GLOBAL)?) `?([\w.]+)", reason
    )
    what = f"the object `{found[1]:.80}`" if found else "an object"
    return (
        f"{path} contains {what}, which is not plain data and could run code or take all memory, "
        "so it was refused and nothing was run. Do not use this file unless you know what put it "
        "there."
    )
