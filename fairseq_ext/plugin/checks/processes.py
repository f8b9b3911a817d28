"""Guard a training: allow enough open files, lock `--save-dir`, report in one line how it ended.

The first process of ``fairseq-train`` holds a lock on ``--save-dir``; commands that only read the
folder ignore the lock. If a process is killed, another process of the training reports it: at once
if a connection closes, or else after the timeout of torch's process group.
"""

import contextlib
import datetime
import logging
import multiprocessing
import os
import re
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import filelock
import torch
from torch.multiprocessing import ProcessExitedException

from fairseq_ext.plugin.features import async_checkpoints
from fairseq_ext.plugin.patching import acting, around, module_of
from fairseq_ext.utils import locks
from fairseq_ext.utils.errors import ConfigError, EnvironmentProblem, printable
from fairseq_ext.utils.files import head

logger = logging.getLogger(__name__)

ENOUGH = 4096  # open files for the workers that load data, and their pipes


@acting("open files")
def allow_open_files() -> None:
    """Raise this process's limit on open files to :data:`ENOUGH`, or as far as the system allows.

    Problem: When a worker that loads data cannot open more files, fairseq waits for it forever.
    """
    limit, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    if limit != unlimited and limit < ENOUGH:
        limit = ENOUGH if hard_limit == unlimited else min(ENOUGH, hard_limit)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard_limit))


LOCK = ".training.lock"  # name of the lock file, which names the process that trains

_held = contextlib.ExitStack()  # global, because a lock belongs to the whole process


def lock(folder: str | Path, stack: contextlib.ExitStack) -> None:
    """Lock an existing folder until ``stack`` is closed; then the lock file is removed.

    Raise :class:`ConfigError` if another training holds the lock. On a file system without locks,
    only log a warning.
    """
    path = Path(folder, LOCK)
    try:
        protected = stack.enter_context(locks.held(path, wait=False))
    except filelock.Timeout:
        holder = head(path, 200).decode(errors="replace") or "another process"
        raise ConfigError(
            f"`--save-dir` must be used by one training at a time, but {holder} trains in "
            f"{folder}; choose another folder, or wait until that run has ended."
        ) from None
    if protected:
        start = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
        owner = f"process {os.getpid()} on {socket.gethostname()} (since {start})"
        path.write_text(owner, encoding="utf-8")
    else:
        logger.warning(f"{folder} is on a file system without locks: start no second run there")


@around("fairseq.checkpoint_utils:verify_checkpoint_directory", patch="processes of a training")
def _lock_first(original: Callable, save_dir: str) -> None:
    """Lock ``save_dir`` before training changes anything in it.

    Problem: A second training in the same folder deletes files that the first is writing, and each
    overwrites the other's checkpoints. When one process of a job is killed, the others end in
    tracebacks of torch.
    """
    Path(save_dir).mkdir(parents=True, exist_ok=True)
    lock(save_dir, _held)
    original(save_dir)


CURE = "The same command continues from the last checkpoint."
LOST = re.compile(
    r"Connection closed by peer|Connection reset by peer|Broken pipe|Socket closed|"
    r"[Tt]imed out|Remote process exited|remote process exited|heartbeat"
)
"""Pattern of torch's messages about a process that does not answer."""


@around(
    "fairseq.distributed.utils:distributed_main",
    "fairseq.distributed.utils:call_main",
    patch="processes of a training",
)
def _work(original: Callable, *arguments: Any, **options: Any) -> Any:
    """Run the command, then release the lock; report in one line if another process has died."""
    try:
        with _held:
            return original(*arguments, **options)
    except ProcessExitedException as error:  # fairseq-train itself had started that process
        how = f"by {error.signal_name}" if error.signal_name else f"(status {error.exit_code})"
        memory = ", perhaps because memory ran out" if error.signal_name == "SIGKILL" else ""
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
            f"process {rank} of {size} ended because another process no longer answers. {CURE}"
        ) from error


SIGNALS = [signal.SIGINT, signal.SIGTERM]
if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # `nohup` makes the process ignore it
    SIGNALS.append(signal.SIGHUP)
PATIENCE = 10.0  # seconds to wait for a process of the job to end before it is killed


@around("fairseq.distributed.utils:call_main", patch="interruption")
def _interruptible(original: Callable, cfg: Any, main: Callable, **options: Any) -> Any:
    """Run a command; if a signal stops a training, print one message, and end all its processes.

    Problem: Ctrl-C ends a training in pages of tracebacks. SIGTERM and SIGHUP (a closed terminal)
    end it without a message. They leave unfinished files, and other processes of the training go
    on for a while.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    if module_of(main) != "fairseq_cli.train" or not in_main_thread:
        return original(cfg, main, **options)
    with interrupts() as received:
        try:
            return original(cfg, main, **options)
        except BaseException:  # also an error of another process that got the signal
            if not received:
                raise
            _end(cfg, received[0])


@contextlib.contextmanager
def interrupts() -> Iterator[list[signal.Signals]]:
    """Raise KeyboardInterrupt in the ``with`` block when one of :data:`SIGNALS` arrives.

    Further signals within :data:`PATIENCE` seconds are ignored, because a terminal and a launcher
    may both send a signal. Yield a list, to which each signal that is not ignored is added.
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
    """Make this child process end without a message at its first signal, and ignore later ones."""
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
    """Print how to continue; end the child processes, then this process by signal ``number``."""
    for handled in SIGNALS:
        signal.signal(handled, signal.SIG_DFL)  # a second Ctrl-C ends the process at once
    with contextlib.suppress(Exception):  # the process is already ending with another error
        async_checkpoints.wait()
    if not cfg.distributed_training.distributed_rank:
        advice = "No checkpoint was saved yet: the same command starts from the beginning."
        if last := last_checkpoint(cfg.checkpoint):
            is_default = cfg.checkpoint.restore_file == "checkpoint_last.pt"
            command = "The same command" + ("" if is_default else " without `--restore-file`")
            advice = f"{command} continues from {last}."
        message = f"fairseq-ext: stopped by {number.name}. {advice}"
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


def last_checkpoint(checkpoint: Any) -> Path | None:
    """Return the path of ``checkpoint_last.pt``, or None if there is no such file.

    ``checkpoint`` is ``cfg.checkpoint``.
    """
    last = Path(checkpoint.save_dir, f"checkpoint_last{checkpoint.checkpoint_suffix}.pt")
    return last if last.is_file() else None
