"""Damage files like disks, networks and people do; split safetensors files, and join them."""

import random
from collections.abc import Callable

Damage = Callable[[bytearray, random.Random], bytes]


def parts(data: bytes) -> tuple[bytes, bytes]:
    """Split a safetensors file into its header and its numbers."""
    end = 8 + int.from_bytes(data[:8], "little")
    return data[8:end], data[end:]


def joined(header: bytes, numbers: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header + numbers


def flip_bit(data: bytearray, draw: random.Random) -> bytes:
    data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    return bytes(data)


def flip_header_bit(data: bytearray, draw: random.Random) -> bytes:
    header, _ = parts(data)
    data[8 + draw.randrange(len(header))] ^= 1 << draw.randrange(8)
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


def repeat(data: bytearray, draw: random.Random) -> bytes:
    start = draw.randrange(len(data))
    data[start:start] = data[start : start + draw.choice((1, 8, 512))]
    return bytes(data)


def lie_about_the_header(data: bytearray, draw: random.Random) -> bytes:
    size = draw.choice([0, 1, draw.randrange(1 << 16), 10**8 + 1, 1 << 31, 1 << 63, (1 << 64) - 1])
    data[:8] = size.to_bytes(8, "little")
    return bytes(data)


def change_a_digit(data: bytearray, draw: random.Random) -> bytes:
    """Change a digit of a shape, offset or setting in the header, which stays valid JSON."""
    header, _ = parts(data)
    digits = [place for place, code in enumerate(header, start=8) if chr(code).isdigit()]
    data[draw.choice(digits)] = ord(str(draw.randrange(10)))
    return bytes(data)


OF_ANY_FILE: tuple[Damage, ...] = (flip_bit, change_bytes, truncate, extend, cut_out, repeat)
DAMAGES = (*OF_ANY_FILE, flip_header_bit, lie_about_the_header, change_a_digit)
