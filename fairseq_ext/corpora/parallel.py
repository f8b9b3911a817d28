"""Spread work over processes, with results in order and few pieces in memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from fairseq_ext.utils.errors import DataError

Item = TypeVar("Item")
Result = TypeVar("Result")


def ordered_map(
    function: Callable[[Item], Result], items: Iterable[Item], workers: int
) -> Iterator[Result]:
    """Yield ``map(function, items)``, computed by ``workers`` processes; 1 is this process.

    At most three items for each process are taken ahead of the results.

    Raises:
        DataError: a process was killed, which the system does when memory is short.
    """
    if workers == 1:
        yield from map(function, items)
        return
    waiting: deque[Future[Result]] = deque()
    pool = ProcessPoolExecutor(workers)
    try:
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) >= 3 * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool:
        raise DataError(
            "a worker process was killed, perhaps for want of memory; run the same command again "
            "with fewer `--workers`."
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)
