"""The file format of packed models: its contents, writing it, and checking it when it is read.

A safetensors file (64-bit size of a JSON header, header, numbers) with these tensors:

========================  ==========================  ============================================
name                      type and shape              what
========================  ==========================  ============================================
``LAYER.weight.bits``     uint8 ``[N, row_bytes(K)]``  signs, see :mod:`..kernels.packing`
``LAYER.weight.level``    fp32 ``[N]``                size of the binarized weights, ``B/2``
``TABLE.weight.int8``     int8 ``[V, C]``             an embedding in units of its rows' scales
``TABLE.weight.scale``    fp32 ``[V]``                these units
``dictionary.source``     uint8                       text of the dictionary (``.target`` too)
any other                 fp32, fp16, bf16, integer   an entry of the model's state, by its name
========================  ==========================  ============================================

and these metadata: ``format``, ``version``, ``cfg`` (configuration of model and task, JSON),
``stage`` (1 or 2), ``layers`` (``K`` of each packed layer, JSON), ``tied`` (names that stand for
another one's numbers, JSON) and ``checksum`` (SHA-256 of all the others and of the tensors).
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from fairseq_ext.binary.kernels.packing import row_bytes
from fairseq_ext.checkpoints import safe_load
from fairseq_ext.checkpoints.layout import BINARY_STAGE
from fairseq_ext.engine.files import is_engine_model
from fairseq_ext.utils import files
from fairseq_ext.utils.errors import CheckpointError, DataError
from fairseq_ext.utils.formats import require_format

if TYPE_CHECKING:
    from fairseq.data import Dictionary

FORMAT = "fairseq-ext packed model"
VERSION = 1
SIDES = ("source", "target")
FLOATS = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
_TYPES = {*FLOATS.values(), torch.uint8, torch.int8, torch.int32, torch.int64, torch.bool}


@dataclass(frozen=True)
class PackedModel:
    """A packed model in memory.

    Attributes:
        cfg: configuration of the ``model`` and its ``task``.
        stage: 1 for binary weights, 2 for binary activations as well, where the options name any.
        layers: ``K`` of each packed layer, by its path in the model.
        tied: for each table that shares its numbers with another one: its name, and that one's.
        tensors: as in the file.
    """

    cfg: dict[str, Any]
    stage: int
    layers: dict[str, int]
    tied: dict[str, str]
    tensors: dict[str, Tensor]

    def layer(self, name: str) -> tuple[Tensor, Tensor]:
        """Bits ``[N, row_bytes(K)]`` and levels ``[N]`` of a packed layer."""
        return self.tensors[f"{name}.weight.bits"], self.tensors[f"{name}.weight.level"]

    def tables(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Tables ``[V, C]`` in int8 and their scales ``[V]``, by their names in the state."""
        stored = {
            name.removesuffix(".int8"): (tensor, self.tensors[f"{name.removesuffix('int8')}scale"])
            for name, tensor in self.tensors.items()
            if name.endswith(".int8")
        }
        return stored | {name: stored[one] for name, one in self.tied.items() if one in stored}

    def state(self) -> dict[str, Tensor]:
        """The model's state in fp32, without packed layers' weights and int8 tables."""
        kept = {
            name: tensor.float() if tensor.is_floating_point() else tensor
            for name, tensor in self.tensors.items()
            if kind(name) == "state"
        }
        kept |= {name: kept[one] for name, one in self.tied.items() if one in kept}
        return {**kept, BINARY_STAGE: torch.tensor(self.stage)}

    def dictionaries(self) -> tuple[Dictionary, Dictionary]:
        """The dictionaries of the source and the target language."""
        from fairseq.data import Dictionary

        found = []
        for side in SIDES:
            words = Dictionary()
            text = self.tensors[f"dictionary.{side}"].numpy().tobytes().decode("utf-8")
            words.add_from_file(io.StringIO(text))
            found.append(words)
        return found[0], found[1]


def kind(name: str) -> str:
    """The kind of a tensor, from its name: ``bits``, ``level``, ``int8``, ``scale``,
    ``dictionary``, or ``state`` for an entry of the model's state.
    """
    if name.startswith("dictionary."):
        return "dictionary"
    last = name.rpartition(".")[2]
    return last if ".weight." in name and last in ("bits", "level", "int8", "scale") else "state"


def is_packed(path: str | Path) -> bool:
    """Whether a file is a packed model, judged by its first bytes or its name."""
    named = Path(path).suffix == ".safetensors" and Path(path).is_file()
    return named or files.head(path, 9)[8:] == b"{"


