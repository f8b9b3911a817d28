"""The end of a process: batches that are still being made in the background."""

from __future__ import annotations

import atexit
import contextlib
import queue
import time
import weakref
from collections.abc import Callable
from typing import Any

from fairseq_ext.plugin.patches import probes
from fairseq_ext.plugin.patches.table import Layer, Patch

PATIENCE = 5.0
"""Seconds to wait for the batch that is being made."""


def stop(thread: Callable[[], Any]) -> None:
    """End a ``BackgroundConsumer``, given a weak reference to it.

    It ends by itself after its next item once it has made as many as it should; room in the queue
    lets it get there. (Python itself keeps a running thread, also when its iterator is gone.)
    """
    consumer = thread()
    if consumer is None:
        return
    consumer._max_len = 0
    deadline = time.monotonic() + PATIENCE
    while consumer.is_alive() and time.monotonic() < deadline:
        with contextlib.suppress(queue.Empty):
            consumer._queue.get(timeout=0.02)


def stop_at_exit(original: Callable) -> Callable:
    def _create_consumer(self: Any) -> None:
        original(self)
        atexit.register(stop, weakref.ref(self._consumer))

    return _create_consumer


PATCHES = (
    Patch(
        name="end of the process",
        reason="a run that ends in the middle of an epoch, its work done, can die with `terminate "
        "called without an active exception` and status 134, because a thread is still making "
        "batches while Python shuts down",
        until="fairseq ends its background threads, or Python no longer kills daemon threads",
        needed=probes.abandons_threads,
        layers=(Layer("fairseq.data.iterators:BufferedIterator._create_consumer", stop_at_exit),),
    ),
)
