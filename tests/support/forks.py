"""What a forked process can do."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any


def in_a_fork(work: Callable[[], Any], at_the_fork: AbstractContextManager | None = None) -> Any:
    """The result of ``work`` in a child that is forked within ``at_the_fork``; it has a minute."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    forks = multiprocessing.get_context("fork")
    child = forks.Process(target=lambda: sender.send(work()))
    with at_the_fork or nullcontext():
        child.start()
    try:
        assert receiver.poll(60), "the child hangs"
        return receiver.recv()
    finally:
        child.kill()
        child.join()
