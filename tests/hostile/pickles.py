"""Checkpoints whose pickles run code, in every form that torch has had, and archives that lie."""

import builtins
import codecs
import functools
import gzip
import importlib
import io
import operator
import os
import pickle
import runpy
import struct
import subprocess
import sys
import tarfile
import types
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig, ListConfig, OmegaConf


class Calls:
    """Unpickling it calls a function."""

    def __init__(self, function: Any, *arguments: Any, state: Any = None) -> None:
        self.parts = (function, arguments, state)

    def __reduce__(self) -> tuple:
        function, arguments, state = self.parts
        return (function, arguments) if state is None else (function, arguments, state)


def calls(canary: Path) -> dict[str, Any]:
    """Objects that make the file ``canary`` when they are unpickled, by their trick."""
    expression = f"open({str(canary)!r}, 'w')"
    script = canary.with_name("script.py")
    script.write_text(expression)
    nested = io.BytesIO()
    torch.save(Calls(os.system, f"touch {canary}"), nested)
    getter = Calls(getattr, os, "system")  # `os` itself is pickled by its import
    return {
        "os.system": Calls(os.system, f"touch {canary}"),
        "eval": Calls(eval, expression),
        "exec": Calls(exec, expression),
        "open": Calls(open, str(canary), "w"),
        "subprocess": Calls(subprocess.call, ["touch", str(canary)]),
        "runpy": Calls(runpy.run_path, str(script)),
        "pathlib touch": Calls(Path.touch, canary),
        "partial": Calls(functools.partial(os.system, f"touch {canary}").__call__),
        "getattr": Calls(getattr, Module("os"), "system"),
        "getattr called": Calls(Module("builtins.getattr"), getter, f"touch {canary}"),
        "methodcaller": Calls(
            Calls(operator.methodcaller, "system", f"touch {canary}"), Module("os")
        ),
        "import_module": Calls(importlib.import_module, "this"),
        "code object": Calls(
            Calls(types.FunctionType, Calls(builtins.compile, expression, "x", "eval"), {})
        ),
        "torch nested load": Calls(torch.storage._load_from_bytes, nested.getvalue()),
        "pickle nested loads": Calls(pickle.loads, nested.getvalue()),
        "numpy save": Calls(np.save, str(canary), 1),
        "numpy runstring": Calls(np.testing._private.utils.runstring, expression, {}),
        "codecs open": Calls(codecs.open, str(canary), "w"),
        "setstate": Calls(types.SimpleNamespace, state={"x": Calls(eval, expression)}),
    }


class Module:
    """Pickled as the module or attribute of this name, through ``importlib``."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __reduce__(self) -> tuple:
        module, _, attribute = self.name.partition(".")
        if attribute:
            return getattr, (Module(module), attribute)
        return importlib.import_module, (module,)


def pickled(base: dict[str, Any], canary: Path) -> Iterator[tuple[str, bytes]]:
    """The tricks as checkpoints in today's format, and at other places of a checkpoint."""
    for name, trick in calls(canary).items():
        try:
            yield f"pickle {name}", saved({**base, "task_state": trick})
        except (pickle.PicklingError, TypeError, AttributeError):
            continue  # this Python cannot even write it
    trick = Calls(os.system, f"touch {canary}")
    yield "pickle in cfg", saved({**base, "cfg": {**base["cfg"], "model": trick}})
    yield "pickle in the model", saved({**base, "model": {**base["model"], "x": trick}})
    yield "pickle as a key", saved({**base, trick: 1})
    yield "pickle instead of a checkpoint", saved(trick)


def saved(state: Any, **options: Any) -> bytes:
    """What ``torch.save`` writes."""
    file = io.BytesIO()
    torch.save(state, file, **options)
    return file.getvalue()


def formats(base: dict[str, Any], canary: Path) -> Iterator[tuple[str, bytes]]:
    """Other formats, each with code in it where it can have some."""
    evil = {**base, "task_state": Calls(os.system, f"touch {canary}")}
    yield "legacy format", saved(base, _use_new_zipfile_serialization=False)
    yield "legacy format with code", saved(evil, _use_new_zipfile_serialization=False)
    yield "bare pickle", pickle.dumps(evil)
    yield "bare pickle of protocol 0", pickle.dumps(Calls(os.system, f"touch {canary}"), 0)
    yield "gzip", gzip.compress(saved(evil))
    yield "numpy file", _numpy(evil)
    yield "tar format", _tar({"storages": b"", "tensors": b"", "pickle": pickle.dumps(evil)})
    yield "tar with a link", _tar({"pickle": pickle.dumps(evil)}, link="/etc/passwd")
    yield "TorchScript", _script()
    yield "TorchScript with code", changed(_script(), {"data.pkl": pickle.dumps(evil, 2)})
    yield "web page", b"<!DOCTYPE html><script>alert(1)</script>"
    yield "empty", b""
    yield "zeros", bytes(4096)
    yield "Python", f"import os\nos.system('touch {canary}')\n".encode()
    yield "ELF", b"\x7fELF" + bytes(200)


