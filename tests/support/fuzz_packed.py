"""Damaged packed models: none may crash the reader, none may be taken for a right one.

``python -m tests.support.fuzz_packed MODEL.safetensors --files 10000`` tries that many.
"""

from __future__ import annotations

import argparse
import random
import struct
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from fairseq_ext.binary.packed import byte_counts, model_file
from fairseq_ext.utils.errors import CheckpointError

Damage = Callable[[bytearray, random.Random], bytes]


def flip_bit(data: bytearray, draw: random.Random) -> bytes:
    data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    return bytes(data)


def flip_header_bit(data: bytearray, draw: random.Random) -> bytes:
    size = struct.unpack("<Q", data[:8])[0]
    data[8 + draw.randrange(size)] ^= 1 << draw.randrange(8)
    return bytes(data)


def change_bytes(data: bytearray, draw: random.Random) -> bytes:
    start = draw.randrange(len(data))
    for place in range(start, min(len(data), start + draw.randint(1, 64))):
        data[place] = draw.randrange(256)
    return bytes(data)


def truncate(data: bytearray, draw: random.Random) -> bytes:
    return bytes(data[: draw.randrange(len(data))])


def extend(data: bytearray, draw: random.Random) -> bytes:
    return bytes(data) + draw.randbytes(draw.randint(1, 100))


def cut_out(data: bytearray, draw: random.Random) -> bytes:
    start = draw.randrange(len(data))
    del data[start : start + draw.randint(1, 100)]
    return bytes(data)


def lie_about_the_header(data: bytearray, draw: random.Random) -> bytes:
    size = draw.choice([0, 1, draw.randrange(1 << 16), 10**8 + 1, 1 << 31, 1 << 63, (1 << 64) - 1])
    data[:8] = struct.pack("<Q", size)
    return bytes(data)


def change_a_digit(data: bytearray, draw: random.Random) -> bytes:
    """Of shapes, offsets and settings in the header: what stays well-formed JSON."""
    size = struct.unpack("<Q", data[:8])[0]
    digits = [place for place in range(8, 8 + size) if chr(data[place]).isdigit()]
    data[draw.choice(digits)] = ord(str(draw.randrange(10)))
    return bytes(data)


DAMAGES: tuple[Damage, ...] = (
    *(flip_bit, flip_header_bit, change_bytes, truncate),
    *(extend, cut_out, lie_about_the_header, change_a_digit),
)


def is_equal(first: model_file.PackedModel, other: model_file.PackedModel) -> bool:
    """Whether two packed models are the same to the last bit."""
    tensors = first.tensors.keys() == other.tensors.keys() and all(
        tensor.dtype == other.tensors[name].dtype and tensor.equal(other.tensors[name])
        for name, tensor in first.tensors.items()
    )
    parts = ("cfg", "stage", "layers", "tied")
    return tensors and all(getattr(first, part) == getattr(other, part) for part in parts)


def fuzz(model: Path, count: int, folder: Path, seed: int = 1) -> Counter[str]:
    """Read ``count`` damaged copies of ``model``; how many were refused, and were the same still.

    Raises:
        AssertionError: one was read as another model.
        Exception: one led to any error but a clear one.
    """
    draw, original = random.Random(seed), model.read_bytes()
    expected, path, outcomes = model_file.read(model), folder / "damaged.safetensors", Counter()
    for number in range(count):
        damage = DAMAGES[number % len(DAMAGES)]
        data = damage(bytearray(original), draw)
        path.write_bytes(data)
        try:
            packed = model_file.read(path)
        except CheckpointError as error:
            outcomes["refused" if str(path) in str(error) else "refused without its name"] += 1
            continue
        assert is_equal(packed, expected), f"file {number} ({damage.__name__}) was read as another"
        outcomes["unchanged" if data == original else "same model in other bytes"] += 1
    return outcomes


def record(destination: Path, model: Path, outcomes: Counter[str], seed: int) -> None:
    """Write what was found as JSON, with the machine it was found on."""
    from benchmarks import bench

    byte_count = byte_counts.count(model)
    bench.save(
        destination,
        title="Damaged copies of a packed model",
        model={name: byte_count[name] for name in ("architecture", "layers")},
        bytes=byte_count["bytes"]["all"],
        seed=seed,
        files=sum(outcomes.values()),
        damages=[damage.__name__ for damage in DAMAGES],
        outcomes={"crashed": 0, "read as another model": 0, **outcomes},  # either would have raised
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("model", type=Path)
    add("--files", type=int, default=10_000)
    add("--seed", type=int, default=1)
    add("--json", type=Path, help="where to write the outcome")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        outcomes = fuzz(args.model, args.files, Path(folder), args.seed)
    print(dict(outcomes))
    if args.json is not None:
        record(args.json, args.model, outcomes, args.seed)


if __name__ == "__main__":
    main()
