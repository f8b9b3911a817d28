"""Kill processes at chosen file operations of their own.

A random moment hardly ever falls into the milliseconds in which a checkpoint is written; a chosen
file operation always does. `killed.py CODE SCRIPT ARGUMENTS …` runs a Python script after some
code, such as `at_operation(3, "folder")`.
"""

import builtins
import io
import os
import runpy
import shutil
import signal
import subprocess
import sys
from functools import partial  # noqa: F401  (for the code)
from pathlib import Path
from typing import Any

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


def at_operation(number: int, folder: str, count_to: str = "") -> None:
    """Die right before operation ``number`` (from 1) of those that change ``folder``.

    The file ``count_to``, if any, always has the number of operations so far.
    """
    done = 0

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal done
        if event not in WATCHED or not _writes(event, arguments):
            return
        if not any(str(path).startswith(folder) for path in arguments[:2]):
            return
        done += 1
        if done == number:
            die()
        if count_to:
            descriptor = os.open(count_to, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.write(descriptor, b"%d" % done)
            os.close(descriptor)

    sys.addaudithook(hook)


class _Dying(io.BufferedWriter):
    """A file that kills its process after ``left`` more bytes, counted over all these files."""

    left = 0

    def write(self, data: Any) -> int:
        data = bytes(data)
        if len(data) >= _Dying.left:
            super().write(data[: _Dying.left])
            self.flush()
            die()
        _Dying.left -= len(data)
        return super().write(data)


def at_byte(number: int, folder: str) -> None:
    """Die when ``number`` bytes have been written to binary files in ``folder``."""
    original = builtins.open

    def dying_open(file: Any, mode: str = "r", *rest: Any, **options: Any) -> Any:
        if str(file).startswith(folder) and "w" in mode and "b" in mode:
            return _Dying(io.FileIO(file, "w"))
        return original(file, mode, *rest, **options)

    _Dying.left = number
    shutil._USE_CP_SENDFILE = False  # copy by write()
    builtins.open = io.open = dying_open


def die_in_command(number: int, folder: Path, *words: str) -> None:
    """Run fairseq-ext, which must die at operation ``number`` in the folder."""
    from tests.support.harness import after, forked

    code = f"sys.executable = {forked('python')!r}; at_operation({number}, {str(folder)!r})"
    command = after(code, "fairseq-ext", *words)
    done = subprocess.run(command, stderr=subprocess.DEVNULL, preexec_fn=os.setpgrp)
    assert done.returncode == -signal.SIGKILL


def main() -> None:
    code, *sys.argv = sys.argv[1:]
    exec(code, globals())
    sys.path[0] = str(Path(sys.argv[0]).parent)
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
