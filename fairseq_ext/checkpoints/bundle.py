"""Bundles: a trained model with everything needed to use it, in a folder that can be moved.

==========================  ======================================================================
``bundle.json``             format, version, languages, architecture, numbers, the search's
                            defaults, where it comes from, and SHA-256 of the files that are used
``config.json``             options of model and task, as JSON; which weights are tied
``model.safetensors``       weights; in bits, a file of ``fairseq-ext pack``
``dict.LANGUAGE.txt``       dictionaries; so the folder is also the DATA of fairseq's commands
``text.json``               how text becomes tokens, with the files that it names
``engine.safetensors``      if asked for: the model for the engine (``fairseq-ext pack --engine``)
``README.md``               the model card
==========================  ======================================================================

Weights are fp32 or bf16, or matrices ``NAME`` are ``NAME.int8`` ``[N, K]`` in units of
``NAME.scale`` ``[N]``, or binary ones are bits. The folder may be packed into an archive
(:mod:`fairseq_ext.checkpoints.archived`), which is accepted wherever the folder is. Nothing in
a bundle is unpickled or evaluated.
"""

from __future__ import annotations

import importlib
import re
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq_ext.base import wings
from fairseq_ext.checkpoints import archived, dictionaries
from fairseq_ext.checkpoints.layout import DICTIONARIES, PLAIN_LOSS, before_training
from fairseq_ext.engine import NUMBERS
from fairseq_ext.engine.files import is_search
from fairseq_ext.utils import files
from fairseq_ext.utils.errors import CheckpointError, DataError
from fairseq_ext.utils.json_files import read_json

MANIFEST, CONFIG = "bundle.json", "config.json"
WEIGHTS, ENGINE = "model.safetensors", "engine.safetensors"
FORMAT, VERSION = "fairseq-ext bundle", 1
BITS, BITS_INT8 = "bits", "bits-int8"
"""The numbers of a bundle whose binary weights take one bit each: all others are in fp32, or the
embeddings and the output projection in int8."""
KINDS = (*NUMBERS, BITS, BITS_INT8)
LARGEST = 1 << 24  # bytes of a JSON file
_SHA256 = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True)
class Bundle:
    """The contents of ``bundle.json``.

    Attributes:
        folder: of the bundle.
        src, tgt: languages.
        architecture: its name in fairseq.
        numbers: of the weights, of :data:`KINDS`.
        search: defaults of the search.
        files: SHA-256 of each file that is used, by name.
        updates: of the training, where that is known.
    """

    folder: Path
    src: str
    tgt: str
    architecture: str
    numbers: str
    search: dict[str, int | float]
    files: dict[str, str]
    updates: int | None = None

    @property
    def is_packed(self) -> bool:
        """Whether binary weights are bits."""
        return self.numbers in (BITS, BITS_INT8)

    def check(self) -> None:
        """Check every file.

        Raises:
            CheckpointError: one is missing or changed, or one that would be used is not listed.
        """
        for name, wanted in self.files.items():
            try:
                found = files.sha256(files.require_file(self.folder / name))
            except DataError as error:
                raise CheckpointError(str(error)) from None
            if found != wanted:
                raise CheckpointError(
                    f"{self.folder / name} is damaged: its checksum is wrong. Copy or download the "
                    "bundle again."
                )
        used = [*self.folder.glob("dict.*.txt"), *map(self.folder.joinpath, ("text.json", ENGINE))]
        for path in used:
            if path.exists() and path.name not in self.files:
                raise CheckpointError(f"{path} does not belong to its bundle; remove it.")


def is_bundle(path: str | Path) -> bool:
    """Whether a path is the folder of a bundle, its ``bundle.json``, or an archive of one."""
    return _folder(path) is not None


def _folder(path: str | Path) -> Path | None:
    path = Path(path)
    folder = path.parent if path.name == MANIFEST else path
    if (folder / MANIFEST).is_file():
        return folder
    return archived.unpacked(path, MANIFEST, _check)


def _check(folder: Path) -> None:
    read(folder).check()


def home(path: str | Path) -> Path:
    """The folder of a bundle, or of the file that a checkpoint is: its ``text.json`` is there."""
    return _folder(path) or Path(path).parent


def as_file(path: str | Path) -> Path:
    """A bundle's ``bundle.json``, which has the checksums of all else; a checkpoint is itself."""
    folder = _folder(path)
    return Path(path) if folder is None else folder / MANIFEST


def packed(path: str | Path) -> Path:
    """A bundle's weights in bits, or else its model for the engine; any other path is itself.

    Raises:
        CheckpointError: the bundle has neither, or is damaged.
    """
    if not is_bundle(path):
        return Path(path)
    found = read(path)
    found.check()
    if not found.is_packed and ENGINE not in found.files:
        raise CheckpointError(f"{path} has {found.numbers} weights and no model for the engine.")
    return found.folder / (WEIGHTS if found.is_packed else ENGINE)


