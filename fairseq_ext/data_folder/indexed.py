"""Check that fairseq's index (``.idx``) and data (``.bin``) are whole and belong together.

In the layout ``mmap``, fairseq's default, ``.idx`` has a header, the size of each sentence in
tokens (int32) and the byte at which it starts in ``.bin`` (int64); ``.bin`` has the tokens one
after another.

Facts about a file are remembered until its size, time or inode changes. The notes are a small file
beside the data; in a folder that cannot be written to, every start reads the data again.
"""

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_ext.data_folder import manifest
from fairseq_ext.utils.errors import DataError, EnvironmentProblem
from fairseq_ext.utils.files import atomic_write, require_file, sha256

# Types by their code in the header; signed ones are read as unsigned: negative tokens become large.
TOKEN_TYPES = {1: "u1", 2: "u1", 3: "<u2", 4: "<u4", 5: "<u8", 8: "<u2", 9: "<u4", 10: "<u8"}
HEADER = "S9,<u8,u1,<u8"  # magic, version, code of the tokens' type, number of sentences
OTHER_LAYOUTS = (b"TNTIDX", b"HUFFIDX")
BLOCK = 1 << 24  # bytes of data, or sentences of an index, to check at a time
AGAIN = "Run fairseq-preprocess again."
NOTES = ".checked.json"
MOST_BYTES = 1 << 22  # most bytes of notes, because anyone may have written them


@dataclass(frozen=True)
class Header:
    """The header of an index: the number of sentences and the numpy type of their tokens."""

    sentences: int
    token_type: str


def check(prefix: str | Path, vocabulary: int | None = None, *, contents: bool = True) -> None:
    """Check that ``<prefix>.idx`` and ``<prefix>.bin`` are whole and belong together.

    Sizes are compared in every call. The contents are read only once (:func:`examine`) to check
    pointers against sizes, checksums against the folder's manifest, and the largest token. In
    layouts other than ``mmap``, only files in the manifest are checked.

    Args:
        prefix: the path without its ending, such as ``data-bin/train.de-en.de``. If neither file
            exists, nothing is checked.
        vocabulary: the size of the dictionary that the tokens must be in, if known.
        contents: False compares only sizes, which is enough in all but one process of a job.
    """
    index, data = Path(f"{prefix}.idx"), Path(f"{prefix}.bin")
    if not index.exists() and not data.exists():
        return
    require_file(index, "index"), require_file(data, "data file")
    header = read_header(index)
    listed = manifest.read(index.parent)
    for path in (index, data):
        manifest.require(path, listed.get(path.name))
        if contents and header is None and path.name in listed:
            checksum, _ = examine(path, lambda path: (sha256(path), 0))
            manifest.require(path, listed[path.name], checksum)
    if not contents or header is None:
        return
    checksum, expected = examine(index, lambda path: (sha256(path), bytes_of_data(path, header)))
    manifest.require(index, listed.get(index.name), checksum)
    size = data.stat().st_size
    if size != expected:
        raise DataError(
            f"{data} is damaged: {size:,} bytes, but its index {index.name} expects "
            f"{expected:,}. {AGAIN}"
        )
    checksum, largest = examine(data, lambda path: read_data(path, header.token_type))
    manifest.require(data, listed.get(data.name), checksum)
    if vocabulary and largest >= vocabulary:
        raise DataError(
            f"{data} has the token number {largest:,}, but its dictionary only "
            f"{vocabulary:,} entries: one of them was replaced or is damaged. {AGAIN}"
        )


