"""Bundles: a trained model with everything needed to use it, in a folder that can be moved.

==========================  ======================================================================
``bundle.json``             format, version, languages, architecture, number format of the weights,
                            default options of the search, origin (version of fairseq-ext, number of
                            updates), and SHA-256 of each file that is used
``config.json``             options of model and task, as JSON; which weights are tied
``model.safetensors``       weights, by their names in the state dict; see
                            :mod:`fairseq_ext.engine.tensors`
``program.json``            what the engine computes from the weights, without torch
                            (:mod:`fairseq_ext.model.program_file`); left out if the engine
                            cannot run the model
``dict.LANGUAGE.txt``       two dictionaries; the folder can be the DATA of fairseq's commands
``text.json``               how text becomes tokens, with the files that it names
``shortlist.txt``           optional: the target tokens that a sentence's translations may have
                            (:mod:`fairseq_ext.engine.shortlist`)
``README.md``               the model card
==========================  ======================================================================

Weights are stored in fp32, in bf16, or with matrices in int8 and all others in fp32. Binary weights
may take one bit each, and ternary weights 1.6 bits. The folder may be packed into an archive
(:func:`archive`), which is accepted wherever the folder is. Nothing in a bundle is unpickled or
evaluated.
"""

import re
import shutil
import tarfile
import zipfile
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_ext.checkpoints import dictionaries
from fairseq_ext.checkpoints.layout import DICTIONARIES, FOR_THE_HUB, PLAIN_LOSS, before_training
from fairseq_ext.engine import NUMBERS
from fairseq_ext.engine.engine_model import SearchDefaults, is_search
from fairseq_ext.engine.program import Signs
from fairseq_ext.engine.tensors import Tensors
from fairseq_ext.utils import extras, files
from fairseq_ext.utils.archives import unpacked_in_cache
from fairseq_ext.utils.errors import CheckpointError, ConfigError
from fairseq_ext.utils.files import FileVersions
from fairseq_ext.utils.json_files import read_json

MANIFEST, CONFIG = "bundle.json", "config.json"
WEIGHTS, PROGRAM, SHORTLIST = "model.safetensors", "program.json", "shortlist.txt"
SUFFIXES = (".zip", ".tar.zst")  # endings of the names of archived bundles
# An entry that older code would overlook, in program.json too, needs a higher version.
FORMAT, VERSION = "fairseq-ext bundle", 2
PACKED = BITS, BITS_INT8 = "bits", "bits-int8"
"""Kinds of bundles whose binary weights take one bit each, and ternary weights 1.6 bits. All other
weights are fp32, but ``bits-int8`` stores the embeddings and the output projection in int8."""
KINDS = (*NUMBERS, *PACKED)
ENGINE_NUMBERS = {**{name: name for name in NUMBERS}, BITS: "fp32", BITS_INT8: "int8"}
"""The engine's number format for each kind of bundle."""
CONSTANT = "program."
"""Prefix of the names of tensors that ``program.json`` needs and the state dict does not have."""
LATENT = {"bmt": 2.0, "xnor": 1.0}
"""For each binarizer, the ratio of a latent weight to the level to which it is binarized."""
TERNARY = "ternary"  # has no such ratio: its latent weights depend on the number of zeros
LEVEL = 10  # compression level of zstd
WIDEST_BEAM = 100
"""Widest default beam that a bundle may set: memory and time grow with the beam, and the user of
the bundle has not chosen this beam."""
_SHA256 = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True)
class Bundle:
    """The folder of a bundle, and the contents of its ``bundle.json``."""

    folder: Path
    src: str
    tgt: str
    architecture: str
    numbers: str  # number format of the weights, one of :data:`KINDS`
    search: SearchDefaults  # default options of the search
    files: dict[str, str]  # SHA-256 of each file that is used, by its name
    updates: int | None = None

    def check(self) -> None:
        """Check that the bundle has all files that ``bundle.json`` lists, with their checksums.

        Raises:
            DataError: a file is missing.
            CheckpointError: a checksum is wrong, or the folder has a dictionary, ``text.json``,
                program or shortlist that is not in ``files``.
        """
        for name, expected in self.files.items():
            if files.sha256(files.require_file(self.folder / name)) != expected:
                raise CheckpointError(
                    f"{self.folder / name} is damaged: its checksum is wrong. Copy or download the "
                    "bundle again."
                )
        used = [*self.folder.glob("dict.*.txt")]
        used += map(self.folder.joinpath, ("text.json", PROGRAM, SHORTLIST))
        for path in used:
            if path.exists() and path.name not in self.files:
                raise CheckpointError(f"{path} does not belong to its bundle; remove it.")


