"""Run ``fairseq-ext serve`` or ``demo`` as a process, and send it good and bad requests."""

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from tests.support.harness import BIN

JSON = {"Content-Type": "application/json"}
ENGLISH = {"source": "src", "target": "tgt"}


class Answer(NamedTuple):
    """An answer: its status, its headers, and its body, parsed if it is JSON."""

    status: int
    headers: http.client.HTTPMessage
    body: Any


def ask(
    port: int, path: str, body: Any = None, *, method: str | None = None, **headers: str
) -> Answer:
    """Send a GET, or a POST of JSON, a form or bytes, over a new connection."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    with contextlib.closing(connection):
        if isinstance(body, dict):
            body, headers = json.dumps(body), {**JSON, **headers}
        method = method or ("GET" if body is None else "POST")
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        text = answer.read()
        is_json = answer.headers.get_content_type() == "application/json"
        body = json.loads(text) if is_json and text else text
        return Answer(answer.status, answer.headers, body)


class Server:
    """A running ``fairseq-ext serve`` or ``demo``."""

    def __init__(
        self,
        folder: Path,
        *words: object,
        command: str = "serve",
        program: str | Path = BIN / "fairseq-ext",
        **environment: str,
    ) -> None:
        self.log = folder / "serve.log"
        variables = {**os.environ, "TMPDIR": str(folder), "OMP_NUM_THREADS": "1", **environment}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [str(program), command, *map(str, words), "--port", "0"],
                **{"stdout": subprocess.PIPE, "stderr": log, "text": True, "env": variables},
                **{"cwd": folder, "start_new_session": True},
            )
        self.address = self.process.stdout.readline().strip()
        self.port = urlsplit(self.address).port
        assert self.port, self.log.read_text()

    def ask(self, path: str, body: Any = None, **how: str) -> Answer:
        return ask(self.port, path, body, **how)

    def translate(self, q: Any, **options: object) -> Answer:
        return self.ask("/translate", {"q": q, **ENGLISH, **options})

    def figure(self, name: str) -> float:
        """Return a figure of ``/metrics``, or 0 if there is none yet."""
        page = self.ask("/metrics")
        assert page.status == 200, page
        lines = page.body.decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name + " "))

    @contextlib.contextmanager
    def half_a_request(self, body: bytes) -> Iterator[socket.socket]:
        """Open a connection over which the server has received half of a request's body."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=120) as client:
            client.sendall(
                b"POST /translate HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
                b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(body)
            )
            assert client.recv(100).startswith(b"HTTP/1.1 100 ")  # now the server waits
            client.sendall(body[: len(body) // 2])
            yield client

    def end(self, how: signal.Signals = signal.SIGTERM) -> str:
        """End the server, which must exit with status 0; return its log."""
        self.process.send_signal(how)
        assert self.process.wait(120) == 0, self.log.read_text()
        return self.log.read_text()

    def close(self) -> None:
        """Kill the server and its workers if they are still running."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()


@contextlib.contextmanager
def serving(folder: Path, *words: object, **how: Any) -> Iterator[Server]:
    """Run a server during the block; its log and temporary files are in ``folder``."""
    server = Server(folder, *words, **how)
    try:
        yield server
    finally:
        server.close()
