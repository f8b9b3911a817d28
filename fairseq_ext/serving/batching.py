"""Translate the sentences of concurrent requests together.

While one thread translates, other requests wait. The next batch takes a sentence from each waiting
request in turn, so that a long request hardly delays a short one. A translation does not depend on
the other sentences in its batch.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from typing import NamedTuple

from fairseq_ext.decoding.loading import Translates
from fairseq_ext.decoding.search import Candidate
from fairseq_ext.serving.metrics import Metrics
from fairseq_ext.serving.requests import Refusal
from fairseq_ext.utils.errors import DataError

_LOG = logging.getLogger(__name__)

BUSY = "The queue is full; try again later."
WAIT = {"Retry-After": "1"}


class Sentence(NamedTuple):
    """A sentence as tokens of the model."""

    tokens: str  # separated by spaces
    length: int  # number of tokens with the model's special symbols


@dataclass(eq=False)
class _Queued:
    """A sentence in the queue or in a batch, with its model and the future for its translations."""

    model: Translates
    sentence: Sentence
    done: asyncio.Future[list[Candidate]]


class Batcher:
    """The queue of sentences of one process, and the thread that translates them.

    At most ``room`` sentences may wait. A batch has at most ``batch_size`` sentences and
    ``max_tokens`` source tokens; a sentence with more tokens is translated alone.
    """

    def __init__(self, metrics: Metrics, *, room: int, batch_size: int, max_tokens: int) -> None:
        self._metrics, self._room = metrics, room
        self._batch_size, self._max_tokens = batch_size, max_tokens
        self._requests: deque[deque[_Queued]] = deque()
        self._more = asyncio.Event()
        self.waiting = 0  # number of sentences
        self._fault = ""

    async def translate(
        self, model: Translates, sentences: Sequence[Sentence]
    ) -> list[list[Candidate]]:
        """Translate sentences; return the translations of each, best first.

        If the caller is cancelled, sentences that still wait are not translated. Refuse the request
        if too many sentences already wait (429), the model could not translate one of them (500),
        or the model's file has changed (503).
        """
        if self.waiting + len(sentences) > self._room:
            raise Refusal(429, BUSY, WAIT)
        loop = asyncio.get_running_loop()
        results = [loop.create_future() for _ in sentences]
        request = deque(map(_Queued, repeat(model), sentences, results))
        self._requests.append(request)
        self._count(len(request))
        self._more.set()
        try:
            return await asyncio.gather(*results)
        finally:
            self._count(-len(request))
            request.clear()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Translate the sentences of the queue until the ``with`` block ends.

        Then finish the last batch. A single thread translates all batches, because the engine's
        memory belongs to one thread.
        """
        with ThreadPoolExecutor(1, "translate") as thread:
            work = asyncio.create_task(self._work(thread))
            try:
                yield
            finally:
                work.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await work

    async def _work(self, thread: ThreadPoolExecutor) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._more.wait()
            batch = self._take()
            if not batch:
                self._more.clear()
                continue
            results = await loop.run_in_executor(thread, self._translated, batch)
            for item, result in zip(batch, results, strict=True):
                if item.done.done():  # the request is cancelled, or another sentence has failed
                    continue
                if isinstance(result, Refusal):
                    item.done.set_exception(result)
                else:
                    item.done.set_result(result)
            self._metrics.translated([item.sentence.length for item in batch], results)

    def _take(self) -> list[_Queued]:
        """Take a batch from the queue: sentences for one model, one from each request in turn."""
        batch: list[_Queued] = []
        later: list[deque[_Queued]] = []
        tokens = 0
        while self._requests:
            request = self._requests.popleft()
            if not request:
                continue
            length = request[0].sentence.length
            full = len(batch) == self._batch_size or tokens + length > self._max_tokens
            if batch and full:
                later.append(request)
                break
            if batch and request[0].model is not batch[0].model:
                later.append(request)
                continue
            batch.append(request.popleft())
            tokens += length
            self._requests.append(request)
        self._requests.extendleft(reversed(later))
        self._count(-len(batch))
        return batch

    def _count(self, change: int) -> None:
        self.waiting += change
        self._metrics.queue.set(self.waiting)

    def _translated(self, batch: Sequence[_Queued]) -> list[list[Candidate] | Refusal]:
        """Translate a batch or, if a sentence makes it fail, each of its sentences alone."""
        try:
            results = batch[0].model.translate([item.sentence.tokens for item in batch])
            if len(results) != len(batch):
                raise ValueError(f"{len(results)} translations of {len(batch)} sentences")
            return [*results]
        except DataError as error:  # the model's file is at fault, so no sentence can succeed
            if str(error) != self._fault:  # log it once, not for each batch
                _LOG.error("%s", error)
            self._fault = str(error)
            fault = "The model's file has changed; start the server again."
            return [Refusal(503, fault) for _ in batch]
        except Exception as error:
            if len(batch) == 1:
                _LOG.error("a sentence could not be translated: %r", error)
                return [Refusal(500, "A sentence could not be translated.")]
            return [result for item in batch for result in self._translated([item])]
