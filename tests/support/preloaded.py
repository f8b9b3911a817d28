"""A process that has imported fairseq, changes nothing in it, and forks to run a test's command.

Imports take seconds, most of what a tiny command costs. A fork has them already, and
then runs the console script itself: its own arguments, folder, environment, streams, plugin import
and exit. What a *fresh* interpreter does is tested by the quickstart, which starts every command.

python preloaded.py SOCKET FOLDER: a listening socket, served until standard input ends; then the
folder, which has its address, is removed. A connection's packet is a request in JSON with stdin,
stdout and stderr attached; the answers are the process's number and, when it has ended, its status
as ``subprocess`` gives it.
"""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import runpy
import selectors
import shutil
import signal
import socket
import sys
from pathlib import Path

LONGEST = 1 << 17  # bytes of a request


def serve(listener: socket.socket) -> bool:
    """Answer requests until standard input ends; true in a fork, which has a command to run."""
    clients: dict[int, socket.socket] = {}  # by the process that runs their command
    ended, wakeup = os.pipe()
    os.set_blocking(wakeup, False)
    os.set_blocking(ended, False)
    signal.set_wakeup_fd(wakeup)
    signal.signal(signal.SIGCHLD, lambda *_: None)  # only to be woken
    with selectors.DefaultSelector() as selector:
        for stream in (listener, ended, sys.stdin):
            selector.register(stream, selectors.EVENT_READ)
        while True:
            ready = {key.fileobj for key, _ in selector.select()}
            if listener in ready:
                client = listener.accept()[0]
                message, streams, _, _ = socket.recv_fds(client, LONGEST, 3)
                child = os.fork() if message else None
                if child == 0:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    for connection in (listener, client, *clients.values()):
                        connection.close()
                    os.close(ended)
                    os.close(wakeup)
                    _become(json.loads(message), streams)
                    return True
                for stream in streams:
                    os.close(stream)
                if child:
                    clients[child] = client
                    _answer(client, child)
            if ended in ready:
                os.read(ended, 4096)
                for child in list(clients):
                    process, status = os.waitpid(child, os.WNOHANG)
                    if process:
                        client = clients.pop(child)
                        _answer(client, os.waitstatus_to_exitcode(status))
                        client.close()
            if sys.stdin in ready:
                return False


def _answer(client: socket.socket, number: int) -> None:
    """Send a number to a client, who may have gone."""
    with contextlib.suppress(OSError):
        client.sendall(json.dumps(number).encode())


def _become(request: dict, streams: list[int]) -> None:
    """Take over the streams, folder, environment and arguments of a request."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    with contextlib.suppress(PermissionError):  # of another session
        os.setpgid(0, request["group"])  # so that who ends the caller's group ends it too
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

    # Most modules of ours, none of which changes anything before `register()` is called.
    import fairseq_ext.plugin.patches  # noqa: F401

    # A line that `import fairseq` logs has set logging up; the commands do it in their own way.
    logging.root.handlers.clear()
    logging.root.setLevel(logging.WARNING)
    gc.freeze()  # or a fork's collector would write to, and so copy, all that they share
    folder = sys.argv[2]
    if not serve(socket.socket(fileno=int(sys.argv[1]))):
        shutil.rmtree(folder, ignore_errors=True)
    else:
        try:
            runpy.run_path(sys.argv[0], run_name="__main__")
        except Exception:
            sys.excepthook(*sys.exc_info())
            sys.exit(1)


if __name__ == "__main__":
    main()