def suffix(path: str | Path) -> str:
    """Return the ending of an archived bundle's name, ``.zip`` or ``.tar.zst``; else ""."""
    return next((ending for ending in SUFFIXES if Path(path).name.endswith(ending)), "")


def is_bundle(path: str | Path) -> bool:
    """Return whether a path is a bundle's folder, archive, ``bundle.json`` or weights file."""
    return _folder(path) is not None


def _folder(path: str | Path) -> Path | None:
    path = Path(path)
    folder = path.parent if path.name in (MANIFEST, WEIGHTS) else path
    if (folder / MANIFEST).is_file():
        return folder
    if not suffix(path) or not path.is_file():
        return None
    if suffix(path) == ".zip" and not _has_manifest(path):
        return None
    return unpacked_in_cache(path, "bundles", _checked)


def _checked(folder: Path) -> Path:
    """Check an unpacked archive, and return the bundle's folder in it.

    Raise CheckpointError if ``folder`` has anything but one bundle, or the bundle is damaged.
    """
    entries = [*folder.iterdir()]
    if len(entries) != 1 or not (entries[0] / MANIFEST).is_file():
        listing = ", ".join(sorted(entry.name for entry in entries))[:200] or "nothing"
        raise CheckpointError(f"a bundle is one folder with {MANIFEST}, but it has {listing}.")
    read(entries[0]).check()
    return entries[0]


def _has_manifest(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.rpartition("/")[2] == MANIFEST for name in archive.namelist())
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        return False


def home(path: str | Path) -> Path:
    """Return the folder of a bundle, or the folder that contains a checkpoint.

    For an archived bundle, this is the folder in the cache to which the archive is unpacked.
    """
    return _folder(path) or Path(path).parent


def as_file(path: str | Path) -> Path:
    """Return the file that identifies a model: a bundle's ``bundle.json``, or the checkpoint."""
    folder = _folder(path)
    return Path(path) if folder is None else folder / MANIFEST


def files_of(path: str | Path) -> list[Path]:
    """List the files of a bundle, or the single file of a checkpoint; [] if the file is missing."""
    folder = _folder(path)
    paths = [Path(path)] if folder is None else sorted(folder.iterdir())
    return [file for file in paths if file.is_file()]  # reading a missing file reports it later


def has_program(path: str | Path) -> bool:
    """Return whether a path is a bundle that the engine can run without torch."""
    return is_bundle(path) and PROGRAM in read(path).files


