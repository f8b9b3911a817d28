"""Count requests, sentences and tokens for Prometheus, summed over all workers.

If there are several workers, the server sets ``PROMETHEUS_MULTIPROC_DIR`` before it starts them.
Each worker writes its counts to files in that folder. A worker that is asked for the counts adds up
all files. Requests for unknown paths have the label ``other``, so that clients cannot make the page
of counts long.
"""

import os
import time
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

import prometheus_client as prometheus
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from starlette.types import ASGIApp, Message, Receive, Scope, Send

FOLDER = "PROMETHEUS_MULTIPROC_DIR"
PATHS = (
    *("/", "/docs", "/openapi.json", "/translate", "/detect", "/languages"),
    *("/health", "/metrics"),
)
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_SENTENCES = (1, 2, 4, 8, 16, 32, 64, 128)


class Metrics:
    """The counts and durations that the server keeps for Prometheus."""

    def __init__(self) -> None:
        self._registry = registry = prometheus.CollectorRegistry()
        counter = partial(prometheus.Counter, registry=registry)
        histogram = partial(prometheus.Histogram, registry=registry)
        self.queue = prometheus.Gauge(
            *("fairseq_ext_queue_sentences", "Sentences that wait to be translated."),
            registry=registry,
            multiprocess_mode="livesum",
        )
        self._requests = counter("fairseq_ext_requests", "Requests answered.", ("path", "status"))
        self._seconds = histogram(
            *("fairseq_ext_request_seconds", "Seconds from a request to its answer.", ("path",)),
            buckets=_SECONDS,
        )
        self._batches = histogram(
            "fairseq_ext_batch_sentences", "Sentences translated together.", buckets=_SENTENCES
        )
        self._tokens = counter(
            "fairseq_ext_tokens", "Tokens read and written, </s> included.", ("side",)
        )
        self._failures = counter(
            "fairseq_ext_failed_sentences", "Sentences that the model could not translate."
        )

    def answered(self, path: str, status: int, seconds: float) -> None:
        label = path if path in PATHS else "other"
        self._requests.labels(label, str(status)).inc()
        self._seconds.labels(label).observe(seconds)

    def translated(self, lengths: Sequence[int], results: Sequence[object]) -> None:
        """Count a batch, its failures, and the tokens of its sources and best translations.

        ``lengths`` has each sentence's number of source tokens. ``results`` has each sentence's
        translations, best first; a result that is not a list is a failure.
        """
        nbest = [candidates for candidates in results if isinstance(candidates, list)]
        best = [candidates[0] for candidates in nbest if candidates]
        self._batches.observe(len(lengths))
        self._tokens.labels("source").inc(sum(lengths))
        written = sum(len(candidate.tokens.split()) + 1 for candidate in best)
        self._tokens.labels("target").inc(written)
        self._failures.inc(len(results) - len(nbest))

    def page(self) -> bytes:
        """Return all counts and durations in the format of Prometheus."""
        if FOLDER not in os.environ:
            return prometheus.generate_latest(self._registry)
        together = prometheus.CollectorRegistry()
        _AllWorkers(together)
        return prometheus.generate_latest(together)


class _AllWorkers(MultiProcessCollector):
    """A collector of the metrics of all workers; it skips a starting worker's empty file."""

    def collect(self) -> Iterable[prometheus.Metric]:
        return self.merge([str(path) for path in Path(self._path).glob("*.db") if _size(path)])


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # removed, because its worker has died
        return 0


def forget_dead_workers() -> None:
    """Leave the sentences of dead workers out of the count of waiting sentences."""
    folder = os.environ.get(FOLDER)
    for path in Path(folder).glob("gauge_live*_*.db") if folder else ():
        pid = path.stem.rpartition("_")[2]
        try:
            os.kill(int(pid), 0)
        except ProcessLookupError:
            mark_process_dead(pid)
        except (PermissionError, ValueError):
            continue


class RequestMeter:
    """ASGI middleware that counts requests by path and status, and measures their time."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status = time.perf_counter(), 500

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, noting)
        finally:
            self._metrics.answered(scope["path"], status, time.perf_counter() - began)
