"""Read a checkpoint of unknown origin without running anything in it.

:func:`read` opens the file once and checks, in this order, that

1. the file is a zip archive as torch writes it: no part is compressed, repeated, a link or outside
   the archive's folder. A series of pickles, the format of torch before 1.6, is accepted too;
2. the checksum of each part of the archive is right, which torch itself never checks;
3. the pickle calls only the functions that checkpoints of fairseq call, with arguments of the
   expected types (:func:`allowed_globals`). torch's ``weights_only=True`` would also allow the call
   ``torch.Tensor(10**9)``;
4. the pickle makes only tensors, plain values, ``argparse.Namespace`` and numpy's numbers. numpy
   could turn bytes into Python objects, so classes of this module read its numbers;
5. there are tensors under ``model``;
6. everything is plain data, no part contains itself, and tensors are not far larger than the file
   (:func:`require_plain`);
7. the configuration has nothing for hydra to import or for OmegaConf to look up
   (:func:`require_inert`);
8. there are numbers wherever fairseq expects them (:func:`require_numbers`).

:mod:`fairseq_ext.checkpoints.registry_checks` checks the model and task that a checkpoint names.
``plugin/security/loading.py`` makes fairseq read checkpoints with these checks, and
``utils/error_messages.py`` prints the errors in one line. Nothing here imports fairseq.
"""

import argparse
import functools
import os
import pickle
import re
import stat
import zipfile
from argparse import Namespace
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor
from torch import _weights_only_unpickler as unpickler

from fairseq_ext.checkpoints import layout
from fairseq_ext.utils.errors import CheckpointError, DataError, FairseqExtError
from fairseq_ext.utils.files import explain, require_file
from fairseq_ext.utils.literals import LiteralError
from fairseq_ext.utils.locks import ForkSafeLock

ADVICE = "Do not use this file unless you know who made it."
ANOTHER_COPY = "Copy or download it again, or use an earlier checkpoint."
MOST_ENTRIES = 2_000_000  # in all containers; a container counts once per reference to it
DEEPEST = 50
SPARE_BYTES = 64 << 20  # bytes that tensors may claim beyond four times the file
# Files of torch before 1.6 begin with this pickle of a fixed number.
LEGACY = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
HYDRA = ("_target_", "_recursive_", "_partial_", "_convert_")

_LEAVES = (
    *(type(None), bool, int, float, complex, str, bytes),
    *(torch.dtype, torch.device, torch.Size, np.generic),
)
# A text with the path of one option in it, in which no name begins with a digit.
_REFERENCE = re.compile(r"[^$]*\$\{((?!\d)\w+(?:\.(?!\d)\w+)*)\}[^$]*")


def read(path: str | Path) -> dict[str, Any]:
    """Read a checkpoint with all checks of this module; memory-map its tensors.

    Raise CheckpointError if the file cannot be read, or fails a check.
    """
    try:
        path = require_file(path, "checkpoint")
    except DataError as error:
        raise CheckpointError(str(error)) from None
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        legacy = file.read(len(LEGACY)) == LEGACY
        file.seek(0)
        if legacy:
            since = ", since torch before 1.6 wrote it"
            require_memory(path, size, since, "Load and save it with a current torch")
        else:
            _require_archive(file, path, size)
        state = _unpickled(file, path, mapped=not legacy)
    if not isinstance(state, dict) or not isinstance(state.get("model"), dict):
        raise CheckpointError(
            f"{path} is not a fairseq checkpoint: it has no `model` entry with the weights. "
            "Give a file that fairseq-train or the averaging command wrote."
        )
    for name, weight in state["model"].items():
        if not isinstance(weight, Tensor):
            raise CheckpointError(
                f"{path}: `{name!s:.60}` of its model is not a tensor. Use another checkpoint."
            )
    extra = state.get("extra_state")
    if isinstance(extra, dict):
        extra.pop("train_meters", None)  # until 2019: objects that nobody reads any more
    if isinstance(state.get("cfg"), Node):
        state["cfg"] = state["cfg"].plain
    with about(path):
        require_plain(state, size)
        for part in ("cfg", "args"):
            require_inert(state.get(part))
        require_numbers(state)
    return state


