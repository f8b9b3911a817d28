"""Unpacking downloaded archives: checked to the last byte, then safely, whole or not at all."""

from __future__ import annotations

import gzip
import shutil
import sys
import tarfile
import zlib
from pathlib import Path

from fetch import discard

MAX_BYTES = 60 << 30  # the largest official archive here unpacks to some 10 GB


def unpack(archive: Path, folder: Path, max_bytes: int = MAX_BYTES) -> None:
    """Unpack into ``folder``, which holds just that afterwards.

    Members that are absolute, leave the folder, or are devices or links out of it, and archives
    that unpack to more than ``max_bytes``, are refused before anything is written.

    Raises:
        ValueError: a damaged or unsafe archive; it is set aside to be downloaded again.
        RuntimeError: no space, or this Python unpacks unsafely.
    """
    shutil.rmtree(folder, ignore_errors=True)  # what a killed run has left
    try:
        check_whole(archive)
        _safe_extract(archive, folder, max_bytes)
    except ValueError as error:
        raise ValueError(f"{error} {discard(archive)}") from None


def check_whole(archive: Path) -> None:
    """Read a compressed file to its end, where its own checksum is.

    Raises:
        ValueError: truncated or damaged, or no archive at all.
    """
    with archive.open("rb") as file:
        head = file.read(512)
    if head.lstrip()[:1] == b"<":
        raise ValueError(
            f"`{archive}` is a web page, not an archive: the address gave an error page."
        )
    try:
        if head.startswith(b"\x1f\x8b"):
            with gzip.open(archive) as file:
                while file.read(1 << 20):
                    pass
        elif not tarfile.is_tarfile(archive):
            raise ValueError(f"`{archive}` is no archive (it starts with {head[:8]!r}).")
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"`{archive}` is truncated or damaged ({error}).") from None


def _safe_extract(archive: Path, folder: Path, max_bytes: int) -> None:
    # Importing fairseq_ext loads torch and fairseq too, except in its own command.
    program, sys.argv[0] = sys.argv[0], "fairseq-ext"
    try:
        from fairseq_ext.files import safe_extract
    finally:
        sys.argv[0] = program
    safe_extract(archive, folder, max_bytes)
