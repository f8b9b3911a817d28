"""A process that has imported stock fairseq, and forks to run each command that the tests ask for.

Imports take seconds, most of what a tiny command costs. A fork has it already, and
then runs the console script itself: its own arguments, folder, environment, streams, plugin import
and exit. What a *fresh* interpreter does is tested by the recipes, which start every command.

python preloaded.py SOCKET: a request is a packet of JSON with stdin, stdout and stderr attached;
the answers are the process's number and, when it has ended, its status as ``subprocess`` gives it.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import runpy
import signal
import socket
import sys
from pathlib import Path

LONGEST = 1 << 17  # bytes of a request


def serve(client: socket.socket) -> bool:
    """Answer requests until the client goes; true in a fork, which has a command to run."""
    while True:
        message, streams, _, _ = socket.recv_fds(client, LONGEST, 3)
        if not message:
            return False
        child = os.fork()
        if child == 0:
            client.close()
            _become(json.loads(message), streams)
            return True
        for stream in streams:
            os.close(stream)
        client.sendall(json.dumps(child).encode())
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        client.sendall(json.dumps(status).encode())


def _become(request: dict, streams: list[int]) -> None:
    """Take over the streams, folder, environment and arguments of a request."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = request["words"]
    sys.path[0] = str(Path(sys.argv[0]).parent)


def main() -> None:
    import fairseq
    import fairseq.sequence_generator  # noqa: F401
    import torch._dynamo  # noqa: F401  (torch's optimizers do it, in a second and a half)
    from hydra.core.override_parser.overrides_parser import OverridesParser

    # Hydra's parser learns its grammar from what it reads, and fairseq asks it for every option.
    OverridesParser.create().parse_overrides(["a.b='c d'", "a.b=1e-3", "a.b=[1,2]", "a=null"])

    # A line that `import fairseq` logs has set logging up; the commands do it in their own way.
    logging.root.handlers.clear()
    logging.root.setLevel(logging.WARNING)
    gc.freeze()  # or a fork's collector would write to, and so copy, all that they share
    if serve(socket.socket(fileno=int(sys.argv[1]))):
        try:
            runpy.run_path(sys.argv[0], run_name="__main__")
        except Exception:
            sys.excepthook(*sys.exc_info())
            sys.exit(1)


if __name__ == "__main__":
    main()
