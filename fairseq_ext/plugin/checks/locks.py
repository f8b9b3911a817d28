"""One training per folder: a lock that a running ``fairseq-train`` holds on its ``--save-dir``.

A file system without locks (see :mod:`fairseq_ext.utils.locks`) leaves the folder unprotected,
with a warning.

Only the first process of a training takes the lock. Commands that read are not affected.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import logging
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import filelock

from fairseq_ext.plugin.table import Layer, Patch, around
from fairseq_ext.utils import locks
from fairseq_ext.utils.errors import ConfigError

logger = logging.getLogger(__name__)

LOCK = ".training.lock"
"""Name of the lock's file; JSON with ``pid``, ``host`` and ``start`` while a training runs."""

_held = contextlib.ExitStack()  # the state of the process, because locks belong to it


@contextlib.contextmanager
def locked(folder: str | Path) -> Iterator[None]:
    """Hold the lock on an existing folder; its file is removed in the end.

    Raises:
        ConfigError: another process holds it.
    """
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
            path.write_text(json.dumps(_this_process()) + "\n", encoding="utf-8")
        else:
            logger.warning(f"{folder} is on a file system without locks: start no second run there")
        yield


def holder(path: Path) -> str:
    """The process that holds the lock ``path``, according to the content of the file."""
    try:
        owner = json.loads(path.read_text(encoding="utf-8"))
        return f"process {owner['pid']:d} on {owner['host']!s} (since {owner['start']!s})"
    except (OSError, ValueError, TypeError, KeyError):
        return "another process"


def _this_process() -> dict[str, Any]:
    start = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
    return {"pid": os.getpid(), "host": socket.gethostname(), "start": start}


@around
def _lock_first(original: Callable, save_dir: str) -> None:
    """Take the lock before the first thing that a training does to its folder."""
    Path(save_dir).mkdir(parents=True, exist_ok=True)
    _held.enter_context(locked(save_dir))
    original(save_dir)


@around
def _release_at_the_end(original: Callable, *arguments: Any, **options: Any) -> Any:
    with _held:
        return original(*arguments, **options)


PATCHES = (
    Patch(
        name="one training per folder",
        kind="check",
        reason="a second training in one folder sweeps away what the first is writing, and both "
        "overwrite each other's checkpoints",
        layers=(
            Layer("fairseq.checkpoint_utils:verify_checkpoint_directory", _lock_first),
            Layer("fairseq.distributed.utils:distributed_main", _release_at_the_end),
            Layer("fairseq.distributed.utils:call_main", _release_at_the_end),
        ),
    ),
)
