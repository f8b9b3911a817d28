"""A lock that a forked process finds free (no torch, no fairseq)."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

_LOCKS: weakref.WeakSet[ForkSafeLock] = weakref.WeakSet()


class ForkSafeLock:
    """A lock for one thread at a time, renewed in the child of a fork.

    The thread that held it at the fork does not exist in the child, so nobody would release it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        _LOCKS.add(self)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Wait for the lock, and keep it for as long as the block takes."""
        with self._lock:
            yield


def _renew() -> None:
    for one in list(_LOCKS):
        one._lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
