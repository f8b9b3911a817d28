"""Download files, resuming if interrupted; record and compare checksums; unpack archives."""

import http.client
import json
import os
import shutil
import sys
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path

from tqdm import tqdm

from fairseq_ext.utils import files, locks
from fairseq_ext.utils.archives import extract
from fairseq_ext.utils.errors import DataError
from fairseq_ext.utils.json_files import read_json, write_json

TIMEOUT = 60  # seconds without a byte
ATTEMPTS = 4  # failures in a row, without a new byte, before giving up
PAUSE = 0.5  # seconds after the first failure, doubled after each further one
MAX_BYTES = 60 << 30  # the largest official archive here unpacks to some 10 GB
RECORD = "sha256.json"
PASSING = {408, 425, 429, 500, 502, 503, 504}  # HTTP errors that a second try may not meet


class Unavailable(DataError):
    """Raised for a file that cannot be downloaded, or that the mirror lacks."""


def fetch(url: str, folder: Path, mirror: str | None = None) -> Path:
    """Download a file into ``folder`` if it is not there yet; return the path of the file.

    ``sha256.json`` in the folder keeps the checksum of the first download; a file with another
    checksum is refused. ``mirror``, an address or a folder, is used instead of the official address
    ``url``. For the url ``…/raw/train.de.gz``, a mirror folder has ``train.de.gz`` or, like a clone
    of the corpus's repository, ``raw/train.de.gz``. The file in a mirror folder is not copied.

    Raises:
        Unavailable: the file cannot be downloaded, or the mirror does not have it.
        DataError: the file does not have the recorded checksum.
    """
    name = url.rpartition("/")[2]
    path = folder / name
    folder.mkdir(parents=True, exist_ok=True)
    with locks.held(folder / ".downloading.lock", wait=True):
        if not path.exists():
            if mirror is None:
                _download(url, path)
            elif "://" in mirror:
                _download(f"{mirror.rstrip('/')}/{name}", path)
            else:
                nested = "/".join(url.split("/")[-2:])  # in a clone of the corpus's repository
                places = [Path(mirror) / name, Path(mirror) / nested]
                path = next(filter(Path.is_file, places), places[0])
                if not path.is_file():
                    raise Unavailable(f"The mirror {mirror} has no file `{name}` (from {url}).")
        _verify(path, folder / RECORD)
    return path


def discard(path: Path) -> str:
    """Rename an unusable download to ``NAME.refused``, so that :func:`fetch` downloads it again.

    A file that is not in the record ``sha256.json``, such as a file of a mirror folder, keeps its
    name. Return a sentence that tells the user what to do.
    """
    record = path.parent / RECORD
    checksums = _known(record)
    if path.name not in checksums:
        return f"Replace `{path}`."
    aside = path.with_name(f"{path.name}.refused")
    path.replace(aside)
    del checksums[path.name]
    write_json(record, checksums)
    return f"It is now `{aside.name}`; run the same command again to download it again."


def _verify(path: Path, record: Path) -> None:
    checksums, checksum = _known(record), files.sha256(path)
    if path.name not in checksums:
        write_json(record, {**checksums, path.name: checksum})
    elif checksum != checksums[path.name]:
        raise DataError(
            f"`{path}` has the SHA-256 {checksum}, but had {checksums[path.name]} when it was "
            f"first downloaded; delete it to download it again (or `{record}`, to accept it)."
        )


def _known(record: Path) -> dict[str, str]:
    checksums = read_json(record) if record.exists() else {}
    if not isinstance(checksums, dict):
        raise DataError(f"`{record}` is not the record of downloads; delete it.")
    return checksums


class Part:
    """A partial download in ``NAME.part``, with the file's version in ``NAME.part.json``.

    The version is the server's ETag or date. A download without a version is not continued, because
    the file may have changed in the meantime.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._record = path.with_name(f"{path.name}.json")
        self.version: str | None = None
        with suppress(OSError, ValueError, RecursionError):
            self.version = json.loads(self._record.read_text(encoding="utf-8"))
        if not isinstance(self.version, str):
            self.restart(None)

    def restart(self, version: str | None) -> None:
        """Delete the downloaded bytes; record ``version``, that of the file to download anew."""
        self.remove()
        self.version = version
        if version is not None:
            write_json(self._record, version)

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)
        self._record.unlink(missing_ok=True)

    @property
    def size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0


def _download(url: str, path: Path) -> None:
    part, failures = Part(path.with_name(f"{path.name}.part")), 0
    while True:
        before = part.size
        try:
            _attempt(url, part)
            break
        except (OSError, http.client.HTTPException) as error:
            status = None
            if isinstance(error, urllib.error.HTTPError):
                status = error.code
                error.close()  # it is a response, too, with an open connection
            if status == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and before:
                part.remove()  # the file has changed, and is shorter now
                continue
            failures = 1 if part.version and part.size > before else failures + 1
            if failures == ATTEMPTS or (status is not None and status not in PASSING):
                _give_up(url, part, error)
            print(f"{path.name}: {error}; trying again", file=sys.stderr)
            time.sleep(PAUSE * 2 ** (failures - 1))
    part.path.replace(path)
    part.remove()


def _give_up(url: str, part: Part, error: Exception) -> None:
    outcome = "Nothing was kept."
    if part.version and part.size:
        outcome = f"Its first {part.size:,} bytes are kept; the same command goes on from there."
    else:
        part.remove()
    raise Unavailable(
        f"`{url}` cannot be downloaded ({error}). {outcome} Without a network: get the file "
        f"elsewhere and put it into `{part.path.parent}`."
    ) from None


def _attempt(url: str, part: Part) -> None:
    """Append the bytes that ``part`` still lacks; begin anew if the server sends all of them.

    Raise an OSError or HTTPException if the request fails or breaks off.
    """
    request = urllib.request.Request(url, headers={"User-Agent": "fairseq-ext"})
    start, version = part.size, part.version or ""
    if start and version:
        request.add_header("Range", f"bytes={start}-")
        request.add_header("If-Range", version)  # another version is sent whole
    with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
        if answer.status != http.HTTPStatus.PARTIAL_CONTENT:
            start = 0
            tag = answer.headers.get("ETag", "W/")
            # A weak ETag does not promise the same bytes.
            part.restart(answer.headers.get("Last-Modified") if tag.startswith("W/") else tag)
        elif not (sent := answer.headers.get("Content-Range", "")).startswith(f"bytes {start}-"):
            part.remove()
            raise ConnectionError(f"the server answered `{sent}` when asked for bytes {start}-")
        length = answer.headers.get("Content-Length")
        total = None if length is None else start + int(length)
        bar = {"total": total, "initial": start, "desc": part.path.stem, "disable": None}
        with part.path.open("ab") as file, tqdm.wrapattr(answer, "read", **bar) as body:
            shutil.copyfileobj(body, file, 1 << 16)
            file.flush()
            os.fsync(file.fileno())
    if total is not None and part.size != total:
        raise ConnectionError(f"broke off after {part.size:,} of {total:,} bytes")


def unpack(archive: Path, folder: Path, max_bytes: int = MAX_BYTES) -> None:
    """Unpack an archive into ``folder``, whose old content is deleted.

    An archive is refused if it is damaged, unpacks to more than ``max_bytes``, or has a member that
    is a link or would be written outside the folder. Then :func:`discard` renames it.
    """
    shutil.rmtree(folder, ignore_errors=True)  # files that a killed run left
    try:
        with files.atomic_folder(folder) as stage:
            extract(archive, stage, max_bytes)
    except ValueError as error:
        raise DataError(f"{error} {discard(archive)}") from None
