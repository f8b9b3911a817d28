"""Write checkpoints while training goes on (``--write-checkpoints-asynchronously``).

A thread calls fairseq's own ``save_checkpoint``. The training waits only until the bytes of the
file are in memory. Each file is first written under another name, so a killed training keeps its
previous checkpoint. The thread completes a checkpoint before it begins the next one.
"""

import io
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import ModuleType
from typing import Any

import torch

from fairseq_ext.plugin.patching import around

# Global, because a process runs one training at a time
_thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoints")
_copied = threading.Event()
_saving: list[Future] = []


def wait() -> None:
    """Wait until the last checkpoint is on the disk; if saving it failed, raise the error."""
    while _saving:
        _saving.pop().result()


@around("fairseq_cli.train:add_defaults", patch="checkpoints written asynchronously")
def _provide_iopath(original: Callable, cfg: Any) -> None:
    """Provide an empty module ``iopath``, which fairseq imports but never uses.

    Problem: With --write-checkpoints-asynchronously fairseq needs the package iopath, writes no
    checkpoint_last.pt, and leaves a torn checkpoint after a kill.
    """
    original(cfg)
    if cfg.checkpoint.write_checkpoints_asynchronously:
        sys.modules.setdefault("iopath", ModuleType("iopath"))


@around("fairseq.checkpoint_utils:save_checkpoint", patch="checkpoints written asynchronously")
def _save_checkpoint(original: Callable, cfg: Any, *args: Any) -> str | None:
    if not cfg.write_checkpoints_asynchronously or cfg.no_save:
        return original(cfg, *args)
    cfg = cfg.copy()
    cfg.write_checkpoints_asynchronously = False  # else fairseq writes only the first file
    device = torch.cuda.current_device() if torch.cuda.is_initialized() else None

    def save() -> None:
        if device is not None:  # each thread has its own current device
            torch.cuda.set_device(device)
        original(cfg, *args)

    wait()
    _copied.clear()
    saving = _thread.submit(save)
    _saving.append(saving)
    saving.add_done_callback(lambda _: _copied.set())
    _copied.wait()
    if saving.done():
        wait()
    return None


@around(
    "fairseq.checkpoint_utils:torch_persistent_save", patch="checkpoints written asynchronously"
)
def _torch_persistent_save(
    original: Callable, obj: Any, filename: str, async_write: bool = False
) -> None:
    if async_write:
        file = io.BytesIO()
        torch.save(obj, file)
        obj = file
        _copied.set()
    original(obj, filename)


@around("fairseq.file_io:PathManager.async_close", patch="checkpoints written asynchronously")
def _async_close(original: Callable) -> bool:
    """Wait for the last checkpoint at the end of training; return fairseq's own result."""
    wait()
    return original()
