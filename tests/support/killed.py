"""Kill processes at chosen file operations of their own.

A random moment hardly ever falls into the milliseconds in which a checkpoint is written; a chosen
file operation always does. The process chooses it before it starts its command.
"""

import builtins
import io
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.harness import REPO

WATCHED = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "shutil.copyfile")
"""Python's audit events of operations that change a folder (``os.replace`` is a rename)."""


def die() -> None:
    """Kill (``kill -9``) this process and the processes that it has started."""
    os.killpg(0, signal.SIGKILL)


def _writes(event: str, arguments: tuple[Any, ...]) -> bool:
    if event != "open":
        return event in WATCHED
    mode, flags = arguments[1], arguments[2]
    if isinstance(mode, str):
        return any(letter in mode for letter in "wax+")
    return isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR))


def at_operation(number: int, folder: Path, count_to: Path | None = None) -> Callable[[], None]:
    """Die right before operation ``number`` (from 1) that changes something in ``folder``.

    With ``count_to``, the number of operations so far is kept in that file.
    """
    prefix = str(folder)

    def hook_in() -> None:
        done = 0

        def hook(event: str, arguments: tuple[Any, ...]) -> None:
            nonlocal done
            if event not in WATCHED or not _writes(event, arguments):
                return
            if not any(str(path).startswith(prefix) for path in arguments[:2]):
                return
            done += 1
            if done == number:
                die()
            if count_to is not None:
                descriptor = os.open(count_to, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
                os.write(descriptor, b"%d" % done)
                os.close(descriptor)

        sys.addaudithook(hook)

    return hook_in


class _Dying(io.BufferedWriter):
    """A file whose process dies when a given number of bytes has been written to such files."""

    left = 0

    def write(self, data: Any) -> int:
        data = bytes(data)
        if len(data) >= _Dying.left:
            super().write(data[: _Dying.left])
            self.flush()
            die()
        _Dying.left -= len(data)
        return super().write(data)


def at_byte(number: int, folder: Path) -> Callable[[], None]:
    """Die when ``number`` bytes have been written to binary files in ``folder``."""
    prefix, original = str(folder), builtins.open

    def dying_open(file: Any, mode: str = "r", *rest: Any, **options: Any) -> Any:
        if str(file).startswith(prefix) and "w" in mode and "b" in mode:
            return _Dying(io.FileIO(file, "w"))
        return original(file, mode, *rest, **options)

    def replace_open() -> None:
        _Dying.left = number
        shutil._USE_CP_SENDFILE = False  # copy by write()
        builtins.open = io.open = dying_open

    return replace_open


# A program that runs a command of ours, and dies at the nth operation in a folder.
DYING = """
import sys
from fairseq_ext import cli
from tests.support import killed
killed.at_operation(int(sys.argv[1]), sys.argv[2])()
cli.main(sys.argv[3:])
"""


def die_in_command(number: int, folder: Path, *words: str) -> None:
    """Run a command of ours, which must die at operation ``number`` in the folder."""
    command = [sys.executable, "-c", DYING, str(number), str(folder), *words]
    done = subprocess.run(command, stderr=subprocess.DEVNULL, cwd=REPO, start_new_session=True)
    assert done.returncode == -signal.SIGKILL