def read(path: str | Path) -> Bundle:
    """Read and check a bundle's ``bundle.json``; :meth:`Bundle.check` checks the other files.

    Raise CheckpointError if ``bundle.json`` is of another version, or has a wrong value; DataError
    if it cannot be read.
    """
    folder = home(path)
    content = _object(read_json(folder / MANIFEST), folder / MANIFEST)
    if content.get("format") != FORMAT or content.get("version") != VERSION:
        raise CheckpointError(
            f"{folder / MANIFEST} has the format {content.get('format')!r:.40}, version "
            f"{content.get('version')!r:.20}, but this installation reads {FORMAT}, {VERSION}; "
            "update fairseq-ext."
        )
    names = Bundle.__dataclass_fields__.keys() - {"folder"}
    fields: dict[str, Any] = {name: content.get(name) for name in names}
    origin = content.get("origin")
    updates = origin.get("updates") if isinstance(origin, dict) else None
    fields["updates"] = updates if type(updates) is int else None
    listed, search = _object(fields["files"], folder / MANIFEST), fields["search"]
    words = {f"dict.{fields[side]}.txt" for side in ("src", "tgt")}
    is_sound = (
        all(isinstance(fields[name], str) for name in ("src", "tgt", "architecture"))
        and fields["numbers"] in KINDS
        and is_search(search)
        and {CONFIG, WEIGHTS, *words} <= listed.keys()
        and all(files.is_name(name) and name != MANIFEST for name in listed)
        and all(isinstance(value, str) and _SHA256.fullmatch(value) for value in listed.values())
    )
    _require(is_sound, folder / MANIFEST)
    if search.get("beam", 1) > WIDEST_BEAM:
        raise CheckpointError(
            f"{folder / MANIFEST} asks for a beam of {search['beam']:,} by default, but may ask "
            f"for {WIDEST_BEAM} at most; `--beam` takes larger ones."
        )
    return Bundle(folder, **fields)


@contextmanager
def unchanged(path: str | Path) -> Iterator[Bundle]:
    """Yield the bundle at a path; raise DataError if its files change during the block."""
    versions = FileVersions(files_of(path))
    yield read(path)
    versions.require_unchanged()


def require_kind(path: Path) -> None:
    """Raise ConfigError if a new bundle's path has an unknown ending, such as ``.tar``.

    A path without an ending stands for a folder. So do ``m.2`` and ``m.v2``, which end in a
    version.
    """
    if not suffix(path) and re.fullmatch(r"\.(?!v?\d+$)\w+", path.suffix):  # m.v2 is a folder
        raise ConfigError(
            f"`--output {path}`: an archive's name must end in {' or '.join(SUFFIXES)}. A folder's "
            f"must not end in {path.suffix}."
        )


def archive(folder: Path, path: Path) -> None:
    """Pack the files of the bundle in ``folder`` into the archive ``path``, atomically.

    The ending of ``path`` decides the format. The same files always give the same bytes.
    """
    kind = suffix(path)
    top = path.name.removesuffix(kind)
    file_paths = sorted(folder.iterdir(), key=lambda file: (file.name != MANIFEST, file.name))
    members = {f"{top}/{file_path.name}": file_path for file_path in file_paths}
    with files.atomic_write(path, "wb") as out:
        if kind == ".zip":
            with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as container:
                for name, file_path in members.items():
                    entry = zipfile.ZipInfo(name)  # dated 1980
                    entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o100644 << 16
                    entry.file_size = file_path.stat().st_size  # headers differ above 2 GB
                    with file_path.open("rb") as file, container.open(entry, "w") as member:
                        shutil.copyfileobj(file, member, 1 << 20)
            return
        extras.need("zstandard")
        import zstandard

        compressor = zstandard.ZstdCompressor(level=LEVEL)
        with (
            compressor.stream_writer(out, closefd=False) as stream,
            tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT) as tar,
        ):
            for name, file_path in members.items():
                header = tarfile.TarInfo(name)
                header.size, header.mode = file_path.stat().st_size, 0o644
                with file_path.open("rb") as file:
                    tar.addfile(header, file)


def configuration(manifest: Bundle) -> dict[str, Any]:
    """Read a bundle's ``config.json``; raise CheckpointError or DataError if it is damaged."""
    path = manifest.folder / CONFIG
    content = _object(read_json(path), path)
    binary = content.get("binary", {})
    inputs = _object(_object(binary, path).get("inputs", {}), path)
    _require(all(type(size) is int for size in inputs.values()), path)
    return content


