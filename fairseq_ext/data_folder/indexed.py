"""Check that the files in a folder of binarized data are as fairseq-preprocess wrote them.

A manifest, ``data-manifest.json``, lists sizes and checksums of the files::

    {"format": "fairseq-ext data", "version": 1,
     "files": {"train.de-en.de.bin": {"bytes": 123, "sha256": "…"}, …}}

If fairseq-preprocess runs several times for one folder, such as once for each split, each run adds
its files to the manifest.

A dataset is an index (``.idx``) and its data (``.bin``). In the layout ``mmap``, fairseq's default,
they have this content:

- ``.idx``: a header, then the number of tokens of each sentence (int32), then the byte at which
  each sentence starts in ``.bin`` (int64);
- ``.bin``: the tokens of all sentences, one after another.
"""

import re
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_ext.utils.errors import DataError
from fairseq_ext.utils.files import is_name, require_file, sha256
from fairseq_ext.utils.json_files import read_json, write_json

MANIFEST = "data-manifest.json"
FORMAT = "fairseq-ext data"
VERSION = 1
LOG = "preprocess.log"  # not listed: later calls append to it
CURE = (
    "Copy the folder again or run fairseq-preprocess again; if another program wrote the file "
    f"anew, delete {MANIFEST}."
)
# Types by their code in the header; signed ones are read as unsigned: negative tokens become large.
TOKEN_TYPES = {1: "u1", 2: "u1", 3: "<u2", 4: "<u4", 5: "<u8", 8: "<u2", 9: "<u4", 10: "<u8"}
HEADER = "S9,<u8,u1,<u8"  # magic, version, code of the tokens' type, number of sentences
OTHER_LAYOUTS = (b"TNTIDX", b"HUFFIDX")
BLOCK = 1 << 24  # sentences of an index to check at a time
AGAIN = "Run fairseq-preprocess again."


def write_manifest(stage: Path, folder: Path) -> None:
    """Write the manifest of the files in ``stage``, which will be moved to ``folder``.

    Files that the manifest in ``folder`` lists, and that still exist, stay listed.
    """
    listed = {
        name: file for name, file in read_manifest(folder).items() if (folder / name).exists()
    }
    for path in stage.iterdir():
        if path.is_file() and path.name != LOG:
            listed[path.name] = {"bytes": path.stat().st_size, "sha256": sha256(path)}
    content = {"format": FORMAT, "version": VERSION, "files": dict(sorted(listed.items()))}
    write_json(stage / MANIFEST, content)


