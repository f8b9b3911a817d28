"""Locks between processes, and locks between threads that stay usable in a forked child.

Processes use ``flock``. The kernel releases these locks when a process ends in any way, so a killed
process never blocks the next one. An NFS server does so too, but keeps the locks of a crashed
machine for up to 90 seconds (on Linux). On a file system without locks there is no substitute: a
lock that is the mere existence of a file would outlive a killed process.
"""

import contextlib
import errno
import os
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

UNSUPPORTED = {errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP}


@contextlib.contextmanager
def held(path: Path, *, wait: bool) -> Iterator[bool]:
    """Hold the lock file ``path`` in an existing folder during the block, then remove it.

    On a file system without locks, yield False and hold nothing; otherwise yield True. Raise
    ``filelock.Timeout`` if another process holds the lock and ``wait`` is False.
    """
    import filelock  # here, because the import takes as long as translating a sentence

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
            # Before the release, so that a waiting process, which has opened the file, notices.
            path.unlink(missing_ok=True)
        lock.release()


_LOCKS: "weakref.WeakSet[ForkSafeLock]" = weakref.WeakSet()


class ForkSafeLock:
    """A lock between threads. In a forked child, which has one thread, the lock is free."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        _LOCKS.add(self)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Wait for the lock, and hold it during the block."""
        with self._lock:
            yield


def _renew() -> None:
    for lock in list(_LOCKS):
        lock._lock = threading.Lock()


os.register_at_fork(after_in_child=_renew)
