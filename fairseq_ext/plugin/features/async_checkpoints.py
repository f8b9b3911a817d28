"""Checkpoints that are written while training goes on (``--write-checkpoints-asynchronously``).

A thread calls fairseq's own ``save_checkpoint``, so that files are written, copied and removed in
its order. The training waits only until the bytes of the file are in memory. Each file is first
written under another name, so a killed training keeps the checkpoint before it. A checkpoint is
complete before the next one begins.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import ModuleType
from typing import Any

import torch

from fairseq_ext.plugin.table import Patch, around


class Writer:
    """A writer that saves in a thread, one checkpoint at a time."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoints")
        self._saving: Future | None = None
        self._released = threading.Event()

    def start(self, save: Callable[[], Any]) -> None:
        """Run ``save`` in the thread, and return when it calls :meth:`release` or ends."""
        self.wait()
        self._released.clear()
        device = torch.cuda.current_device() if torch.cuda.is_initialized() else None

        def run() -> None:
            if device is not None:  # each thread has its own
                torch.cuda.set_device(device)
            save()

        self._saving = self._thread.submit(run)
        self._saving.add_done_callback(lambda _: self.release())
        self._released.wait()
        if self._saving.done():
            self.wait()

    def release(self) -> None:
        """Let the training go on: the state to save has been copied."""
        self._released.set()

    def wait(self) -> None:
        """Wait until everything is saved; raise an error that occurred since the last call."""
        saving, self._saving = self._saving, None
        if saving is not None:
            saving.result()


WRITER = Writer()
"""The writer of this process, which has one training at a time."""


def finish() -> None:
    """Wait for the last checkpoint, ignoring errors: the process is already ending with one."""
    with contextlib.suppress(Exception):
        WRITER.wait()


@around("fairseq_cli.train:add_defaults")
def _add_defaults(original: Callable, cfg: Any) -> None:
    """Stand in for the package iopath, without which fairseq refuses the option."""
    original(cfg)
    asynchronous = cfg.checkpoint.write_checkpoints_asynchronously
    if asynchronous and "iopath" not in sys.modules and not importlib.util.find_spec("iopath"):
        sys.modules["iopath"] = ModuleType("iopath")  # fairseq imports it, but never uses it


@around("fairseq.checkpoint_utils:save_checkpoint")
def _save_checkpoint(original: Callable, cfg: Any, *args: Any) -> str | None:
    if not cfg.write_checkpoints_asynchronously or cfg.no_save:
        return original(cfg, *args)
    cfg = cfg.copy()
    cfg.write_checkpoints_asynchronously = False  # fairseq would write the first file alone
    WRITER.start(lambda: original(cfg, *args))
    return None


@around("fairseq.checkpoint_utils:torch_persistent_save")
def _torch_persistent_save(
    original: Callable, obj: Any, filename: str, async_write: bool = False
) -> None:
    if async_write:
        file = io.BytesIO()
        torch.save(obj, file)
        obj = file
        WRITER.release()
    original(obj, filename)


@around("fairseq.file_io:PathManager.async_close")
def _async_close(original: Callable) -> bool:
    """Wait for the last checkpoint at the end of training, where fairseq calls this."""
    WRITER.wait()
    return original()


PATCHES = (
    Patch(
        name="checkpoints written asynchronously",
        reason="--write-checkpoints-asynchronously leaves a torn file where a training is killed, "
        "writes no checkpoint_last.pt, and needs a package that nothing else needs",
        layers=(_add_defaults, _save_checkpoint, _torch_persistent_save, _async_close),
    ),
)