def read(path: str | Path) -> Bundle:
    """A bundle's ``bundle.json``; the other files are left to :meth:`Bundle.check`.

    Raises:
        CheckpointError: it cannot be used, or is of a later version.
    """
    folder = home(path)
    content = _json(folder / MANIFEST)
    if content.get("format") != FORMAT or content.get("version") != VERSION:
        raise CheckpointError(
            f"{folder / MANIFEST} is of format {content.get('format')!r:.40}, version "
            f"{content.get('version')!r:.20}, but this installation reads {FORMAT}, {VERSION}; "
            "update fairseq-ext."
        )
    fields = {name: content.get(name) for name in Bundle.__dataclass_fields__ if name != "folder"}
    origin = content.get("origin")
    updates = origin.get("updates") if isinstance(origin, dict) else None
    fields["updates"] = updates if type(updates) is int else None
    listed, search = fields["files"], fields["search"]
    words = [f"dict.{fields[side]}.txt" for side in ("src", "tgt")]
    names = isinstance(fields["architecture"], str) and all(map(files.is_name, words))
    if not (
        names and fields["numbers"] in KINDS and _are_sums(listed, words) and is_search(search)
    ):
        raise _unusable(folder / MANIFEST)
    return Bundle(folder, **fields)


def _are_sums(listed: Any, words: list[str]) -> bool:
    """Whether it names files of a folder, those that are needed and ``words`` among them."""
    return (
        isinstance(listed, dict)
        and {CONFIG, WEIGHTS, *words} <= listed.keys()
        and all(files.is_name(name) and name != MANIFEST for name in listed)
        and all(isinstance(one, str) and _SHA256.fullmatch(one) for one in listed.values())
    )


def load(path: str | Path, *, checksums: bool = True) -> dict[str, Any]:
    """A bundle as a checkpoint of fairseq, its weights in fp32, that was never trained.

    Args:
        path: of the bundle.
        checksums: check them, which reads all files.

    Raises:
        CheckpointError: a file is missing or damaged, or they do not fit each other.
    """
    found = read(path)
    if checksums:
        found.check()
    words = dictionaries.record(*(_symbols(found.folder, code) for code in (found.src, found.tgt)))
    if found.is_packed:
        state = _of_bits(found.folder / WEIGHTS)
        return {**state, "extra_state": {**state["extra_state"], DICTIONARIES: words}}
    config = _json(found.folder / CONFIG)
    cfg, tied = config.get("cfg"), config.get("tied")
    if not (isinstance(cfg, dict) and isinstance(tied, dict)):
        raise _unusable(found.folder / CONFIG)
    if not all(isinstance(cfg.get(part), dict) for part in ("model", "task")):
        raise _unusable(found.folder / CONFIG)
    if config.get("namespace"):  # architectures of fairseq that have no dataclass
        cfg["model"] = Namespace(**cfg["model"])
    state = _weights(found.folder / WEIGHTS)
    try:
        model = {**state, **{name: state[one] for name, one in tied.items()}}
    except (KeyError, TypeError):
        raise _unusable(found.folder / CONFIG) from None
    start = before_training()
    extra = {**start["extra_state"], DICTIONARIES: words}
    cfg = {**cfg, "criterion": PLAIN_LOSS}
    return {**start, "cfg": cfg, "model": model, "extra_state": extra}


def _of_bits(path: Path) -> dict[str, Any]:
    """A checkpoint, from the wing that packed it."""
    for package, module in wings.declared("BITS"):
        return importlib.import_module(f"{package}.{module}").load(path)
    raise CheckpointError(f"{path} has packed weights, which this installation does not know.")


def _symbols(folder: Path, language: str) -> list[str]:
    """Return the symbols of a dictionary, in order."""
    path = folder / f"dict.{language}.txt"
    try:
        return dictionaries.symbols(path)
    except DataError:
        raise _unusable(path) from None


def _weights(path: Path) -> dict[str, Any]:
    """The state dictionary, in fp32."""
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        stored = load_file(files.require_file(path))
        state = {}
        for name, tensor in stored.items():
            if name.endswith(".int8"):
                scale = stored[f"{name.removesuffix('int8')}scale"]
                kinds = tensor.dtype is torch.int8 and scale.is_floating_point()
                if not kinds or tensor.dim() != 2 or scale.shape != tensor.shape[:1]:
                    raise ValueError(f"{name} and its scale do not fit")
                state[name.removesuffix(".int8")] = tensor.float() * scale[:, None]
            elif f"{name.removesuffix('scale')}int8" not in stored:
                state[name] = tensor.float() if tensor.is_floating_point() else tensor
        return state
    except (SafetensorError, DataError, OSError, ValueError, LookupError, RuntimeError) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise CheckpointError(
            f"{path} is truncated or damaged ({reason:.200}). Copy or download the bundle again."
        ) from None


def _json(path: Path) -> dict[str, Any]:
    try:
        if files.require_file(path).stat().st_size > LARGEST:
            raise _unusable(path)
        content = read_json(path)
    except DataError as error:
        raise CheckpointError(str(error)) from None
    if not isinstance(content, dict):
        raise _unusable(path)
    return content


def _unusable(path: Path) -> CheckpointError:
    return CheckpointError(f"{path} is damaged. Copy or download the bundle again.")