def read_manifest(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the entries of a folder's manifest by file name: dicts of ``bytes`` and ``sha256``.

    Without a manifest, return {}. Raise :class:`DataError` if the manifest is damaged.
    """
    path = folder / MANIFEST
    if not path.exists():
        return {}
    match read_json(path):
        case {"format": kind, "version": version, "files": dict(listed)}:
            entries_fit = all(_is_entry(name, entry) for name, entry in listed.items())
            if (kind, version) == (FORMAT, VERSION) and entries_fit:
                return listed
    raise DataError(
        f"{path} is not a manifest of fairseq-preprocess. Copy it again, or delete it to load the "
        "data without their checksums."
    )


def _is_entry(name: str, entry: Any) -> bool:
    match entry:
        case {"bytes": int(size), "sha256": str(digest)}:
            return is_name(name) and size >= 0 and bool(re.fullmatch("[0-9a-f]{64}", digest))
    return False


def require_as_listed(
    path: Path, listed: dict[str, dict[str, Any]], *, contents: bool = True
) -> None:
    """Raise :class:`DataError` if a file differs from its entry, if any, in a manifest.

    ``listed`` has the manifest's entries (:func:`read_manifest`). The SHA-256 is compared only if
    ``contents`` is True, the size always.
    """
    entry = listed.get(path.name)
    if entry is None:
        return
    size = path.stat().st_size
    if size != entry["bytes"]:
        fault = f"{size:,} bytes, but {MANIFEST} lists {entry['bytes']:,}"
    elif contents and sha256(path) != entry["sha256"]:
        fault = f"its checksum is not the one that {MANIFEST} lists"
    else:
        return
    raise DataError(f"{path} is damaged: {fault}. {CURE}")


def check_dictionary(path: Path) -> None:
    """Raise :class:`DataError` if a dictionary differs from its entry in the manifest beside it."""
    require_as_listed(path, read_manifest(path.parent))


def check(prefix: str | Path, vocabulary: int | None = None, *, contents: bool = True) -> None:
    """Check the files ``<prefix>.idx`` and ``<prefix>.bin``, if they exist.

    - The files have the sizes and checksums in the folder's manifest, if it lists them.
    - Each sentence starts in ``.bin`` where the sentence before it ends.
    - All tokens are below ``vocabulary``, the number of entries in the dictionary; None skips this.

    Layouts other than ``mmap`` are only compared with the manifest. If ``contents`` is False, only
    the header of ``.idx`` and the sizes of the files are checked. In a job of several processes,
    this is enough for all processes but one.

    Raises:
        DataError: only one file exists, one is damaged, or a token is not in the vocabulary.
    """
    index, data = Path(f"{prefix}.idx"), Path(f"{prefix}.bin")
    if not index.exists() and not data.exists():
        return
    require_file(index, "index"), require_file(data, "data file")
    header = read_header(index)
    listed = read_manifest(index.parent)
    for path in (index, data):
        require_as_listed(path, listed, contents=contents)
    if not contents or header is None:
        return
    sentences, token_type = header
    expected = bytes_of_data(index, sentences, token_type)
    size = data.stat().st_size
    if size != expected:
        raise DataError(
            f"{data} is damaged: {size:,} bytes, but its index {index.name} expects "
            f"{expected:,}. {AGAIN}"
        )
    largest = int(np.memmap(data, token_type, "r").max()) if size else 0
    if vocabulary and largest >= vocabulary:
        raise DataError(
            f"{data} has the token number {largest:,}, but its dictionary has only "
            f"{vocabulary:,} entries: one of the two was replaced or is damaged. {AGAIN}"
        )


def read_header(index: Path) -> tuple[int, str] | None:
    """Return the number of sentences and the tokens' numpy type.

    Return None if the layout is not ``mmap``. Raise :class:`DataError` if the file is damaged, or
    is no index.
    """
    layout = np.dtype(HEADER)
    with index.open("rb") as file:
        head = file.read(layout.itemsize)
    if head.startswith(OTHER_LAYOUTS):
        return None
    if not head.startswith(b"MMIDIDX") or len(head) < layout.itemsize:
        raise DataError(f"{index} is not the index of a fairseq dataset, or is truncated. {AGAIN}")
    _, _, code, sentences = np.frombuffer(head, layout)[0].item()
    expected = layout.itemsize + 12 * sentences
    if code not in TOKEN_TYPES:
        raise DataError(f"{index} has tokens of the type {code}, not whole numbers. {AGAIN}")
    if index.stat().st_size != expected:
        raise DataError(
            f"{index} is damaged: {index.stat().st_size:,} bytes, not {expected:,}. {AGAIN}"
        )
    if not sentences:
        raise DataError(f"{index} has no sentences. Give fairseq-preprocess a text with lines.")
    return sentences, TOKEN_TYPES[code]


def read(prefix: str | Path, vocabulary: int) -> tuple[Any, Any]:
    """Return all tokens of ``<prefix>.bin`` as a memory map, and the starts of sentences.

    The starts are int64 ``[sentences + 1]``; the last is the number of all tokens. ``vocabulary``
    is the size of the dictionary. Raise :class:`DataError` if :func:`check` does, or if the layout
    is not ``mmap``.
    """
    index = require_file(f"{prefix}.idx", "index")
    check(prefix, vocabulary)
    header = read_header(index)
    if header is None:
        raise DataError(f"{index} must have the layout `mmap`, but has another one. {AGAIN}")
    sentences, token_type = header
    sizes = np.memmap(index, "<i4", "r", np.dtype(HEADER).itemsize, (sentences,))
    begins = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
    return np.memmap(f"{prefix}.bin", token_type, "r"), begins


def bytes_of_data(index: Path, sentences: int, token_type: str) -> int:
    """Return the number of bytes that the ``.bin`` of an index must have.

    :func:`read_header` returns ``sentences`` and ``token_type``. Raise :class:`DataError` if a
    sentence does not start where the sentence before it ends.
    """
    itemsize, offset = np.dtype(token_type).itemsize, np.dtype(HEADER).itemsize
    sizes = np.memmap(index, "<i4", "r", offset, (sentences,))
    pointers = np.memmap(index, "<i8", "r", offset + sizes.nbytes, (sentences,))
    end = 0
    for first in range(0, sentences, BLOCK):
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
