"""The manifest of a data folder: sizes and SHA-256 checksums of fairseq-preprocess's files.

::

    {"format": "fairseq-ext data", "version": 1,
     "files": {"train.de-en.de.bin": {"bytes": 123, "sha256": "…"}, …}}

Later calls for the same folder (another split, one side only) extend it. Unlisted files, and
folders without a manifest, are loaded without checksums.
"""

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fairseq_ext.utils.errors import DataError
from fairseq_ext.utils.files import atomic_write, is_name, require_file, sha256
from fairseq_ext.utils.json_files import read_json

MANIFEST = "data-manifest.json"
FORMAT = "fairseq-ext data"
VERSION = 1
MOST_BYTES = 1 << 24  # some 100,000 files
LOG = "preprocess.log"  # not listed: later calls append to it
CURE = (
    "Copy the folder again or run fairseq-preprocess again; if another program wrote the file "
    f"anew, delete {MANIFEST}."
)


@dataclass(frozen=True)
class Entry:
    """A file's size in ``bytes`` and its checksum, 64 hexadecimal digits, as it was written."""

    bytes: int
    sha256: str


def write(stage: Path, folder: Path) -> None:
    """Write the manifest of the files in ``stage``, which will be moved to ``folder``.

    Files that the manifest in ``folder`` lists, and that still exist, stay listed.
    """
    listed = {name: entry for name, entry in read(folder).items() if (folder / name).is_file()}
    for path in stage.iterdir():
        if path.is_file() and path.name != LOG:
            listed[path.name] = Entry(path.stat().st_size, sha256(path))
    entries = {name: asdict(listed[name]) for name in sorted(listed)}
    with atomic_write(stage / MANIFEST) as file:
        json.dump({"format": FORMAT, "version": VERSION, "files": entries}, file, indent=1)
        file.write("\n")


def read(folder: Path) -> dict[str, Entry]:
    """Return the entries of a folder's manifest, by file name; empty without a manifest.

    Raises:
        DataError: the manifest is damaged or too large, or the file is not a manifest.
    """
    path = folder / MANIFEST
    if not path.exists():
        return {}
    require_file(path, "manifest")
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ValueError(f"more than {MOST_BYTES:,} bytes")
        return _entries(read_json(path))
    except ValueError as error:
        raise DataError(
            f"{path} is not a manifest of fairseq-preprocess ({str(error).rstrip('.')}). Copy it "
            "again, or delete it to load the data without their checksums."
        ) from None


def _entries(content: Any) -> dict[str, Entry]:
    """Parse the entries of a manifest; raise ValueError at the first defect."""
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"its `format` is not `{FORMAT}`")
    if content.get("version") != VERSION or not isinstance(content.get("files"), dict):
        raise ValueError(f"its `version` is not {VERSION}, or it lists no `files`")
    entries = {}
    for name, fields in content["files"].items():
        match fields:
            case {"bytes": int(size), "sha256": str(digest)} if is_name(name) and size >= 0:
                entries[name] = Entry(size, digest)
        if name not in entries or not re.fullmatch("[0-9a-f]{64}", entries[name].sha256):
            raise ValueError(f"its entry `{name!r:.60}` is no file with a size and a checksum")
    return entries


def require(path: Path, entry: Entry | None, checksum: str | None = None) -> None:
    """Check the size of a listed file, and its SHA-256 if given, against its entry."""
    if entry is None:
        return
    size = path.stat().st_size
    if size != entry.bytes:
        fault = f"{size:,} bytes, but {MANIFEST} lists {entry.bytes:,}"
    elif checksum not in (None, entry.sha256):
        fault = f"its checksum is not the one that {MANIFEST} lists"
    else:
        return
    raise DataError(f"{path} is damaged: {fault}. {CURE}")


def check_dictionary(path: Path) -> None:
    """Check a dictionary against the manifest beside it, if it is listed there."""
    entry = read(path.parent).get(path.name)
    require(path, entry, sha256(path) if entry else None)