def load(path: str | Path) -> dict[str, Any]:
    """Read a bundle; return it as a checkpoint of fairseq at update 0, with weights in fp32.

    Raise CheckpointError or DataError if a file is damaged, or changes while it is read.
    """
    with unchanged(path) as manifest:
        manifest.check()
        source, target = (
            dictionaries.symbols(manifest.folder / f"dict.{language}.txt")
            for language in (manifest.src, manifest.tgt)
        )
        config, path = configuration(manifest), manifest.folder / CONFIG
        cfg, tied = (_object(config.get(name), path) for name in ("cfg", "tied"))
        _require(all(isinstance(cfg.get(part), dict) for part in ("model", "task")), path)
        if config.get("namespace"):  # for architectures of fairseq without a dataclass
            cfg["model"] = Namespace(**cfg["model"])
        state = _weights(manifest.folder / WEIGHTS, config.get("binary"))
    _require(all(isinstance(first, str) and first in state for first in tied.values()), path)
    model = {**state, **{name: state[first] for name, first in tied.items()}}
    start = before_training()
    extra = {**start["extra_state"], DICTIONARIES: dictionaries.record(source, target)}
    cfg = {**FOR_THE_HUB, **cfg, "criterion": PLAIN_LOSS}
    return {**start, "cfg": cfg, "model": model, "extra_state": extra}


def _weights(path: Path, binary: Any) -> dict[str, Any]:
    """Read the file of weights ``path``; return the model's state dict in fp32.

    ``binary`` is the entry ``binary`` of ``config.json``; None if there are no binary or ternary
    weights. Such weights become :func:`latent_weights`.
    """
    import torch

    tensors = Tensors(path)
    state = {}
    try:
        for name in tensors.names():
            if name.startswith(CONSTANT):
                continue
            inputs = binary["inputs"].get(name) if binary else None
            signs = None if inputs is None else tensors.signs(name, inputs)
            array = tensors.array(name) if signs is None else latent_weights(signs, binary)
            state[name] = torch.from_numpy(array)
        return state
    except Exception as error:  # damaged data can cause any error
        raise tensors.damaged(error) from error


def latent_weights(weight: Signs, binary: dict[str, Any]) -> np.ndarray:
    """Return latent weights, ``[N, K]`` in fp32, that the model binarizes to ``weight``.

    Latent weights are the real numbers that training updates. ``weight`` has N rows: K signs (-1, 0
    or 1) times the level of the row. ``binary`` is the entry ``binary`` of ``config.json``. In it,
    ``binarizer`` names the method. ``granularity`` is ``channel`` if each row of a ternary weight
    has its own level, and ``tensor`` if all rows share one.
    """
    signs, levels = weight.array(), weight.levels
    if binary["binarizer"] != TERNARY:
        return signs * (LATENT[binary["binarizer"]] * levels[:, None]).astype(np.float32)
    # The mean magnitude of each row, or of all rows, must be the level. So latent weights with
    # nonzero signs are total / nonzero, rounded down; all other latent weights share the remainder.
    axis = 1 if binary["granularity"] == "channel" else None
    level = levels[:, None].astype(np.float64) if axis == 1 else np.float64(levels.max(initial=0))
    nonzero = np.count_nonzero(signs, axis, keepdims=True)
    total = level * (signs.size // nonzero.size)
    size = (total / np.maximum(nonzero, 1)).astype(np.float32)
    size = np.where(size * nonzero > total, np.nextafter(size, np.float32(0)), size)
    zeros = np.maximum(signs.size // nonzero.size - nonzero, 1)
    rest = ((total - size.astype(np.float64) * nonzero) / zeros).astype(np.float32)
    return np.where(signs, signs * size, rest)


def _object(value: Any, path: Path) -> dict[str, Any]:
    _require(isinstance(value, dict), path)
    return value


def _require(is_right: bool, path: Path) -> None:
    if not is_right:
        raise CheckpointError(f"{path} is damaged. Copy or download the bundle again.")
