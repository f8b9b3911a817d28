"""Run commands as forks of a process that has imported fairseq, which saves seconds for each.

The fork runs the script itself, with its own arguments, folder, environment, streams, plugin import
and exit. The test of the quickstart starts every command in a *fresh* interpreter instead.

There are two processes to fork. The first has imported fairseq and changed nothing in it. The
second has also imported fairseq's commands and then the plugin. It is forked for fairseq's commands
with ``--user-dir user_dir``, in which a further import of the plugin changes nothing.

`call` sends JSON and standard streams to one of these processes, which forks. `programs` makes a
folder for PATH. A program in it sends its own streams, and exits like the fork.
"""

import contextlib
import functools
import importlib
import json
import logging
import os
import select
import shlex
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

LONGEST = 1 << 17  # most bytes of a request
PREFIX = "forking-"  # of the name of the folder that `programs` makes
SERVERS: list[object] = []  # kept, so that their pipes stay open while this process lives
USER_DIR = str(Path(__file__).parents[2] / "user_dir")
WITH_PLUGIN = ("train", "generate", "interactive", "validate", "preprocess")
"""The commands that the second process has imported."""


@functools.cache
def programs(owner: int) -> Path:
    """Make a folder of programs that run in forks; it exists until the process ``owner`` ends."""
    import subprocess
    import tempfile

    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    listeners = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2)]
    for listener, name in zip(listeners, ("socket", "socket-with-plugin"), strict=True):
        listener.bind(str(folder / name))
        listener.listen(64)
    descriptors = [listener.fileno() for listener in listeners]
    server = subprocess.Popen(
        [sys.executable, __file__, "serve", *map(str, descriptors), folder],
        pass_fds=descriptors,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,  # otherwise a fork would treat a pipe as seekable
        stderr=subprocess.DEVNULL,
    )
    for listener in listeners:
        listener.close()
    SERVERS.append(server)
    (folder / "bin").mkdir()
    scripts = Path(sys.executable).parent
    for script in [scripts / "python", scripts / "torchrun", *scripts.glob("fairseq-*")]:
        words = [sys.executable, "-IS", __file__, "ask", folder / "socket", script]
        program = folder / "bin" / script.name
        program.write_text(f'#!/bin/sh\nexec {shlex.join(map(str, words))} "$@"\n')
        program.chmod(0o755)
    return folder / "bin"


def send(
    connection: socket.socket,
    address: str,
    words: list[str],
    streams: Sequence[int],
    cwd: str,
    environment: Mapping[str, str],
) -> int:
    """Ask for a fork that runs a script, ``-m`` a module or ``-c`` code; return its process id."""
    if words[0].endswith("/python"):
        words = words[1:]
    elif USER_DIR in words and Path(words[0]).name.removeprefix("fairseq-") in WITH_PLUGIN:
        address += "-with-plugin"
    content = {"words": words, "cwd": cwd, "environment": dict(environment)}
    connection.connect(address)
    request = json.dumps({**content, "group": os.getpgrp()}).encode()
    socket.send_fds(connection, [request], streams)
    return json.loads(connection.recv(64))


def can_run(words: list[str]) -> bool:
    """Return whether a fork can run a command: ``python`` needs a script, ``-m`` or ``-c``."""
    python = words[0].endswith("/python")
    return not python or words[1:2] in (["-c"], ["-m"]) or words[1].endswith(".py")


def ask(address: str, *words: str) -> None:
    """Let a fork run a program with the streams of this process; exit like the fork."""
    if not can_run([*words, ""]):
        os.execv(words[0], words)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        process = send(connection, address, [*words], [0, 1, 2], str(Path.cwd()), os.environ)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, _: os.kill(process, number))
        status = json.loads(connection.recv(64))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # nohup ignores the last
        signal.signal(number, signal.SIG_DFL)
    if status < 0:
        os.kill(os.getpid(), -status)
    sys.exit(status)


def call(words: list[str], stdin: str, timeout: float, cwd: Path, environment: dict) -> tuple:
    """Let a fork run a program that reads ``stdin``; return its status, output and errors."""
    import tempfile

    address = str(programs(os.getpid()).with_name("socket"))
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8") as source,
        tempfile.TemporaryFile("w+", encoding="utf-8") as out,
        tempfile.TemporaryFile("w+", encoding="utf-8") as err,
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection,
    ):
        source.write(stdin)
        source.seek(0)
        connection.settimeout(timeout)
        streams = [file.fileno() for file in (source, out, err)]
        send(connection, address, words, streams, str(cwd), environment)
        status = json.loads(connection.recv(64))
        for file in (out, err):
            file.seek(0)
        return status, out.read(), err.read()


