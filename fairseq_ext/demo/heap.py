"""How a process that runs for weeks gives memory back."""

from __future__ import annotations

import contextlib
import ctypes

# Options of mallopt, from glibc's malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
_LARGE = 128 * 1024  # bytes; glibc's initial value of both thresholds


def keep_small() -> None:
    """Have all threads allocate from one heap, and large blocks from the system.

    By default glibc gives each thread a heap of its own, which keeps what an answer has freed, and
    raises the size from which a block comes from the system as soon as such a block is freed. Call
    this before there are threads. Other C libraries have no such switches.
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_ARENA_MAX, 1)
        mallopt(_MMAP_THRESHOLD, _LARGE)
        mallopt(_TRIM_THRESHOLD, _LARGE)