def _numpy(value: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, np.array([value], dtype=object), allow_pickle=True)
    return file.getvalue()


def _tar(members: dict[str, bytes], link: str = "") -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
        if link:
            info = tarfile.TarInfo("storages")
            info.type, info.linkname = tarfile.SYMTYPE, link
            tar.addfile(info)
    return file.getvalue()


def _script() -> bytes:
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.trace(torch.nn.Linear(2, 2), torch.zeros(1, 2)), file)
    return file.getvalue()


def changed(
    archive: bytes,
    contents: dict[str, bytes],
    *,
    compress: bool = False,
    member: Callable[[zipfile.ZipInfo], None] = lambda info: None,
    additions: dict[str, bytes] | None = None,
) -> bytes:
    """A zip archive with other contents of the parts whose names end so, and more parts."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(archive)) as old, zipfile.ZipFile(file, "w") as new:
        parts = {name: old.read(name) for name in old.namelist()}
        root = next(iter(parts)).partition("/")[0]
        pairs = [*parts.items(), *((f"{root}/{n}", c) for n, c in (additions or {}).items())]
        for name, content in pairs:
            replacements = [other for ending, other in contents.items() if name.endswith(ending)]
            info = zipfile.ZipInfo(name)
            info.compress_type = zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED
            member(info)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of a name that is there twice
                new.writestr(info, replacements[0] if replacements else content)
    return file.getvalue()


def archives(base: dict[str, Any], canary: Path) -> Iterator[tuple[str, bytes]]:
    """Zip archives that are not what torch writes."""
    good = saved(base)
    evil = pickle.dumps(Calls(os.system, f"touch {canary}"), 2)

    def link(info: zipfile.ZipInfo) -> None:
        info.external_attr = 0o120777 << 16

    yield "zip bomb", changed(good, {"data/0": bytes(200 << 20)}, compress=True)
    yield "zip bomb of the pickle", changed(good, {"data.pkl": b"]" * (50 << 20)}, compress=True)
    yield "zip with a second pickle", changed(good, {}, additions={"data.pkl": evil})
    yield "zip with an other pickle", changed(good, {"data.pkl": evil})
    yield "zip of links", changed(good, {}, member=link)
    yield "zip that leaves its folder", changed(good, {}, additions={"../../evil.py": evil})
    constants = {"constants.pkl": evil, "code/x.py": evil}
    yield "zip with constants", changed(good, {}, additions=constants)
    yield "zip without a pickle", changed(saved(base), {"data.pkl": b""})
    yield "zip in a zip", changed(good, {"data.pkl": good})
    yield "zip of overlapping parts", _overlapping()
    yield "truncated zip", good[: len(good) // 2]
    yield "zip with a flipped bit", _flipped(good)
    yield "zip without an end", good[:-22]
    yield "zip that promises 2^60 bytes", _promising(good)


def _overlapping() -> bytes:
    """A thousand names for one part of a megabyte."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", bytes(1 << 20))
        first = archive.infolist()[0]
        for number in range(1000):
            info = zipfile.ZipInfo(f"archive/data/{number}")
            info.header_offset, info.CRC = first.header_offset, first.CRC
            info.file_size = info.compress_size = first.file_size
            archive.filelist.append(info)
    return file.getvalue()


