"""Fuzz every reader of binary files, which may raise documented errors only, in bounded memory.

Inputs are damaged files, and files with wrong content but valid checksums and magic numbers.
"""

import bz2
import gzip
import hashlib
import io
import json
import lzma
import pickle
import struct
import tarfile
import tempfile
import zipfile
from functools import cache
from pathlib import Path
from random import Random

import torch

import fairseq_ext
from fairseq_ext.checkpoints.size import read_size
from fairseq_ext.checkpoints.storage import load as load_checkpoint
from fairseq_ext.data_folder import indexed as data_folder
from fairseq_ext.model import program_file, write
from fairseq_ext.model.describe import describe as describe_bundle
from fairseq_ext.text.reading import table_rows
from fairseq_ext.utils.archives import extract
from tests.support import damages, fuzz_engine, models
from tests.support.bundles import save_run
from tests.support.fuzz_readers import pairs_of
from tests.support.fuzzing import NASTY, Data, Reader, damaged, files
from tests.support.trainings import same_state

fairseq_ext.register()
EDGES = (0, 1, 2, 7, 511, 512, 513, 1 << 20, 1 << 31, (1 << 33) - 1, 1 << 62, -1, -512)
NAMES = ("a", "a", "b", "d/c", "./a", "../x", "/x", "d", "d/../../x", "ä", "a" * 300, "", "\n")
LIMIT = 1 << 20  # most bytes that an archive may unpack to


def archive(draw: Random) -> bytes:
    """A tar with a few members of any type and size, whose headers have valid checksums."""
    out = io.BytesIO()
    kinds = (*tarfile.REGULAR_TYPES[:1] * 6, *(bytes([code]) for code in b"123456gxLKSMV"))
    for _ in range(draw.randint(1, 4)):
        info = tarfile.TarInfo(draw.choice(NAMES[:2] * 4 + NAMES))
        info.type = draw.choice(kinds)
        info.linkname = draw.choice(NAMES)
        data = draw.randbytes(draw.choice((0, 5, 600)))
        info.size = len(data) if draw.random() < 0.6 else draw.choice(EDGES)
        info.mode, info.mtime = draw.choice((0o644, 0, 0o7777)), draw.choice((0, 1.5e9, -1, 1e17))
        if draw.random() < 0.2:
            key = draw.choice(("path", "size", "linkpath", "mtime", "GNU.sparse.map"))
            info.pax_headers = {key: draw.choice(("1", "-1", "x", "9" * 30, "../y"))}
        layout = draw.choice((tarfile.GNU_FORMAT, tarfile.PAX_FORMAT))
        try:
            header = info.tobuf(layout, "utf-8", "surrogateescape")
        except (ValueError, OverflowError):  # the layout has no way to write such values
            header = tarfile.TarInfo("a").tobuf(layout)
        out.write(header + data + bytes(-len(data) % 512))
    out.write(bytes(draw.choice((0, 512, 1024))))
    return out.getvalue()


def compressed(source: Data) -> Data:
    """Generate ``source``, compressed or not; about half of the results are damaged afterwards."""
    forms = (bytes, gzip.compress, bz2.compress, lzma.compress)
    return damaged(lambda draw: draw.choice(forms)(source(draw)))


def zipped(draw: Random) -> bytes:
    """A zip of a few members, some with wrong numbers in its directory."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as target:
        for _ in range(draw.randint(1, 3)):
            name = zipfile.ZipInfo(draw.choice(NAMES[:4] * 3 + NAMES[:11]))
            name.external_attr = draw.choice((0, 0o100644, 0o120777, 0o020666)) << 16
            name.compress_type = draw.choice((0, 8, 12, 14))
            noise = draw.randbytes(draw.choice((0, 0, 9, 600)))
            target.writestr(name, b"de\t,en\nja\t,yes\n" * draw.randint(0, 3) + noise)
    data = bytearray(out.getvalue())
    places = [offset for offset in range(len(data) - 46) if data[offset : offset + 4] == b"PK\1\2"]
    for offset in places:
        if draw.random() < 0.3:  # flags, method, sizes
            where, size = draw.choice(((8, 2), (10, 2), (20, 4), (24, 4), (42, 4)))
            value = draw.choice(EDGES) % (1 << 8 * size)
            data[offset + where : offset + where + size] = value.to_bytes(size, "little")
    return bytes(data)


def indexed(draw: Random) -> dict[str, bytes]:
    """An ``.idx`` of fairseq and its ``.bin``, some with other numbers in them."""
    sizes = [draw.randint(1, 4) for _ in range(draw.randint(0, 4))]
    tokens = [draw.randint(4, 22) for _ in range(sum(sizes))]
    pointers = [2 * sum(sizes[:place]) for place in range(len(sizes))]
    code, count = 8, len(sizes)
    if draw.random() < 0.6:
        match draw.randint(0, 3):
            case 0:
                code = draw.randint(0, 255)
            case 1:
                count = draw.choice(EDGES) % (1 << 64)
            case 2 if sizes:
                sizes[draw.randrange(len(sizes))] = draw.choice(EDGES) % (1 << 31)
            case _ if pointers:
                pointers[draw.randrange(len(pointers))] = draw.choice(EDGES)
    header = b"MMIDIDX\0\0" + struct.pack("<QBQ", 1, code, count)
    rest = struct.pack(f"<{len(sizes)}i{len(pointers)}q", *sizes, *pointers)
    data = struct.pack(f"<{len(tokens)}H", *tokens)
    return {"a.idx": damaged(header + rest, 1)(draw), "a.bin": damaged(data, 1)(draw)}


@cache
def _checkpoint() -> bytes:
    out = io.BytesIO()
    weights = torch.arange(6.0).view(2, 3)
    cfg = {"model": {"_name": "gru_tiny"}, "task": {"_name": "translation"}}
    history = [{"num_updates": 3}]
    torch.save({"model": {"a": weights, "b": weights}, "cfg": cfg, "args": None,
                "optimizer_history": history, "extra_state": {"epoch": 1}}, out)  # fmt: skip
    return out.getvalue()


def checkpoint(draw: Random) -> bytes:
    """A checkpoint with valid checksums, in which one member is damaged or has other data."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(_checkpoint())) as source, zipfile.ZipFile(out, "w") as target:
        member = draw.choice(source.namelist())
        for name in source.namelist():
            data = source.read(name)
            if name == member:
                data = pickle.dumps(_plain(draw, 3)) if draw.random() < 0.3 else damaged(data)(draw)
            target.writestr(name, data)
    return out.getvalue()


