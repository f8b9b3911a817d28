"""Downloads whose checksum is recorded the first time and compared ever after."""

from __future__ import annotations

import http.client
import json
import os
import urllib.request
from pathlib import Path

from staging import sha256_of
from textfiles import write_all

TIMEOUT = 60  # seconds without a byte
RECORD = "sha256.json"


def fetch(url: str, folder: Path) -> Path:
    """The file of that address in ``folder``, downloaded unless it is there already.

    ``sha256.json`` beside it keeps the checksum of what came first, so that a file damaged or
    exchanged later is noticed. Whether the first one is right, only a checksum from elsewhere
    can tell.

    Raises:
        ValueError: the download failed or stopped early, or a file is not the recorded one.
    """
    path = folder / url.rpartition("/")[2]
    record = folder / RECORD
    folder.mkdir(parents=True, exist_ok=True)
    known = json.loads(record.read_text(encoding="utf-8")) if record.exists() else {}
    if not path.exists():
        _download(url, path)
    found = sha256_of(path)
    if path.name not in known:
        known[path.name] = found
        write_all(folder, {RECORD: [json.dumps(known, indent=2, sort_keys=True)]})
    elif found != known[path.name]:
        raise ValueError(
            f"`{path}` has the SHA-256 {found}, but had {known[path.name]} when it was first "
            f"downloaded; delete it to download it again (or `{record}`, to accept it)."
        )
    return path


def _download(url: str, path: Path) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT) as answer, temporary.open("wb") as file:
            while block := answer.read(1 << 16):
                file.write(block)
            size = answer.headers.get("Content-Length")
        if size is not None and int(size) != temporary.stat().st_size:
            raise ValueError(f"`{url}` broke off; run the same command again.")
        temporary.replace(path)
    except (OSError, http.client.HTTPException) as error:
        raise ValueError(
            f"`{url}` cannot be downloaded ({error}). Without a network: get the file elsewhere "
            f"and put it into `{path.parent}`."
        ) from None
    finally:
        temporary.unlink(missing_ok=True)
