"""Let glibc's allocator keep the memory that a process frees.

glibc gets every block above a threshold (at most 32 MiB) from the system, and returns free memory
at the end of its heap. Other C libraries have no such settings, and are left alone.
"""

import ctypes
import os

TRIM_THRESHOLD, MMAP_THRESHOLD, MMAP_MAX = -1, -3, -4  # from malloc.h
LARGEST = 2**30  # bytes of the largest block to keep
CHOICES = ("MALLOC_", "GLIBC_TUNABLES")
"""Environment variables by which a user configures the allocator."""


def keep() -> bool:
    """Make glibc reuse freed memory instead of returning it to the system; return whether it does.

    By default, large gradients cost a page fault for each page in every update. Nothing changes if
    the environment has settings of the allocator, or the C library is not glibc.
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