def _plain(draw: Random, depth: int) -> object:
    """Random plain data, with keys as in a checkpoint."""
    keys = ("model", "cfg", "args", "_name", "optimizer_history", "num_updates", "extra_state")
    match draw.randint(0, 3 if depth else 1):
        case 0:
            return draw.choice((None, 1, -1, 1e308, "x", b"x", True, float("nan"), 1 << 70))
        case 1:
            return draw.choice(NASTY)
        case 2:
            return [_plain(draw, depth - 1) for _ in range(draw.randint(0, 3))]
        case _:
            return {key: _plain(draw, depth - 1) for key in draw.sample(keys, draw.randint(0, 4))}


@cache
def _bundle() -> Path:
    """A small bundle of a MUSE, written once for each process."""
    flags = [*models.MUSE, "--encoder-layers=1", "--decoder-layers=1"]
    folder = Path(tempfile.mkdtemp())
    run = save_run(folder / "run", flags, *models.build(flags, size=10))
    write.write(run / "checkpoint_best.pt", run, folder / "bundle", numbers="int8")
    return folder / "bundle"


def damaged_bundle(draw: Random) -> dict[str, bytes]:
    """A bundle, mostly with a damaged file that has the right checksum."""
    files = {path.name: path.read_bytes() for path in _bundle().iterdir()}
    if draw.random() < 0.05:  # else no input would be accepted, and no reader run to its end
        return files
    name = draw.choice(["model.safetensors", "model.safetensors", "program.json", "config.json"])
    damage = draw.choice(damages.DAMAGES if name.endswith("s") else damages.DAMAGES[:1])
    files[name] = damage(bytearray(files[name]), draw)
    manifest = json.loads(files["bundle.json"])
    manifest["files"][name] = hashlib.sha256(files[name]).hexdigest()
    return {**files, "bundle.json": json.dumps(manifest).encode()}


def read_checkpoint(folder: Path) -> None:
    load_checkpoint(folder / "a.pt")
    read_size(folder / "a.pt")


def read_flipped(folder: Path) -> None:
    """Load a checkpoint with a flipped bit; unless this fails, the content must be right."""
    healthy = torch.load(io.BytesIO(_checkpoint()), weights_only=True)
    assert same_state(load_checkpoint(folder / "a.pt"), healthy)


def unpack(folder: Path, name: str) -> None:
    out = folder / "out"
    out.mkdir()
    extract(folder / name, out, LIMIT)


def read_zipped_pairs(folder: Path) -> None:
    path = folder / "a.zip"
    list(table_rows(path))
    pairs_of(folder, path)


def read_bundle(folder: Path) -> None:
    """Load a bundle as a checkpoint, describe it, and run its model."""
    load_checkpoint(folder)
    describe_bundle(folder)
    fuzz_engine.run(program_file.read(folder))


def readers() -> list[Reader]:
    healthy, pairs = _checkpoint(), b"one\teins\ntwo\tzwei\n" * 30
    flipped = files(a_pt=lambda draw: damages.flip_bit(bytearray(healthy), draw))
    tar, zips = files(a_tar=compressed(archive)), files(a_zip=damaged(zipped, 1))
    gz = files(a_gz=damaged(gzip.compress(pairs, mtime=0)))
    return [
        Reader("checkpoints", files(a_pt=damaged(healthy)), read_checkpoint),
        Reader("checkpoints, right checksums", files(a_pt=checkpoint), read_checkpoint),
        Reader("checkpoints, a bit flipped", flipped, read_flipped),
        Reader("bundles", damaged_bundle, read_bundle),
        Reader("indexed data", indexed, lambda folder: data_folder.check(folder / "a", 20)),
        Reader("tar archives", tar, lambda folder: unpack(folder, "a.tar")),
        Reader("zip archives", zips, lambda folder: unpack(folder, "a.zip")),
        Reader("pairs in zip archives", zips, read_zipped_pairs),
        Reader("compressed pairs", gz, lambda folder: pairs_of(folder, folder / "a.gz")),
    ]
