"""Engine models: one file with everything that translating takes (no torch, no fairseq).

A safetensors file (64-bit size of a JSON header, header, numbers) with these tensors:

==========================  ======================================================================
``weights.N.values``        the numbers of weight N as the machine reads them
``weights.N.PART``          its other arrays, as :class:`fairseq_ext.engine.weights.Packed` has them
``dictionary.source``       symbols, a line each (``.target`` too), as uint8
``text/text.json``          how text becomes tokens, as uint8; and the files that it names
``shortlist.PART``          of :class:`fairseq_ext.engine.shortlist.Shortlist`, if there is one
==========================  ======================================================================

and these metadata: ``format``, ``version``, ``model`` (:class:`Settings`), ``program``
(:class:`fairseq_ext.engine.program.Program` without its weights), ``weights`` (what is no array of
each) as JSON, and ``checksum`` (SHA-256 of all the others, of the tensors' table and of their
bytes).

Numbers begin at multiples of 64 bytes and are used where they lie: the file is mapped into memory,
so that opening it copies nothing and all processes share one copy.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import struct
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from fairseq_ext.engine import SPECIAL, program_json
from fairseq_ext.engine.ensemble import merged
from fairseq_ext.engine.program import Program, Reading
from fairseq_ext.engine.shortlist import Shortlist
from fairseq_ext.engine.verify import verify
from fairseq_ext.engine.weights import PLAIN, Packed
from fairseq_ext.text import pipeline
from fairseq_ext.utils import files
from fairseq_ext.utils.errors import CheckpointError, ConfigError, DataError, FairseqExtError
from fairseq_ext.utils.formats import require_format
from fairseq_ext.utils.json_files import parse_json

FORMAT = "fairseq-ext engine model"
VERSION = 1
SIDES = ("source", "target")
# Defaults that a model may have, of fairseq_ext.decoding.search.Search.
SEARCH = {"beam": int, "lenpen": (int, float), "max_len_a": (int, float), "max_len_b": int}
LINE = 64  # bytes: of a line of the cache
TYPES = {"F32": "float32", "I32": "int32", "U16": "uint16", "I8": "int8", "U8": "uint8"}
_NAMES = {name: code for code, name in TYPES.items()}
_TEXT, _SHORTLIST = "text/", "shortlist."


@dataclass(frozen=True)
class Settings:
    """Languages, vocabulary treatment and defaults: whatever else a translation depends on.

    Attributes:
        architecture: name of the model in fairseq.
        numbers: of the weights: ``fp32``, ``bf16``, ``int8``.
        src, tgt: languages.
        begins: each source begins with ``<s>`` (``--source-bos``).
        cut: symbols that a source is cut to (``--truncate-source``), ``<s>`` not counted; 0: none.
        search: defaults for it, of :data:`SEARCH`.
    """

    architecture: str
    numbers: str
    src: str
    tgt: str
    begins: bool = False
    cut: int = 0
    search: dict[str, int | float] = field(default_factory=dict)


@dataclass(frozen=True)
class EngineModel:
    """An engine model.

    Attributes:
        program: without matrices.
        weights: laid out.
        settings: languages and the like.
        source, target: symbols of the dictionaries, fairseq's own ones first.
        text: content of ``text.json`` and of the files that it names, by name; empty without one.
        shortlist: tokens that translations may have; None: all.
        path: for messages.
    """

    program: Program
    weights: Sequence[Packed]
    settings: Settings
    source: Sequence[str]
    target: Sequence[str]
    text: Mapping[str, bytes]
    shortlist: Shortlist | None = None
    path: Path = Path("the engine model")

    @contextmanager
    def text_folder(self) -> Iterator[Path]:
        """A folder with the ``text.json``, if there is one, for as long as the block takes.

        Raises:
            CheckpointError: the block found that a file of the folder cannot be used.
        """
        with tempfile.TemporaryDirectory() as name:
            for file, content in self.text.items():
                Path(name, file).write_bytes(content)
            try:
                yield Path(name)
            except DataError as error:
                if f"{name}/" not in str(error):  # about something else that the block reads
                    raise
                reason = str(error).replace(f"{name}/", f"{self.path}: ")
                raise CheckpointError(reason) from None


def voting(models: Sequence[EngineModel]) -> EngineModel:
    """Several models as one, with the mean of their probabilities.

    Args:
        models: for the same dictionaries and languages, whatever their numbers. Text, defaults and
            shortlist are the first one's.

    Raises:
        ConfigError: one is of others.
    """
    first, *others = models
    for one in others:
        settings = replace(
            one.settings,
            architecture=first.settings.architecture,
            numbers=first.settings.numbers,
            search=first.settings.search,
        )
        same = settings == first.settings and one.source == first.source
        if not same or one.target != first.target:
            raise ConfigError(
                f"{first.path} and {one.path} cannot vote: they have different dictionaries, "
                "languages or rules for sources."
            )
    program = merged([one.program for one in models], [len(one.weights) for one in models])
    return replace(first, program=program, weights=[*chain(*(one.weights for one in models))])


def is_engine_model(path: str | Path) -> bool:
    """Whether a file says that it is one; it may still be damaged."""
    head = files.head(path, 1 << 16)
    return head[8:9] == b"{" and FORMAT.encode() in head


# ---- writing -------------------------------------------------------------------------------------


def write(model: EngineModel, path: str | Path) -> None:
    """Write an engine model, whole or not at all.

    Raises:
        EnvironmentProblem: the folder is missing or not writable, or the disk is full.
    """
    tensors, scalars = _tensors(model)
    table, place = {}, 0
    for name, array in tensors.items():
        offsets = [place, place := place + array.nbytes]
        kind = _NAMES[array.dtype.name]
        table[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": offsets}
    metadata = {
        "format": FORMAT,
        "version": str(VERSION),
        "model": json.dumps(asdict(model.settings)),
        "program": json.dumps(program_json.encode(model.program)),
        "weights": json.dumps(scalars),
    }
    metadata["checksum"] = checksum(metadata, table, tensors.values())
    header = json.dumps({"__metadata__": metadata, **table}, separators=(",", ":")).encode()
    header += b" " * (-(len(header) + 8) % LINE)
    with files.atomic_write(path, "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        for array in tensors.values():
            file.write(array)


def _tensors(model: EngineModel) -> tuple[dict[str, np.ndarray], list[dict[str, Any]]]:
    """All arrays by their names, whole lines of the cache first, and the rest of the weights."""
    lined, others, scalars = {}, {}, []
    for number, weight in enumerate(model.weights):
        scalars.append({})
        for part, value in weight._asdict().items():
            if isinstance(value, np.ndarray):
                kind = others if weight.kind == PLAIN else lined
                kind[f"weights.{number}.{part}"] = np.ascontiguousarray(value)
            elif value is not None:
                scalars[-1][part] = value  # a Reading becomes a list
    if model.shortlist is not None:
        parts = {one.name: getattr(model.shortlist, one.name) for one in fields(Shortlist)}
        others |= {_SHORTLIST + name: array for name, array in parts.items()}
    texts = {
        f"dictionary.{side}": "\n".join(getattr(model, side)).encode("utf-8") for side in SIDES
    }
    texts |= {_TEXT + name: content for name, content in model.text.items()}
    return lined | others | {
        name: np.frombuffer(content, np.uint8) for name, content in texts.items()
    }, scalars


def checksum(metadata: Mapping[str, str], table: Mapping[str, Any], parts: Iterable[Any]) -> str:
    """SHA-256 of the other metadata, of names, types, shapes and places, and of the bytes."""
    others = {name: value for name, value in metadata.items() if name != "checksum"}
    digest = hashlib.sha256(json.dumps([others, table], sort_keys=True).encode())
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


# ---- reading -------------------------------------------------------------------------------------


def read(path: str | Path) -> EngineModel:
    """Map an engine model into memory, and check all of it.

    Raises:
        CheckpointError: the file is missing, truncated, damaged, of another format or version, or
            has a program that cannot run.
    """
    metadata, table, data = _contents(path)
    require_format(
        path,
        metadata,
        name=FORMAT,
        version=VERSION,
        checksum=lambda: checksum(metadata, table, [data]),
        command="fairseq-ext pack --engine",
    )
    try:
        arrays = {name: _array(entry, data) for name, entry in table.items()}
        model = _model(metadata, arrays, Path(path))
        verify(model.program, model.weights)
        _check(model)
        return model
    except (
        *(KeyError, ValueError, TypeError, AttributeError),
        *(RecursionError, MemoryError),
    ) as error:
        reason = str(error) if isinstance(error, FairseqExtError) else type(error).__name__
        raise CheckpointError(
            f"{path} is no engine model that could be used ({reason.rstrip('.'):.200}). Pack the "
            "checkpoint again."
        ) from None


def _contents(path: str | Path) -> tuple[dict[str, str], dict[str, Any], memoryview]:
    """Metadata, table of the tensors, and the bytes that it is about."""
    try:
        path = files.require_file(path, "engine model")
        with safe_open(path, framework="numpy"), path.open("rb") as file:  # the library checks
            whole = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        (size,) = struct.unpack("<Q", whole[:8])
        table = parse_json(bytes(whole[8 : 8 + size]).decode("utf-8"), "its header")
        return table.pop("__metadata__", {}), table, whole[8 + size :]
    except (SafetensorError, OSError, ValueError, TypeError, AttributeError) as error:
        if isinstance(error, DataError) and str(path) in str(error):
            raise CheckpointError(str(error)) from None
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise CheckpointError(
            f"{path} is truncated or damaged ({reason:.200}). Copy or download it again."
        ) from None


def _array(entry: dict[str, Any], data: memoryview) -> np.ndarray:
    """A tensor where it lies."""
    begin, end = entry["data_offsets"]
    kind = np.dtype(TYPES[entry["dtype"]])
    _require(begin % kind.itemsize == 0, "a tensor is not aligned")
    return np.frombuffer(data[begin:end], kind).reshape(entry["shape"])


def _model(metadata: dict[str, str], arrays: dict[str, np.ndarray], path: Path) -> EngineModel:
    entries = parse_json(metadata["weights"], "its weights")
    weights = [_weight(entry, f"weights.{n}.", arrays) for n, entry in enumerate(entries)]
    others = {name: x for name, x in arrays.items() if not name.startswith("weights.")}
    texts = {name: x.tobytes() for name, x in others.items() if x.dtype == np.uint8}
    source, target = (texts.pop(f"dictionary.{s}").decode("utf-8").split("\n") for s in SIDES)
    listed = {n[len(_SHORTLIST) :]: x for n, x in others.items() if n.startswith(_SHORTLIST)}
    known = sum(isinstance(part, np.ndarray) for weight in weights for part in weight)
    known += len(listed)
    _require(known + len(SIDES) + len(texts) == len(arrays), "it has tensors of nothing")
    _require(all(name.startswith(_TEXT) for name in texts), "it has files of nothing")
    return EngineModel(
        program_json.decode(parse_json(metadata["program"], "its program")),
        weights,
        Settings(**parse_json(metadata["model"], "its settings")),
        source,
        target,
        {name[len(_TEXT) :]: content for name, content in texts.items()},
        Shortlist(**listed) if listed else None,
        path,
    )


def _weight(entry: dict[str, Any], prefix: str, arrays: dict[str, np.ndarray]) -> Packed:
    how, *sizes = entry.pop("reading")
    reading = Reading(how, *map(program_json.number, sizes))
    scalars = {part: program_json.whole_number(value) for part, value in entry.items()}
    parts = {part: arrays[prefix + part] for part in Packed._fields if prefix + part in arrays}
    return Packed(**scalars, **parts, reading=reading)


def _check(model: EngineModel) -> None:
    """Check everything except the program."""
    settings = model.settings
    names = (settings.architecture, settings.numbers, settings.src, settings.tgt)
    _require(all(isinstance(name, str) for name in names), "a name in its settings is no text")
    cut = program_json.whole_number(settings.cut)
    _require(type(settings.begins) is bool and cut >= 0, "its settings of sources are wrong")
    _require(is_search(settings.search), "its settings have other search options")
    known = min(model.weights[number].outputs for number in model.program.source_tables)
    _require(
        len(SPECIAL) <= len(model.source) <= known, "its source dictionary is of another model"
    )
    known = model.weights[model.program.outputs[0].weight].outputs
    _require(len(model.target) == known, "its target dictionary is of another model")
    if model.shortlist is not None:
        model.shortlist.check(known)
    for name in model.text:
        _require(files.is_name(name) and pipeline.FILE in model.text, "it has files of nothing")


def is_search(defaults: Any) -> bool:
    """Whether it is a dictionary of search options that a model may have defaults for."""
    return isinstance(defaults, dict) and all(
        name in SEARCH and isinstance(value, SEARCH[name]) and type(value) is not bool
        for name, value in defaults.items()
    )


def _require(condition: bool, fault: str) -> None:
    if not condition:
        raise ConfigError(fault)
