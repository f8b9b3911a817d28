"""Run the web application in one process, or in several.

At SIGTERM or SIGINT uvicorn accepts no more requests, finishes those that it has, and ends. A
second signal ends everything at once.
"""

import os
import signal
import socket
import tempfile
from functools import partial
from types import FrameType

import uvicorn
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors import Multiprocess

from fairseq_ext.decoding.engine_translator import available_threads
from fairseq_ext.serving import app, metrics, pairs
from fairseq_ext.serving.origins import OriginFilter, names_of
from fairseq_ext.serving.settings import Settings

CONNECTIONS = 1_000  # most requests at a time; uvicorn answers others with 503
ANSWERS = 60  # seconds within which a worker must answer that it is alive


def application(settings: Settings) -> ASGIApp:
    """Load the models and build the web application that this process serves."""
    metrics.forget_dead_workers()
    settings.versions.require_unchanged()
    measured = app.build(pairs.load(settings), settings)
    settings.versions.require_unchanged()
    shared = CORSMiddleware(
        measured, allow_origins=settings.cors, allow_methods=["GET", "POST"], allow_headers=["*"]
    )
    names = [*names_of(settings.host), *map(str.lower, settings.allow_host)]
    return OriginFilter(shared, names, settings.cors)


def serve(loaded: ASGIApp | None, settings: Settings, listener: socket.socket) -> int:
    """Serve requests until a signal ends the server; return the exit status.

    ``loaded`` is the application; it is None with several workers, which build their own.
    """
    config = uvicorn.Config(
        loaded or partial(application, settings),  # type: ignore[arg-type]  # of another library
        factory=loaded is None,
        workers=settings.workers,
        timeout_worker_healthcheck=ANSWERS,
        log_level="warning",
        access_log=False,
        http="h11",
        ws="none",
        loop="asyncio",
        server_header=False,
        limit_concurrency=CONNECTIONS,
        timeout_graceful_shutdown=settings.grace,
    )
    with listener:
        if loaded is not None:
            server = _Server(config)
            for number in (signal.SIGINT, signal.SIGTERM):
                # already now, because a signal may come while asyncio makes its loop
                signal.signal(number, server.handle_exit)
            server.run([listener])
            return 0
        threads = max(1, available_threads() // settings.workers)
        os.environ.setdefault("OMP_NUM_THREADS", str(threads))
        with tempfile.TemporaryDirectory(prefix="fairseq-ext-serve-") as folder:
            os.environ[metrics.FOLDER] = folder
            supervisor = _Supervisor(config, [listener])
            supervisor.run()
            return supervisor.status


class _Server(uvicorn.Server):
    """A server that ends with status 0 after the first signal, and at once after the second."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit:
            os._exit(128 + sig)  # a thread that nothing stops may be translating a batch
        self.should_exit = True  # uvicorn's own method would raise the signal again at the end


class _Supervisor(Multiprocess):
    """A supervisor that kills its workers at the second signal."""

    status = 0

    def terminate_all(self) -> None:
        for listener in self.sockets:
            listener.close()  # or clients would connect and wait in vain
        super().terminate_all()

    def join_all(self) -> None:
        while any(worker.process.is_alive() for worker in self.processes):
            if set(self.signal_queue) & {signal.SIGINT, signal.SIGTERM}:
                self.status = 1
                for worker in self.processes:
                    worker.process.kill()
            for worker in self.processes:
                worker.process.join(0.1)
        if any(worker.exitcode == STARTUP_FAILURE for worker in self.processes):
            self.status = 1
