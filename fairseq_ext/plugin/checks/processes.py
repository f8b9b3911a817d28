"""Guard a training's processes: enough open files, a lock on the folder, a message if one dies.

A running ``fairseq-train`` holds a lock on its ``--save-dir``; only its first process takes it, and
commands that read are not affected. A file system without locks (see
:mod:`fairseq_ext.utils.locks`) leaves the folder unprotected, with a warning.

A killed process cannot print anything. The others notice a closed connection, or a missing message
after the time limit of torch's process group (30 minutes by default).
"""

from __future__ import annotations

import contextlib
import datetime
import json
import logging
import os
import re
import resource
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import filelock

from fairseq_ext.plugin.table import Patch, around
from fairseq_ext.utils import locks
from fairseq_ext.utils.errors import ConfigError, EnvironmentProblem

logger = logging.getLogger(__name__)

ENOUGH = 4096
LEAST = 64
"""Fewest open files for a training; a tiny run with one process and one worker needs about 40."""


def allow_open_files() -> None:
    """Raise this process's limit on open files as far as needed and allowed."""
    limit, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    if limit != unlimited and limit < ENOUGH:
        limit = ENOUGH if hard_limit == unlimited else min(ENOUGH, hard_limit)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard_limit))
    if limit != unlimited and limit < LEAST:
        raise EnvironmentProblem(
            f"this process may have only {limit} files open at a time, but needs at least {LEAST}. "
            "Allow more: ulimit -n 4096"
        )


LOCK = ".training.lock"
"""Name of the lock file, which has JSON with ``pid``, ``host`` and ``start`` during training."""

_held = contextlib.ExitStack()  # the state of the process, because locks belong to it


@contextlib.contextmanager
def locked(folder: str | Path) -> Iterator[None]:
    """Hold the lock on an existing folder in the block, and remove its file at the end."""
    path = Path(folder, LOCK)
    with contextlib.ExitStack() as stack:
        try:
            protected = stack.enter_context(locks.held(path, wait=False))
        except filelock.Timeout:
            raise ConfigError(
                f"`--save-dir` must be used by one training at a time, but {holder(path)} trains "
                f"in {folder}; choose another folder, or wait until that run has ended."
            ) from None
        if protected:
            start = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
            owner = {"pid": os.getpid(), "host": socket.gethostname(), "start": start}
            path.write_text(json.dumps(owner) + "\n", encoding="utf-8")
        else:
            logger.warning(f"{folder} is on a file system without locks: start no second run there")
        yield


def holder(path: Path) -> str:
    """Name the process that holds the lock ``path``, according to the file's content."""
    try:
        owner = json.loads(path.read_text(encoding="utf-8"))
        return f"process {owner['pid']:d} on {owner['host']!s} (since {owner['start']!s})"
    except (OSError, ValueError, TypeError, KeyError):
        return "another process"


@around("fairseq.checkpoint_utils:verify_checkpoint_directory")
def _lock_first(original: Callable, save_dir: str) -> None:
    """Take the lock before the first thing that a training does to its folder."""
    Path(save_dir).mkdir(parents=True, exist_ok=True)
    _held.enter_context(locked(save_dir))
    original(save_dir)


CURE = "The same command continues from the last checkpoint."
LOST = re.compile(
    r"Connection closed by peer|Connection reset by peer|Broken pipe|Socket closed|"
    r"[Tt]imed out|Remote process exited|remote process exited|heartbeat"
)
"""Messages of torch's process groups about a process that does not answer."""


@around("fairseq.distributed.utils:distributed_main", "fairseq.distributed.utils:call_main")
def _work(original: Callable, *arguments: Any, **options: Any) -> Any:
    """Release the lock at the end, and say in one line that another process of the job is gone."""
    import torch.distributed
    from torch.multiprocessing import ProcessExitedException

    try:
        with _held:
            return original(*arguments, **options)
    except ProcessExitedException as error:  # one that fairseq-train itself has started
        how = f"by {error.signal_name}" if error.signal_name else f"(status {error.exit_code})"
        memory = ", perhaps for want of memory" if error.signal_name == "SIGKILL" else ""
        raise EnvironmentProblem(
            f"process {error.error_index} of this job was ended {how}{memory}; the others "
            f"were stopped. {CURE}"
        ) from error
    except RuntimeError as error:
        lost = LOST.search(str(error)) and torch.distributed.is_initialized()
        if not lost or isinstance(error, EnvironmentProblem):
            raise
        rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
        raise EnvironmentProblem(
            f"process {rank} of {size} ended, because another one does not answer any more: "
            f"it was killed, or failed with a message of its own. {CURE}"
        ) from error


PATCHES = (
    Patch(
        name="open files",
        reason="where a worker that loads data runs out of them, fairseq waits for it forever",
        act=allow_open_files,
    ),
    Patch(
        name="processes of a training",
        reason="a second training in one folder sweeps away what the first is writing, and both "
        "overwrite each other's checkpoints; and when one process of a job is killed, the others "
        "end with tracebacks of torch",
        layers=(_lock_first, _work),
    ),
)