def _flipped(archive: bytes) -> bytes:
    content = bytearray(archive)
    content[len(content) // 2] ^= 1
    return bytes(content)


def _promising(archive: bytes) -> bytes:
    """Sizes in the list of parts that no disk has."""
    content = bytearray(archive)
    place = content.find(b"PK\x01\x02")
    content[place + 20 : place + 28] = struct.pack("<II", 0xFFFFFFFE, 0xFFFFFFFE)
    return bytes(content)


def _with_field() -> Calls:
    """An array of integers whose dtype gets a field of Python objects, with bytes for addresses."""
    field = (3, "<", None, ("a",), {"a": (Calls(np.dtype, "O"), 0)}, -1, -1, 1)
    kind = Calls(np.dtype, "i8", False, True, state=field)
    empty, *_ = np.array([0]).__reduce__()
    return Calls(empty, np.ndarray, (0,), b"b", state=(1, (1,), kind, False, b"A" * 8))


def bombs(base: dict[str, Any]) -> Iterator[tuple[str, bytes]]:
    """Plain data that is small in the file and huge for who walks over it."""
    deep: list = []
    for _ in range(sys.getrecursionlimit() // 3):
        deep = [deep]
    laughs: list = [0] * 10
    for _ in range(40):
        laughs = [laughs] * 2
    circle: dict = {}
    circle["circle"] = circle
    huge = torch.zeros(1).expand(1 << 20, 1 << 20)
    model = base["model"]
    yield "bomb of lists", saved({**base, "task_state": {"x": laughs}})
    yield "bomb of lists in cfg", saved({**base, "cfg": {**base["cfg"], "x": laughs}})
    yield "deep lists", saved({**base, "task_state": {"x": deep}})
    yield "circle", saved({**base, "cfg": {**base["cfg"], "x": circle}})
    yield "circle in the model", saved({**base, "model": {**model, "x": circle}})
    yield "tensor of 2^40 numbers", saved({**base, "model": dict.fromkeys(model, huge)})
    yield "bytearray", saved({**base, "task_state": Calls(bytearray, 10**11)})
    yield "array of objects", saved({**base, "extra_state": {"x": np.array([{}], dtype=object)}})
    address = Calls(np.ndarray, (1,), Calls(np.dtype, "O"), b"A" * 8)
    yield "array of addresses", saved({**base, "extra_state": {"x": Calls(set, address)}})
    yield "numbers with an object field", saved({**base, "extra_state": {"x": _with_field()}})
    yield "sparse model", saved({**base, "model": {n: t.to_sparse() for n, t in model.items()}})
    yield "meta model", saved({**base, "model": {n: t.to("meta") for n, t in model.items()}})
    yield "model of numbers", saved({**base, "model": dict.fromkeys(model, 1)})
    yield "model without names", saved({**base, "model": dict.fromkeys(range(9), torch.zeros(1))})
    yield "number of a million digits", saved({**base, "task_state": {"x": 1 << 4_000_000}})


def nodes(base: dict[str, Any], canary: Path) -> Iterator[tuple[str, bytes]]:
    """Configurations pickled as OmegaConf's objects, as fairseq did in 2020 and 2021."""
    trick = Calls(os.system, f"touch {canary}")
    model = base["cfg"]["model"]

    def config(**changes: Any) -> DictConfig:
        return OmegaConf.create({**base["cfg"], **changes}, flags={"allow_objects": True})

    def written(cfg: Any) -> bytes:
        return saved({**base, "cfg": cfg})

    yield "OmegaConf", written(config())
    yield "OmegaConf with code as a value", written(config(x=trick))
    yield "OmegaConf with code in a list", written(config(x=[1, [trick]]))
    for attribute in ("object_type", "flags", "resolver_cache"):
        cfg = config()
        setattr(cfg._metadata, attribute, trick)
        yield f"OmegaConf with code as {attribute}", written(cfg)
    cfg = config()
    cfg._metadata.object_type = os.system
    yield "OmegaConf of a function", written(cfg)
    yield "OmegaConf in args", saved({**base, "cfg": None, "args": config()})
    yield "OmegaConf in task_state", saved({**base, "task_state": {"x": config()}})
    yield "OmegaConf that resolves", written(config(x="${oc.env:HOME}"))
    yield "OmegaConf that decodes", written(config(x="${oc.decode:'[1]'}"))
    yield "OmegaConf with a target", written(config(x={"_target_": "os.system"}))
    text = f"__import__('os').system('touch {canary}') or []"
    yield (
        "OmegaConf with an expression",
        written(config(model={**model, "decoder_attention": text})),
    )
    for name, content in (("numbers", {"a": 1}), ("a number", 5), ("a list", [1])):
        cfg = config()
        cfg.__dict__["_content"] = content
        yield f"OmegaConf around {name}", written(cfg)
    cfg = config()
    cfg.__dict__["_content"]["x"] = cfg
    yield "OmegaConf in a circle", written(cfg)
    cfg, bomb = config(), ListConfig([0])
    for _ in range(40):
        half, bomb = bomb, ListConfig([])
        bomb.__dict__["_content"] = [half, half]
    cfg.__dict__["_content"]["x"] = bomb
    yield "OmegaConf bomb", written(cfg)