def read_header(index: Path) -> Header | None:
    """Read the header of an index; None if its layout is not ``mmap``."""
    layout = np.dtype(HEADER)
    with index.open("rb") as file:
        head = file.read(layout.itemsize)
    if head.startswith(OTHER_LAYOUTS):
        return None
    if not head.startswith(b"MMIDIDX") or len(head) < layout.itemsize:
        raise DataError(f"{index} is not the index of a fairseq dataset, or is truncated. {AGAIN}")
    _, _, code, sentences = np.frombuffer(head, layout)[0].item()
    expected = layout.itemsize + 12 * sentences
    if index.stat().st_size != expected or code not in TOKEN_TYPES:
        raise DataError(
            f"{index} is damaged: {index.stat().st_size:,} bytes, not {expected:,}. {AGAIN}"
        )
    if not sentences:
        raise DataError(f"{index} has no sentences. Give fairseq-preprocess a text with lines.")
    return Header(sentences, TOKEN_TYPES[code])


def read(prefix: str | Path) -> tuple[Any, Any]:
    """Memory-map the tokens of all sentences; also return where each sentence begins.

    Args:
        prefix: as for :func:`check`.

    Returns:
        A memory map of the tokens, and ``[sentences + 1]`` positions in it, int64.

    Raises:
        DataError: as for :func:`check`; or the data are missing, or their layout is not ``mmap``.
    """
    index = require_file(f"{prefix}.idx", "index")
    check(prefix)
    header = read_header(index)
    if header is None:
        raise DataError(f"{index} must be of the layout `mmap`, but is of another one. {AGAIN}")
    sizes = np.memmap(index, "<i4", "r", np.dtype(HEADER).itemsize, (header.sentences,))
    begins = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
    return np.memmap(f"{prefix}.bin", header.token_type, "r"), begins


def bytes_of_data(index: Path, header: Header) -> int:
    """Compute the data size that an index implies, and check its pointers against its sizes."""
    itemsize, offset = np.dtype(header.token_type).itemsize, np.dtype(HEADER).itemsize
    sizes = np.memmap(index, "<i4", "r", offset, (header.sentences,))
    pointers = np.memmap(index, "<i8", "r", offset + sizes.nbytes, (header.sentences,))
    end = 0
    for first in range(0, header.sentences, BLOCK):
        lengths = sizes[first : first + BLOCK].astype(np.int64) * itemsize
        starts = end + np.cumsum(lengths) - lengths
        block_pointers = pointers[first : first + BLOCK]
        wrong = np.flatnonzero((block_pointers != starts) | (lengths < 0))
        if len(wrong):
            row = wrong[0]
            raise DataError(
                f"{index} is damaged: sentence {first + row + 1:,}, of {sizes[first + row]:,} "
                f"tokens, begins at byte {block_pointers[row]:,} instead of {starts[row]:,}. "
                f"{AGAIN}"
            )
        end = int(starts[-1] + lengths[-1])
    return end


def read_data(path: Path, token_type: str) -> tuple[str, int]:
    """Return the SHA-256 of a data file and the largest token id in it."""
    digest, largest = hashlib.sha256(), 0
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
            largest = max(largest, int(np.frombuffer(block, token_type).max()))
    return digest.hexdigest(), largest


def examine(path: Path, measure: Callable[[Path], tuple[str, int]]) -> tuple[str, int]:
    """Return ``measure(path)``, a checksum and a number, as noted in an earlier call if possible.

    Only notes on the file's present version are used; errors of ``measure`` are not noted.
    """
    status = path.stat()  # before the file is read, so the next call notices a change in between
    stamp = [status.st_size, status.st_mtime_ns, status.st_ino]
    notes = path.parent / NOTES
    match _read(notes).get(path.name):
        case {"file": file, "sha256": str(checksum), "number": int(number)} if file == stamp:
            return checksum, number
    checksum, number = measure(path)
    facts = {"file": stamp, "sha256": checksum, "number": number}
    with suppress(OSError, EnvironmentProblem), atomic_write(notes) as out:
        json.dump({**_read(notes), path.name: facts}, out)
    return checksum, number


def _read(notes: Path) -> dict[str, Any]:
    """Read the notes on a folder's files, by file name; empty if they cannot be used."""
    try:
        with notes.open("rb") as file:
            content = json.loads(file.read(MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