def _unpickled(file: IO[bytes], path: Path, mapped: bool) -> Any:
    """Unpickle an open file; ``mapped`` says whether tensors are memory-mapped."""
    descriptor = Path(f"/proc/self/fd/{file.fileno()}")  # `path` may be another file by now
    allow_classes()
    try:
        with _READING.held():
            unpickler._get_allowed_globals = allowed_globals
            try:
                return torch.load(
                    descriptor if descriptor.exists() else path,
                    map_location="cpu",
                    weights_only=True,
                    mmap=mapped,
                )
            finally:
                unpickler._get_allowed_globals = GLOBALS_OF_TORCH
    except pickle.UnpicklingError as error:
        raise _forbidden(path, str(error)) from None
    except OSError as error:
        raise CheckpointError(explain(error, path)) from None
    except Exception as error:  # damaged data can cause any error
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        raise CheckpointError(
            f"{path} is not a checkpoint that torch can read ({reason}). Use another copy."
        ) from error


@contextmanager
def about(path: str | Path) -> Iterator[None]:
    """Turn errors in the ``with`` block into a CheckpointError of one line that names ``path``.

    Errors that explain themselves are raised unchanged: OSError, ConfigError, DataError …
    """
    try:
        yield
    except LiteralError as error:
        name = "" if str(path) in str(error) else f"{path}: "
        raise CheckpointError(f"{name}{error}") from error
    except CheckpointError as error:
        if str(path) in str(error):
            raise
        raise CheckpointError(f"{path} {str(error).rstrip('.')}. {ADVICE}") from error
    except (FairseqExtError, OSError):
        raise
    except Exception as error:  # a made-up configuration can cause any error
        reason = (str(error).strip() or "no reason given").splitlines()[0]
        raise CheckpointError(
            f"{path} cannot be used here ({type(error).__name__}: {reason:.200}). Check that it "
            "fits the command, its options and the data."
        ) from error


# 1 and 2. The archive


def _require_archive(file: IO[bytes], path: Path, size: int) -> None:
    start = file.read(64)
    if not start:
        raise CheckpointError(f"{path} is empty. {ANOTHER_COPY}")
    if not start.startswith(b"PK"):
        raise CheckpointError(
            f"{path} is not a checkpoint (it starts with the bytes {start[:15]!r}). Give a file "
            "that fairseq-train wrote, or a bundle, which `fairseq-ext bundle` makes."
        )
    try:
        with zipfile.ZipFile(file) as archive:
            fault = next(_faults(archive, size), None)
            damaged = archive.testzip() if fault is None else None
    except Exception as error:  # zipfile raises many kinds for damaged data
        reason = str(error) or type(error).__name__
        raise CheckpointError(
            f"{path} is truncated or damaged ({reason}; {size:,} bytes). {ANOTHER_COPY}"
        ) from error
    if fault is not None:
        raise CheckpointError(
            f"{path} has {fault}, which no checkpoint has, so it was refused. Do not use it."
        )
    if damaged is not None:
        raise CheckpointError(
            f"{path} is damaged: the checksum of its part `{damaged}` is wrong. {ANOTHER_COPY}"
        )


def require_memory(path: str | Path, size: int, cause: str, remedy: str) -> None:
    """Raise CheckpointError if a file needs ``size`` bytes of memory, and this machine has less.

    ``cause`` (why the file needs so much) and ``remedy`` (what to do on a larger machine) complete
    the message.
    """
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if size > memory:
        raise CheckpointError(
            f"{path} needs {size / 1e9:.1f} GB of memory{cause}, but this machine has "
            f"{memory / 1e9:.1f} GB. {remedy} on a larger machine."
        )


def _faults(archive: zipfile.ZipFile, size: int) -> Iterator[str]:
    """Yield the faults of an archive of ``size`` bytes, as phrases for an error message."""
    parts = archive.infolist()  # each check relies on the checks before it
    if any(part.compress_type != zipfile.ZIP_STORED for part in parts):
        yield "compressed parts"
    if len({part.filename.lower() for part in parts}) < len(parts):  # torch ignores case
        yield "two parts of one name"
    if sum(max(part.file_size, part.compress_size) for part in parts) > size:
        yield "parts that overlap"
    if any(stat.S_ISLNK(part.external_attr >> 16) for part in parts):
        yield "parts that are links"
    if any(".." in part.filename or part.filename.startswith("/") for part in parts):
        yield "parts outside its folder"


