"""The tests' side of ``preloaded.py``: ``subprocess.run`` for a console script, by a fork."""

from __future__ import annotations

import functools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path


@functools.cache
def _server(owner: int) -> tuple[subprocess.Popen, socket.socket]:
    """The server of the process ``owner``; it ends when its socket closes, with that process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        server = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("preloaded.py"), str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    return server, ours


def run(
    words: Sequence[str],
    cwd: Path | None,
    stdin: str | None,
    timeout: float,
    environment: Mapping[str, str],
) -> subprocess.CompletedProcess[str]:
    """Run a script of Python as ``subprocess.run(words, capture_output=True, text=True)`` does."""
    _, connection = _server(os.getpid())
    request = {"words": words, "cwd": str(cwd or Path.cwd()), "environment": dict(environment)}
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8") as source,
        tempfile.TemporaryFile("w+", encoding="utf-8") as out,
        tempfile.TemporaryFile("w+", encoding="utf-8") as err,
    ):
        source.write(stdin or "")
        source.seek(0)
        streams = [source.fileno(), out.fileno(), err.fileno()]
        connection.settimeout(None)
        socket.send_fds(connection, [json.dumps(request).encode()], streams)
        process = json.loads(connection.recv(64))
        connection.settimeout(timeout)
        try:
            status = json.loads(connection.recv(64))
        except TimeoutError:
            os.kill(process, signal.SIGKILL)
            connection.settimeout(None)
            connection.recv(64)
            raise subprocess.TimeoutExpired(words, timeout) from None
        for stream in (out, err):
            stream.seek(0)
        return subprocess.CompletedProcess(words, status, out.read(), err.read())
