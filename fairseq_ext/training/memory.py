"""Memory that a process gives back it soon asks for again, and the system clears it each time.

glibc maps every block above its threshold anew, 32 MiB at the most, and returns what is free at the
end of its heap. Gradients and products the size of an embedding of many words are such blocks, and
each of their pages is a fault and a page of zeros in every update.
"""

from __future__ import annotations

import ctypes
import os

TRIM_THRESHOLD, MMAP_THRESHOLD, MMAP_MAX = -1, -3, -4  # of malloc.h
LARGEST = 2**30
"""Bytes of a block that is still kept."""
CHOICES = ("MALLOC_", "GLIBC_TUNABLES")
"""How the environment chooses otherwise."""


def keep() -> bool:
    """Let this process keep the memory that it frees, for its next blocks; whether it does now.

    Only with glibc, and unless the environment sets its allocator. What was resident once stays so
    until the process ends, and small blocks in the gaps of large ones may add a few percent.
    """
    if any(name.startswith(CHOICES) for name in os.environ):
        return False
    try:
        library = ctypes.CDLL(None)
        library.gnu_get_libc_version  # noqa: B018  (other libraries lack it)
        mallopt = library.mallopt
    except (AttributeError, OSError, TypeError):
        return False
    # Older versions refuse a threshold above 32 MiB.
    mapped = mallopt(MMAP_THRESHOLD, LARGEST) or mallopt(MMAP_MAX, 0)
    return bool(mapped and mallopt(TRIM_THRESHOLD, -1))