def write(packed: PackedModel, path: str | Path) -> None:
    """Write a packed model, whole or not at all.

    Raises:
        EnvironmentProblem: the folder is missing or not writable, or the disk is full.
    """
    metadata = {
        "format": FORMAT,
        "version": str(VERSION),
        "stage": str(packed.stage),
        **{name: json.dumps(getattr(packed, name)) for name in ("cfg", "layers", "tied")},
    }
    metadata["checksum"] = checksum(packed.tensors, metadata)
    with files.atomic_write(path, "wb") as file:
        file.write(save(packed.tensors, metadata))


def checksum(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    """SHA-256 of names, types, shapes and bytes of the tensors, and of the other metadata."""
    digest = hashlib.sha256()
    others = {name: value for name, value in metadata.items() if name != "checksum"}
    digest.update(json.dumps(others, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def read(path: str | Path) -> PackedModel:
    """Read a packed model, and check all of it.

    Raises:
        CheckpointError: the file is missing, truncated, damaged, of another format or version, or
            its parts do not fit each other.
    """
    if is_engine_model(path):
        raise CheckpointError(
            f"{path} is a model for the engine, of which no fairseq model can be built; translate "
            f"with `fairseq-ext translate --path {path}`."
        )
    metadata, tensors = _contents(path)
    require_format(
        path,
        metadata,
        name=FORMAT,
        version=VERSION,
        checksum=lambda: checksum(tensors, metadata),
        command="fairseq-ext pack",
    )
    try:
        packed = PackedModel(
            **{name: json.loads(metadata[name]) for name in ("cfg", "layers", "tied")},
            stage=int(metadata["stage"]),
            tensors=tensors,
        )
        _check(packed)
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
        reason = f"{error!s:.200}" if isinstance(error, DataError) else type(error).__name__
        raise CheckpointError(
            f"{path} is not a packed model that can be used ({reason}). Pack the checkpoint again."
        ) from None
    try:
        safe_load.require_plain(packed.cfg, 0)
        safe_load.require_inert(packed.cfg)
    except CheckpointError as error:
        raise CheckpointError(f"{path} {error}. Do not use it.") from None
    return packed


def _contents(path: str | Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    try:
        path = files.require_file(path, "packed model")
        if not path.stat().st_size:
            raise CheckpointError(f"{path} is empty. Copy or download it again.")
        if zipfile.is_zipfile(path):
            raise CheckpointError(
                f"{path} is a checkpoint, not a packed model; `fairseq-ext pack` makes one of a "
                "binary model."
            )
        with safe_open(path, framework="pt") as file:
            names = file.keys()
            return file.metadata() or {}, {name: file.get_tensor(name) for name in names}
    except DataError as error:
        raise CheckpointError(str(error)) from None
    except (SafetensorError, OSError, ValueError, TypeError, RuntimeError, KeyError) as error:
        if isinstance(error, CheckpointError):
            raise
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise CheckpointError(
            f"{path} is truncated or damaged ({reason:.200}). Copy or download it again."
        ) from None


def _check(packed: PackedModel) -> None:
    """Raise :class:`DataError` for the first part that does not fit the others."""
    tensors = packed.tensors
    for name, tensor in tensors.items():
        _require(tensor.dtype in _TYPES, f"`{name}` is of type {tensor.dtype}")
    _require(packed.stage in (1, 2), f"its stage is {packed.stage}")
    for part in ("model", "task"):
        _require(isinstance(packed.cfg[part], dict), f"it has no configuration of the {part}")
    stored = {name.removesuffix(".weight.bits") for name in tensors if kind(name) == "bits"}
    _require(bool(stored) and stored == set(packed.layers), "its list of layers is wrong")
    for name, inputs in packed.layers.items():
        _require(type(inputs) is int and inputs > 0, f"`{name}` has {inputs} inputs")
        bits, level = packed.layer(name)
        fits = bits.dtype == torch.uint8 and bits.dim() == 2
        fits = fits and level.dtype == torch.float32 and level.shape == bits.shape[:1]
        _require(fits and bits.shape[1] == row_bytes(inputs), f"the shape of `{name}` is wrong")
        _require(
            bool((level >= 0).all() and level.isfinite().all()), f"a level of `{name}` is wrong"
        )
    for name, one in packed.tied.items():
        _require(isinstance(one, str) and name not in tensors, f"`{name}` is there twice")
        _require(one in tensors or f"{one}.int8" in tensors, f"`{one}` is missing")
    for name, (table, scale) in packed.tables().items():
        fits = table.dtype == torch.int8 and table.dim() == 2 and scale.dtype == torch.float32
        _require(fits and scale.shape == table.shape[:1], f"the shape of `{name}` is wrong")
        _require(bool(scale.isfinite().all()), f"a scale of `{name}` is not finite")
    for side in SIDES:
        text = tensors[f"dictionary.{side}"]
        _require(
            text.dtype == torch.uint8 and text.dim() == 1, f"the {side} dictionary is not text"
        )


def _require(right: bool, fault: str) -> None:
    if not right:
        raise DataError(fault)
