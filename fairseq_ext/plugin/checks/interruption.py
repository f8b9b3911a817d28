"""End a training at Ctrl-C or SIGTERM with one line that says how to continue it."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from fairseq_ext.plugin.features import async_checkpoints
from fairseq_ext.plugin.table import Patch, around
from fairseq_ext.utils.errors import printable

SIGNALS = (signal.SIGINT, signal.SIGTERM)
PATIENCE = 10.0
"""Seconds to wait for a process of the job to end before it is killed."""
TRAINING = ("fairseq_cli.train", "fairseq_cli.hydra_train")


@around("fairseq.distributed.utils:call_main")
def _call_main(original: Callable, cfg: Any, main: Callable, **options: Any) -> Any:
    """Handle signals in the first process of ``fairseq-train``, which waits for the others."""
    spec = main.__globals__["__spec__"]
    in_main_thread = threading.current_thread() is threading.main_thread()
    if spec is None or spec.name not in TRAINING or not in_main_thread:
        return original(cfg, main, **options)
    with interrupts() as received:
        try:
            return original(cfg, main, **options)
        except BaseException:  # also errors of other processes that got the signal
            if not received:
                raise
            _end(cfg, received[0])


@contextmanager
def interrupts() -> Iterator[list[signal.Signals]]:
    """Raise KeyboardInterrupt on either signal; yield the list of signals received.

    A terminal and a launcher may both send one. Further signals are ignored while the first one is
    handled, but only for a while, since some code may have caught the exception.
    """
    received: list[signal.Signals] = []
    owner, answered = os.getpid(), -PATIENCE

    def handle(number: int, _: FrameType | None) -> None:
        if os.getpid() != owner:  # a worker that loads data, forked from this process
            os._exit(0)
        nonlocal answered
        if time.monotonic() - answered > PATIENCE:
            answered = time.monotonic()
            received.append(signal.Signals(number))
            raise KeyboardInterrupt

    before = {number: signal.signal(number, handle) for number in SIGNALS}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def leave_quietly() -> None:
    """Make a child of the first process end at a signal, once, without a message."""

    leaving = False

    def handle(*_: object) -> None:
        nonlocal leaving
        if leaving:
            return
        leaving = True
        exiting = not threading.main_thread().is_alive()  # in callbacks of `atexit`
        if exiting or sys.exc_info()[1] is not None:
            os._exit(1)  # the process is already ending, and nobody would read its report
        raise KeyboardInterrupt  # torch.multiprocessing expects it

    for number in SIGNALS:
        signal.signal(number, handle)


def _end(cfg: Any, number: signal.Signals) -> NoReturn:
    """Print the message, end the job's other processes, and die by the signal, as shells expect."""
    for handled in SIGNALS:
        signal.signal(handled, signal.SIG_DFL)  # a second Ctrl-C ends the process at once
    async_checkpoints.finish()
    if not cfg.distributed_training.distributed_rank:
        message = f"fairseq-ext: stopped by {number.name}. {_how_it_goes_on(cfg.checkpoint)}"
        print(printable(message), file=sys.stderr)
    children = multiprocessing.active_children()
    for child in children:
        child.terminate()
    for child in children:
        child.join(PATIENCE)
        child.kill()
        child.join(PATIENCE)
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os.kill(os.getpid(), number)
    raise SystemExit(128 + number)  # if the signal has not ended the process


def _how_it_goes_on(checkpoint: Any) -> str:
    last = last_checkpoint(checkpoint)
    if last is None:
        return "No checkpoint was saved yet: the same command starts again."
    if checkpoint.restore_file != "checkpoint_last.pt":
        return f"The same command without `--restore-file` continues from {last}."
    return f"The same command continues from {last}."


def last_checkpoint(checkpoint: Any) -> Path | None:
    """Find the file that a run with this ``cfg.checkpoint`` would continue from, or None."""
    last = Path(checkpoint.save_dir, f"checkpoint_last{checkpoint.checkpoint_suffix}.pt")
    return last if last.is_file() else None


PATCHES = (
    Patch(
        name="interruption",
        reason="Ctrl-C ends a training in pages of tracebacks, and SIGTERM without a word, with "
        "the other processes of its job left alive for a while",
        layers=(_call_main,),
    ),
)
