"""A command that a fork of ``preloaded.py`` runs, with the caller's streams and environment.

python -IS forked_command.py SOCKET PROGRAM [ARGUMENT...]: PROGRAM is a console script, or python,
which runs itself unless its first argument is a script. The shell's side of ``forking.py``.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path


def request(
    address: str,
    words: Sequence[str],
    folder: str,
    environment: Mapping[str, str],
    streams: Sequence[int],
) -> tuple[socket.socket, int]:
    """Have a command run; a connection that will say how it ended, and the process's number."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(address)
    content = {"words": words, "cwd": folder, "environment": dict(environment)}
    content["group"] = os.getpgrp()
    socket.send_fds(connection, [json.dumps(content).encode()], streams)
    return connection, json.loads(connection.recv(64))


def main() -> None:
    address, program, *arguments = sys.argv[1:]
    words = [program, *arguments]
    if program.endswith("/python"):
        if not arguments or not arguments[0].endswith(".py"):
            os.execv(program, words)
        words = arguments
    connection, process = request(address, words, str(Path.cwd()), os.environ, (0, 1, 2))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: os.kill(process, number))
    status = json.loads(connection.recv(64))
    sys.exit(status if status >= 0 else 128 - status)  # as a shell says it of a signal


if __name__ == "__main__":
    main()
