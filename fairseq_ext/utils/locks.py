"""Locks between processes.

They are ``flock``'s, which the kernel releases when the process ends, however it ends; so a killed
process never blocks the next one. On NFS the server does the same for its clients, and releases the
locks of a machine that is gone when its lease runs out (90 seconds on Linux). Where a file system
has no such locks, nothing replaces them: a file whose existence is the lock would outlive a killed
process.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path

import filelock

UNSUPPORTED = {errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP}


@contextlib.contextmanager
def held(path: Path, *, wait: bool) -> Iterator[bool]:
    """Hold the lock ``path``, whose folder exists; releasing it removes its file.

    Yields:
        Whether this file system has locks; where it has none, nothing is held.

    Raises:
        filelock.Timeout: another process holds it, and ``wait`` is False.
    """
    timeout = -1 if wait else 0
    lock = filelock.FileLock(path, timeout=timeout, fallback_to_soft=False, is_singleton=True)
    try:
        lock.acquire()
    except OSError as error:
        if isinstance(error, filelock.Timeout) or error.errno not in UNSUPPORTED:
            raise
        path.unlink(missing_ok=True)
        yield False
        return
    try:
        yield True
    finally:
        if lock.lock_counter == 1:
            # still locked, so a process that has already opened it will find it unlinked
            path.unlink(missing_ok=True)
        lock.release()
