"""End the threads that still make batches when a process ends."""

from __future__ import annotations

import atexit
import contextlib
import queue
import time
import weakref
from collections.abc import Callable
from typing import Any

from fairseq_ext.plugin.table import Layer, Patch, around

PATIENCE = 5.0
"""Seconds to wait until the current batch is made."""


def stop(thread: Callable[[], Any]) -> None:
    """End a ``BackgroundConsumer``, given a weak reference to it.

    The thread ends after its next item when it has made as many items as it should, so this number
    is set to 0, and the queue is emptied so that the thread does not wait. (Python keeps a running
    thread alive, even if nobody uses its iterator any more.)
    """
    consumer = thread()
    if consumer is None:
        return
    consumer._max_len = 0
    deadline = time.monotonic() + PATIENCE
    while consumer.is_alive() and time.monotonic() < deadline:
        with contextlib.suppress(queue.Empty):
            consumer._queue.get(timeout=0.02)


@around
def stop_at_exit(original: Callable, self: Any) -> None:
    original(self)
    atexit.register(stop, weakref.ref(self._consumer))


PATCHES = (
    Patch(
        name="end of the process",
        kind="repair",
        reason="a run that ends in the middle of an epoch, its work done, can die with `terminate "
        "called without an active exception` and status 134, because a thread is still making "
        "batches while Python shuts down",
        layers=(Layer("fairseq.data.iterators:BufferedIterator._create_consumer", stop_at_exit),),
    ),
)
