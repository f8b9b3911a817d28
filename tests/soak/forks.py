"""Commands as forks of this process, which has fairseq and the plugin loaded.

A command that is started 200 times would spend nearly all its time importing. A fork is a process
of its own with all that a command does after its imports; what fresh interpreters do differently
is checked by the tests, which start them.
"""

import atexit
import os
import runpy
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.support import forking
from tests.support.harness import BIN, USER_DIR


def preload() -> None:
    """Import all that a training imports, and the plugin; call it before the first fork."""
    forking.preload()
    import fairseq_cli.preprocess  # commands are wrapped if they are there
    import fairseq_cli.train  # noqa: F401
    from fairseq import utils

    arguments = type("Arguments", (), {"user_dir": str(USER_DIR)})
    utils.import_user_module(arguments)


def start(
    words: Sequence[object],
    log: Path,
    *,
    first: Callable[[], None] = lambda: None,
    **environment: str,
) -> int:
    """Fork a script that calls ``first`` and then prints to ``log``; returns its number."""
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        atexit._clear()  # this process's clean-up, of its temporary folders for one, is not theirs
        os.setpgid(0, 0)
        log_descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(log_descriptor, 1)
        os.dup2(log_descriptor, 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.environ.update(environment)
        sys.argv = [str(BIN / str(words[0])), *map(str, words[1:])]
        sys.path[0] = str(Path(sys.argv[0]).parent)
        first()
        status = _run(sys.argv[0])
        atexit._run_exitfuncs()
    finally:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except OSError:
                status = status or 120  # as Python does
        os._exit(status)


def _run(script: str) -> int:
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as stop:
        if isinstance(stop.code, int) or stop.code is None:
            return stop.code or 0
        print(stop.code, file=sys.stderr)
        return 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def poll(child: int) -> int | None:
    """Its status as ``subprocess`` gives it, or None while it runs."""
    done, status = os.waitpid(child, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if done else None


def wait(child: int, timeout: float = 600) -> int:
    """Its status as ``subprocess`` gives it; after ``timeout`` seconds it is killed."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if (status := poll(child)) is not None:
            return status
        time.sleep(0.01)
    kill(child)
    raise AssertionError(f"process {child} did not end within {timeout:.0f} s")


def kill(child: int) -> int:
    """``kill -9`` for its process group; returns its status."""
    try:
        os.killpg(child, signal.SIGKILL)
    except ProcessLookupError:
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def run(words: Sequence[object], log: Path, *, timeout: float = 600, **how: object) -> int:
    """Start a command and wait for its status."""
    return wait(start(words, log, **how), timeout)
