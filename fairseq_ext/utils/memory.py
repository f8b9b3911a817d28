"""Whether a process keeps the memory that it frees: settings of glibc's allocator.

glibc maps every block above its threshold anew, 32 MiB at the most, and returns what is free at the
end of its heap. Other C libraries have no such switches, and are left alone.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable

TRIM_THRESHOLD, MMAP_THRESHOLD, MMAP_MAX, ARENA_MAX = -1, -3, -4, -8  # of malloc.h
LARGEST = 2**30
"""Bytes of a block that is still kept."""
INITIAL = 128 * 1024
"""Bytes from which glibc at first takes blocks from the system, and returns them to it."""
CHOICES = ("MALLOC_", "GLIBC_TUNABLES")
"""Environment variables by which a user configures the allocator."""


def keep() -> bool:
    """Let this process keep the memory that it frees; return whether it now does.

    A training soon asks again for what it gives back, and the system clears it each time: gradients
    and products the size of an embedding of many words are blocks above the threshold, and each of
    their pages is a fault and a page of zeros in every update. What was resident once stays so
    until the process ends, and small blocks in the gaps of large ones may add a few percent.
    Allocator settings in the environment take precedence.
    """
    mallopt = _mallopt()
    if mallopt is None or any(name.startswith(CHOICES) for name in os.environ):
        return False
    # Older versions refuse a threshold above 32 MiB.
    mapped = mallopt(MMAP_THRESHOLD, LARGEST) or mallopt(MMAP_MAX, 0)
    return bool(mapped and mallopt(TRIM_THRESHOLD, -1))


def give_back() -> None:
    """Make all threads allocate from one heap, and take large blocks from the system.

    By default glibc gives each thread a heap of its own, which keeps what an answer has freed, and
    raises the size from which a block comes from the system as soon as such a block is freed. A
    process that runs for weeks calls this before it has threads.
    """
    mallopt = _mallopt()
    if mallopt is not None:
        mallopt(ARENA_MAX, 1)
        mallopt(MMAP_THRESHOLD, INITIAL)
        mallopt(TRIM_THRESHOLD, INITIAL)


def _mallopt() -> Callable[[int, int], int] | None:
    """Return glibc's function of that name; None with another library."""
    try:
        library = ctypes.CDLL(None)
        library.gnu_get_libc_version  # noqa: B018  (other libraries lack it)
        return library.mallopt
    except (AttributeError, OSError, TypeError):
        return None