def serve(listener: socket.socket) -> bool:
    """Answer requests until standard input ends; return True in a fork that must run a command."""
    running: dict[int, tuple[int, socket.socket]] = {}  # id and client of each process, by handle
    while True:
        clients = {client: process for process, client in running.values()}
        ready = select.select([listener, sys.stdin, *running, *clients], [], [])[0]
        for handle in running.keys() & ready:
            process, client = running.pop(handle)
            os.close(handle)
            status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
            with contextlib.suppress(OSError):  # the client has ended
                client.sendall(json.dumps(status).encode())
            client.close()
            del clients[client]
        for client in clients.keys() & ready:  # the client has ended
            os.kill(clients[client], signal.SIGKILL)
        if sys.stdin in ready:
            for process in clients.values():
                os.kill(process, signal.SIGKILL)
            return False
        if listener not in ready:
            continue
        client = listener.accept()[0]
        message, streams, _, _ = socket.recv_fds(client, LONGEST, 3)
        process = os.fork() if message else -1
        if process == 0:
            for connection in (listener, client, *clients):
                connection.close()
            for handle in running:
                os.close(handle)
            become(json.loads(message), streams)
            return True
        for stream in streams:
            os.close(stream)
        if message:
            with contextlib.suppress(OSError):
                client.sendall(json.dumps(process).encode())
            running[os.pidfd_open(process)] = process, client


def become(request: dict, streams: list[int]) -> None:
    """Take over the streams, folder, environment and arguments of a request."""
    import tempfile

    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    with contextlib.suppress(PermissionError):  # the group is of another session
        os.setpgid(0, request["group"])  # a signal to the caller's group ends this fork, too
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    tempfile.tempdir = None  # to be chosen again, by the new environment
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = request["words"]
    is_script = sys.argv[0] not in ("-c", "-m")
    sys.path[0] = str(Path(sys.argv[0]).parent) if is_script else request["cwd"]


def run_program() -> None:
    """Run what ``sys.argv`` names, as ``python`` would."""
    import runpy

    name = sys.argv[0]
    if name == "-c":
        exec(sys.argv.pop(1), {"__name__": "__main__"})
    elif name == "-m":
        runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(name, run_name="__main__")


def leave(status: object) -> None:
    """Exit like Python, but leave the modules as they are.

    Python clears the modules at its end. In a fork, this copies all their memory, which takes most
    of the time of a small command. Code of ``-c`` ends as Python does. So a crash at Python's very
    end shows only with ``-c``, or if ``FRESH_COMMANDS`` is set.
    """
    import atexit
    import gc
    import threading

    threading._shutdown()
    atexit._run_exitfuncs()
    gc.collect()
    if status is not None and not isinstance(status, int):
        print(status, file=sys.stderr)
        status = 1
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):  # Python flushes again, and reports the error
        sys.exit(status)
    os._exit(status or 0)


def preload() -> None:
    """Import what a training and a translation import, before the first fork."""
    import gc

    import fairseq
    import fairseq.sequence_generator  # noqa: F401
    import torch._dynamo  # noqa: F401  (torch's optimizers do it, in a second and a half)

    from tests.support import hydra_parser

    hydra_parser.remember()
    hydra_parser.parse_defaults()
    # This imports most of our modules; none of them changes anything before `register()`.
    import fairseq_ext.plugin.patches  # noqa: F401

    # `import fairseq` logs a line, which sets up logging; the commands must set it up themselves.
    logging.root.handlers.clear()
    logging.root.setLevel(logging.WARNING)
    gc.freeze()  # or a fork's garbage collector would write to all shared memory, and so copy it


def register() -> dict[str, dict]:
    """Import fairseq's commands and register the plugin; return how each command sets up logging.

    The imports would set up logging here. This is prevented, because each fork must do it.
    """
    import gc
    from unittest import mock

    import fairseq_ext
    from tests.support import hydra_parser

    logs: dict[str, dict] = {}
    for name in WITH_PLUGIN:
        with mock.patch.object(logging, "basicConfig") as configure:
            importlib.import_module(f"fairseq_cli.{name}")
        if configure.called:
            logs[f"fairseq-{name}"] = configure.call_args.kwargs
    fairseq_ext.register()
    hydra_parser.parse_defaults()  # of the plugin's options, too
    gc.freeze()
    return logs


def main() -> None:
    import shutil
    import traceback

    mode, *arguments = sys.argv[1:]
    if mode == "ask":
        ask(*arguments)
    sys.path[0] = str(Path(__file__).parents[2])
    preload()
    *descriptors, folder = arguments
    plain, with_plugin = (socket.socket(fileno=int(number)) for number in descriptors)
    logs: dict[str, dict] = {}
    failure = ""
    if os.fork():
        with_plugin.close()
        if not serve(plain):
            shutil.rmtree(folder, ignore_errors=True)
            return
    else:
        plain.close()
        try:
            logs = register()
        except Exception:  # each fork reports it
            failure = traceback.format_exc()
        if not serve(with_plugin):
            return
        if failure:
            sys.exit(failure)
    command = Path(sys.argv[0]).name
    if command in logs:
        logging.basicConfig(**logs[command])
    finalizes = sys.argv[0] == "-c"
    status: object = 0
    try:
        run_program()
    except SystemExit as end:
        status = end.code
    except Exception:
        sys.excepthook(*sys.exc_info())
        status = 1
    if finalizes:
        sys.exit(status)
    leave(status)


if __name__ == "__main__":
    main()