def _forbidden(path: Path, reason: str) -> CheckpointError:
    """Shorten torch's page of advice about a refused object to an error of one line."""
    words = (
        r"GLOBAL|Unsupported (?:global|class)\S*:?(?: GLOBAL)?|function <[a-z]+(?:-in function)?"
    )
    name = re.search(rf"(?:{words}) [`']?([\w.]+)", reason)
    refused = f"the object `{name[1]:.80}`" if name else "an object"
    return CheckpointError(
        f"{path} contains {refused}, which is not plain data and could run code or take all "
        "memory, so it was refused and nothing was run. Do not use this file unless you know what "
        "put it there."
    )


# 3. The calls of the pickle

GLOBALS_OF_TORCH = unpickler._get_allowed_globals  # public functions can only add to this list
_READING = ForkSafeLock()  # held while one file is read with our list in place of torch's
_REBUILD = [
    getattr(torch._utils, f"_rebuild_{kind}")
    for kind in ("tensor_v2", "tensor_v3", "parameter", "parameter_with_state")
]


class Globals(dict[str, Any]):
    """A dict of the objects that a pickle may name: ``{name: object}``.

    torch lets a pickle call only the objects in :meth:`values`. This method leaves out the others,
    so a pickle may name them, but not call them.
    """

    def values(self) -> Any:
        return [*(self[name] for name in GUARDS), *_REBUILD, torch.device]


@functools.cache
def allowed_globals() -> Globals:
    """Return torch's map of the objects that pickles may use, with some replaced by our guards."""
    return Globals({**GLOBALS_OF_TORCH(), **GUARDS})


def _guard(name: str, function: Callable, *kinds: type) -> Callable:
    """Return a function that calls ``function`` if its arguments have exactly the types ``kinds``.

    Otherwise it raises an UnpicklingError about ``name``, the function's name in pickles.
    """

    def call(*arguments: Any) -> Any:
        if tuple(map(type, arguments)) != kinds:
            raise _unsupported(name)
        return function(*arguments)

    return call


def _to_bytes(text: str, encoding: str) -> bytes:
    """Encode text as latin1, which pickles of protocol 2 use for bytes; refuse other encodings."""
    if encoding != "latin1":
        raise _unsupported("_codecs.encode")
    return text.encode(encoding)


def _with_attributes(function: Any, *arguments: Any) -> Tensor:
    """Rebuild a tensor that was pickled with attributes; refuse functions not in ``_REBUILD``."""
    if function not in _REBUILD:
        raise _unsupported("torch._tensor._rebuild_from_type_v2")
    return torch._tensor._rebuild_from_type_v2(function, *arguments)


def _unsupported(name: str) -> UnpicklingError:
    return UnpicklingError(f"Unsupported class {name} with such contents")


GUARDS: dict[str, Callable] = {
    "collections.OrderedDict": _guard("collections.OrderedDict", OrderedDict),
    "builtins.set": _guard("builtins.set", set, list),
    "torch.Size": _guard("torch.Size", torch.Size, tuple),
    "_codecs.encode": _guard("_codecs.encode", _to_bytes, str, str),
    "torch._tensor._rebuild_from_type_v2": _with_attributes,
}


# 4. The classes that unpickling makes


class NumberKind:
    """A replacement for ``numpy.dtype`` that allows only integers, real numbers and booleans."""

    def __init__(self, code: object, *flags: object) -> None:
        if not (isinstance(code, str) and re.fullmatch("b1|[iu][1248]|f[248]", code)):
            raise _unsupported("numpy.dtype")
        self.dtype = np.dtype(code)

    def __setstate__(self, state: Any) -> None:
        _, order, subarray, names, fields, *_ = state
        if subarray is not None or names is not None or fields is not None:
            raise _unsupported("numpy.dtype")
        if order == ">":
            self.dtype = self.dtype.newbyteorder(">")


