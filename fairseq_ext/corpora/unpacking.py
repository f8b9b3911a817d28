"""Unpack downloaded archives: checked to the last byte, safely, and whole or not at all."""

from __future__ import annotations

import shutil
from pathlib import Path

from fairseq_ext.corpora.downloads import discard
from fairseq_ext.utils.archives import safe_extract
from fairseq_ext.utils.errors import DataError

MAX_BYTES = 60 << 30  # the largest official archive here unpacks to some 10 GB


def unpack(archive: Path, folder: Path, max_bytes: int = MAX_BYTES) -> None:
    """Unpack into ``folder``, which holds just that afterwards.

    Members that are absolute, leave the folder, or are devices or links out of it, and archives
    that unpack to more than ``max_bytes``, are refused before anything is written.

    Raises:
        DataError: a damaged or unsafe archive; it is set aside to be downloaded again.
        RuntimeError: no space, or this Python unpacks unsafely.
    """
    shutil.rmtree(folder, ignore_errors=True)  # files that a killed run left
    try:
        _require_no_web_page(archive)
        safe_extract(archive, folder, max_bytes)
    except ValueError as error:
        raise DataError(f"{error} {discard(archive)}") from None


def _require_no_web_page(archive: Path) -> None:
    with archive.open("rb") as file:
        if file.read(512).lstrip()[:1] == b"<":
            raise DataError(
                f"`{archive}` is a web page, not an archive: the address gave an error page."
            )
