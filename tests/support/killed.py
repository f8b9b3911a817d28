"""Workers that are killed at a chosen moment, or found in order to be killed."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

# The command, killed at the nth call of a function of the file system.
KILLED = """
import os, signal, sys
from fairseq_ext import cli
name, calls = sys.argv[1], int(sys.argv[2])
function = getattr(os, name)

def killing(*arguments, **options):
    global calls
    calls -= 1
    if calls == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return function(*arguments, **options)

setattr(os, name, killing)
cli.main(sys.argv[3:])
"""


def workers_of(node: Any, title: bytes) -> list[int]:
    """Our processes on a node of the cluster, by their numbers."""
    (raylet,) = node.all_processes["raylet"]
    processes = [path for path in Path("/proc").iterdir() if path.name.isdigit()]
    return [int(path.name) for path in processes if _is_ours(path, raylet.process.pid, title)]


def _is_ours(path: Path, parent: int, title: bytes) -> bool:
    with contextlib.suppress(OSError):
        stat = (path / "stat").read_text().rpartition(")")[2].split()
        return int(stat[1]) == parent and title in (path / "cmdline").read_bytes()
    return False