class NumberArray(np.ndarray):
    """A replacement for ``numpy.ndarray`` that holds only numbers."""

    def __new__(cls, *arguments: object) -> "NumberArray":
        raise _unsupported("numpy.ndarray")

    def __setstate__(self, state: Any) -> None:
        version, shape, kind, fortran, data = state
        if not (isinstance(kind, NumberKind) and isinstance(data, bytes)):
            raise _unsupported("numpy.ndarray")
        super().__setstate__((version, shape, kind.dtype, fortran, data))

    def __reduce_ex__(self, protocol: Any) -> Any:  # it is pickled as a plain array
        return np.asarray(self).__reduce_ex__(protocol)


class Unread:
    """A placeholder for pickled objects that nothing reads: meters, types in OmegaConf's nodes."""

    def __init__(self, *arguments: object) -> None:
        """Accept and forget any arguments."""


class Node:
    """A placeholder for OmegaConf's nodes, in which fairseq pickled ``cfg`` in 2020 and 2021."""

    plain: Any = None  # the node's value, without nodes

    def __setstate__(self, state: Any) -> None:
        content = state.get("_content")
        if isinstance(content, dict):
            self.plain = {name: node.plain for name, node in content.items()}
        elif isinstance(content, list):
            self.plain = [node.plain for node in content]
        else:  # a leaf, or a reference to another node
            self.plain = state.get("_val", content)


def reconstruct(kind: object, *shape: object) -> NumberArray:
    """Return an empty array in place of numpy's ``_reconstruct``; ``__setstate__`` fills it."""
    if kind is not NumberArray:
        raise _unsupported("numpy.ndarray")
    return np.ndarray.__new__(NumberArray, (0,), np.int8)


def scalar(kind: object, data: object) -> np.generic:
    """Return a number from its bytes ``data``, in place of numpy's ``scalar``."""
    if not (isinstance(kind, NumberKind) and isinstance(data, bytes)):
        raise _unsupported("numpy.dtype")
    (number,) = np.frombuffer(data, kind.dtype)
    return number


_NAMES: dict[Any, tuple[str, ...]] = {
    NumberKind: ("numpy.dtype",),
    NumberArray: ("numpy.ndarray",),
    reconstruct: ("numpy.core.multiarray._reconstruct", "numpy._core.multiarray._reconstruct"),
    scalar: ("numpy.core.multiarray.scalar", "numpy._core.multiarray.scalar"),
    Unread: (
        *(f"fairseq.meters.{name}Meter" for name in ("Average", "Time", "Stopwatch")),
        *(f"fairseq.logging.meters.{name}Meter" for name in ("Average", "Time", "Stopwatch")),
        *("builtins.dict", "builtins.list", "builtins.int", "collections.defaultdict"),
        *("omegaconf.base.ContainerMetadata", "omegaconf.base.Metadata", "typing.Any"),
    ),
    Node: (
        *("omegaconf.dictconfig.DictConfig", "omegaconf.listconfig.ListConfig"),
        "omegaconf.nodes.AnyNode",
    ),
}
CLASSES: list[Any] = [
    argparse.Namespace,
    *((kind, name) for kind, names in _NAMES.items() for name in names),
]
"""Classes for ``torch.load`` that stock fairseq stores beside tensors and plain values.

``argparse.Namespace`` holds the options of legacy architectures. The meters keep numpy arrays with
the n-gram counts of ``--eval-bleu``; numpy 1 has ``core``, numpy 2 has ``_core``. Of OmegaConf's
nodes only the values are read. The list is as short as real checkpoints allow.
"""


def allow_classes() -> None:
    """Let ``torch.load(…, weights_only=True)`` read :data:`CLASSES` in this process."""
    torch.serialization.add_safe_globals(CLASSES)


# 6 to 8. The content


def require_plain(value: Any, file_bytes: int) -> None:
    """Raise CheckpointError if a value is not plain data, contains itself, or is far too large.

    torch's ``weights_only=True`` accepts small files whose content fills the memory. Forty lists,
    each of which contains the next one twice, have 2^40 entries. A tensor that stores one number
    can claim to have 10^12.
    """
    entries, claimed = 0, 0
    todo: list[tuple[Any, int]] = [(value, 0)]
    while todo:
        part, depth = todo.pop()
        children = parts(part)
        entries += len(children)
        if entries > MOST_ENTRIES or depth > DEEPEST:
            raise CheckpointError("has parts that contain each other, or far too many of them")
        todo.extend((child, depth + 1) for child in children)
        claimed += _bytes(part)
        if claimed > 4 * file_bytes + SPARE_BYTES:
            raise CheckpointError("has tensors that claim to be larger than the file")


