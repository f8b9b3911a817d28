"""Settings of glibc's allocator: whether a process keeps the memory that it frees.

glibc gets every block above a threshold (at most 32 MiB) from the system, and returns free memory
at the end of its heap. Other C libraries have no such settings, and are left alone.
"""

import ctypes
import os
from collections.abc import Callable

TRIM_THRESHOLD, MMAP_THRESHOLD, MMAP_MAX, ARENA_MAX = -1, -3, -4, -8  # from malloc.h
LARGEST = 2**30  # bytes of the largest block to keep
INITIAL = 128 * 1024
"""glibc's initial threshold in bytes for taking blocks from the system and returning them."""
CHOICES = ("MALLOC_", "GLIBC_TUNABLES")
"""Environment variables by which a user configures the allocator."""


def keep() -> bool:
    """Make glibc reuse freed memory instead of returning it to the system; return whether it does.

    By default, large gradients cost a page fault for each page in every update. Nothing changes if
    the environment has settings of the allocator, or the C library is not glibc.
    """
    mallopt = _mallopt()
    if mallopt is None or any(name.startswith(CHOICES) for name in os.environ):
        return False
    # Older versions refuse a threshold above 32 MiB.
    mapped = mallopt(MMAP_THRESHOLD, LARGEST) or mallopt(MMAP_MAX, 0)
    return bool(mapped and mallopt(TRIM_THRESHOLD, -1))


def give_back() -> None:
    """Make this process return freed memory to the system; call this before it starts threads.

    All threads then share one heap, because a heap of each thread would keep freed memory. Freed
    blocks of :data:`INITIAL` bytes or more return to the system at once. By default, glibc raises
    this threshold up to 32 MiB, and keeps smaller blocks.
    """
    mallopt = _mallopt()
    if mallopt is not None:
        mallopt(ARENA_MAX, 1)
        mallopt(MMAP_THRESHOLD, INITIAL)
        mallopt(TRIM_THRESHOLD, INITIAL)


def _mallopt() -> Callable[[int, int], int] | None:
    """Return glibc's function ``mallopt``; None with another library."""
    try:
        library = ctypes.CDLL(None)
        library.gnu_get_libc_version  # noqa: B018  (other libraries lack it)
        return library.mallopt
    except (AttributeError, OSError, TypeError):
        return None
