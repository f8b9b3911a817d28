"""Translate the sentences of concurrent requests together.

One thread translates, and other requests wait meanwhile. The next batch takes a sentence from each
of them in turn, so that a long request hardly delays a short one. A translation does not depend on
the others in its batch.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple

from fairseq_ext.decoding.search import Candidate, Translates
from fairseq_ext.serving.metrics import Metrics
from fairseq_ext.serving.settings import Refusal
from fairseq_ext.utils.errors import DataError

_LOG = logging.getLogger(__name__)


BUSY = "The queue is full; try again later."
WAIT = {"Retry-After": "1"}


class Sentence(NamedTuple):
    """An encoded sentence that waits to be translated."""

    tokens: str  # separated by spaces
    length: int  # number of tokens with the model's special symbols


@dataclass(eq=False)
class _Request:
    """A request with sentences that wait, or are being translated."""

    model: Translates
    sentences: deque[tuple[int, Sentence]]
    results: list[list[Candidate]]
    missing: int
    done: asyncio.Future[list[list[Candidate]]] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    def deliver(self, place: int, result: list[Candidate] | Refusal) -> None:
        if self.done.done():  # cancelled, or another of its sentences has failed
            return
        if isinstance(result, Refusal):
            self.done.set_exception(result)
            return
        self.results[place] = result
        self.missing -= 1
        if not self.missing:
            self.done.set_result(self.results)


class _Taken(NamedTuple):
    """A sentence taken from the queue for a batch, and its place in the request."""

    request: _Request
    place: int
    sentence: Sentence


class Batcher:
    """The queue of one process, and the thread that empties it.

    Args:
        metrics: counts the queue and the batches.
        room: the most sentences that may wait.
        batch_size: the most sentences to translate together.
        max_tokens: the most source tokens to translate together; a longer sentence is alone.

    Attributes:
        waiting: number of waiting sentences.
    """

    def __init__(self, metrics: Metrics, *, room: int, batch_size: int, max_tokens: int) -> None:
        self._metrics, self._room = metrics, room
        self._batch_size, self._max_tokens = batch_size, max_tokens
        self._requests: deque[_Request] = deque()
        self._more = asyncio.Event()
        self.waiting = 0
        self._fault = ""

    async def translate(
        self, model: Translates, sentences: Sequence[Sentence]
    ) -> list[list[Candidate]]:
        """Translate sentences: the translations of each in order, best first.

        If the caller is cancelled, sentences that still wait are not translated.

        Raises:
            Refusal: 429, if too many sentences already wait; 500, if the model could not translate
                one of them; 503, if somebody wrote to the model's file.
        """
        if not sentences:
            return []
        if self.waiting + len(sentences) > self._room:
            raise Refusal(429, BUSY, WAIT)
        queue = deque(enumerate(sentences))
        request = _Request(model, queue, [[] for _ in sentences], len(sentences))
        self._requests.append(request)
        self._count(len(sentences))
        self._more.set()
        try:
            return await request.done
        finally:
            self._count(-len(request.sentences))
            request.sentences.clear()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Translate during the block, and finish the last batch at its end.

        All batches are translated by one thread, because the engine's memory belongs to it.
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
            try:
                results = await loop.run_in_executor(thread, _translated, batch)
                for item, candidates in zip(batch, results, strict=True):
                    item.request.deliver(item.place, candidates)
                self._metrics.translated([item.sentence.length for item in batch], results)
            except DataError as error:
                if str(error) != self._fault:  # log it once, not for each batch
                    _LOG.error("%s", error)
                self._fault = str(error)
                refusal = Refusal(503, "The model's file has changed; start the server again.")
                for item in batch:
                    item.request.deliver(item.place, refusal)
            except Exception:  # or the loop would end, and nothing would be translated any more
                _LOG.exception("a batch could not be translated")
                for item in batch:
                    item.request.deliver(item.place, _failed())

    def _take(self) -> list[_Taken]:
        """Take the next batch from one model's requests, a sentence of each in turn."""
        batch: list[_Taken] = []
        later: list[_Request] = []
        tokens = 0
        while self._requests:
            request = self._requests.popleft()
            if not request.sentences:
                continue
            length = request.sentences[0][1].length
            full = len(batch) == self._batch_size or tokens + length > self._max_tokens
            if batch and full:
                later.append(request)
                break
            if batch and request.model is not batch[0].request.model:
                later.append(request)
                continue
            batch.append(_Taken(request, *request.sentences.popleft()))
            tokens += length
            self._requests.append(request)
        self._requests.extendleft(reversed(later))
        self._count(-len(batch))
        return batch

    def _count(self, change: int) -> None:
        self.waiting += change
        self._metrics.queue.set(self.waiting)


def _failed() -> Refusal:
    return Refusal(500, "A sentence could not be translated.")


def _translated(batch: Sequence[_Taken]) -> list[list[Candidate] | Refusal]:
    """Translate a batch or, if that fails, each sentence alone, so that only bad ones fail."""
    try:
        return [*batch[0].request.model.translate([item.sentence.tokens for item in batch])]
    except DataError:  # the model's file is at fault; faulty sentences were found before
        raise
    except Exception as error:
        if len(batch) == 1:
            _LOG.error("a sentence could not be translated: %r", error)
            return [_failed()]
        return [result for item in batch for result in _translated([item])]