def parts(value: Any) -> list[Any]:
    """Return the items, keys and attributes that a value directly contains; [] if none."""
    if isinstance(value, Namespace):
        value = vars(value)
    if isinstance(value, dict):  # its attributes, read from the file, may hide methods
        return [*dict.keys(value), *dict.values(value), *getattr(value, "__dict__", {}).values()]
    if isinstance(value, Tensor):
        return [*vars(value).values()]
    return list(value) if isinstance(value, list | tuple | set | frozenset) else []


def walk(value: Any) -> Iterator[Any]:
    """Yield a value and everything in it; :func:`require_plain` must have checked the value."""
    todo = [value]
    while todo:
        part = todo.pop()
        todo.extend(parts(part))
        yield part


def entries(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the name and value of every entry of the dictionaries and Namespaces in ``value``."""
    for part in walk(value):
        part = vars(part) if isinstance(part, Namespace) else part
        if isinstance(part, dict):
            yield from ((str(name), entry) for name, entry in part.items())


def _bytes(value: Any) -> int:
    """Return the number of bytes in a tensor or array, 0 for other plain data; refuse the rest."""
    if isinstance(value, Tensor):
        if value.layout is not torch.strided or value.is_meta or value.is_quantized:
            raise CheckpointError("has a tensor of a kind that no model of fairseq saves")
        return Tensor.numel(value) * Tensor.element_size(value)
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            raise CheckpointError("has an array of Python objects")
        return value.size * value.itemsize
    if isinstance(value, dict) and not getattr(value, "__dict__", {}).keys() <= {"_metadata"}:
        raise CheckpointError("has a dictionary with attributes")
    if not isinstance(value, (*_LEAVES, dict, Namespace, list, tuple, set, frozenset)):
        raise CheckpointError(f"has an object of type `{type(value).__name__}`")
    return 0


def require_inert(settings: Any) -> None:
    """Raise CheckpointError for options that make hydra import code or OmegaConf look up values.

    A text may refer to one other option (``${model.dropout}``), but not by the name of a section,
    nor through a list, because nested references could make OmegaConf fill the memory with copies.
    The options of a ``Namespace`` have no references.
    """
    sections = {name for name, value in entries(settings) if parts(value)}
    lists = {name for name, value in entries(settings) if isinstance(value, list | tuple)}
    for value in walk(settings):
        if isinstance(value, str) and value in HYDRA:
            raise CheckpointError(f"has the key `{value}`, which is an instruction to import code")
        if isinstance(value, str) and "${" in value:
            reference = _REFERENCE.fullmatch(value)
            path = reference[1].split(".") if reference else []
            is_option = path and path[-1] not in sections and lists.isdisjoint(path)
            if not is_option or isinstance(settings, Namespace):
                raise CheckpointError(f"has the text `{value:.60}`, which OmegaConf would resolve")


def require_numbers(state: Mapping[str, Any]) -> None:
    """Raise CheckpointError if values that fairseq uses as numbers are not numbers.

    These are the position in the data, and the optimizer's learning rate, betas, epsilon and weight
    decay. fairseq itself does not check them.
    """
    position = layout.position(state)
    for name in ("epoch", "iterations_in_epoch"):
        if not isinstance(position.get(name, 0), int):
            raise CheckpointError(f"has no number as its `{name}`")
    optimizer = state.get("last_optimizer_state")
    groups = optimizer.get("param_groups") if isinstance(optimizer, Mapping) else None
    for group in groups or ():
        for name in ("lr", "betas", "eps", "weight_decay"):
            value = group.get(name, 0)
            numbers = value if isinstance(value, list | tuple) else [value]
            if not all(isinstance(number, int | float) for number in numbers):
                raise CheckpointError(f"has no numbers as the `{name}` of its optimizer")
