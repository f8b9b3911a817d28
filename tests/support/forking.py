"""The tests' side of ``preloaded.py``: ``subprocess.run`` for a console script, by a fork."""

from __future__ import annotations

import functools
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support import forked_command


@functools.cache
def _server(owner: int) -> tuple[subprocess.Popen, Path]:
    """Start the server of the process ``owner``, with which it ends, and its folder with it."""
    folder = Path(tempfile.mkdtemp(prefix="forking-"))
    program = Path(__file__).with_name("preloaded.py")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(folder / "socket"))
        listener.listen(64)
        server = subprocess.Popen(
            [sys.executable, program, str(listener.fileno()), folder],
            pass_fds=[listener.fileno()],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
    return server, folder


@functools.cache
def programs(owner: int) -> Path:
    """A folder for PATH: fairseq's commands and ours, and python for scripts, each by a fork."""
    _, folder = _server(owner)
    (folder / "bin").mkdir()
    scripts = Path(sys.executable).parent
    for script in [scripts / "python", *scripts.glob("fairseq-*")]:
        words = [sys.executable, "-IS", forked_command.__file__, folder / "socket", script]
        program = folder / "bin" / script.name
        program.write_text(f'#!/bin/sh\nexec {shlex.join(map(str, words))} "$@"\n')
        program.chmod(0o755)
    return folder / "bin"


def run(
    words: Sequence[str],
    cwd: Path | None,
    stdin: str | None,
    timeout: float,
    environment: Mapping[str, str],
) -> subprocess.CompletedProcess[str]:
    """Run a script of Python as ``subprocess.run(words, capture_output=True, text=True)`` does."""
    _, folder = _server(os.getpid())
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8") as source,
        tempfile.TemporaryFile("w+", encoding="utf-8") as out,
        tempfile.TemporaryFile("w+", encoding="utf-8") as err,
    ):
        source.write(stdin or "")
        source.seek(0)
        streams = [source.fileno(), out.fileno(), err.fileno()]
        connection, process = forked_command.request(
            str(folder / "socket"), words, str(cwd or Path.cwd()), environment, streams
        )
        with connection:
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
