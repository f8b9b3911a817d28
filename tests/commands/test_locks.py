"""Two trainings in one folder: the second is refused, and nothing outlives a killed one."""

import errno
import logging
import os
import signal
import socket
from contextlib import ExitStack

import pytest
from fairseq import checkpoint_utils

from fairseq_ext import register
from fairseq_ext.plugin.checks import processes
from fairseq_ext.utils.errors import ConfigError
from tests.support.harness import SESSION, USER_DIR, after, fairseq, start, wait_for
from tests.support.trainings import TRAINING, train


def test_second_run_is_refused_and_hurts_nothing(copy_data, tmp_path):
    folder = tmp_path / "run"
    options = ("--arch", "gru_tiny", "--num-workers", 1, "--save-interval-updates", 5)
    words = (copy_data, *TRAINING, "--save-dir", folder, "--user-dir", USER_DIR, *options)
    endless = after(SESSION, "fairseq-train", *words, "--max-update", 100_000)
    with start(*endless, cwd=tmp_path) as first, ExitStack() as stack:
        stack.callback(first.kill)
        wait_for((folder / "checkpoint_last.pt").exists, first)
        number = int((tmp_path / "leader").read_text())
        unfinished = folder / ".checkpoint_9_999.pt.9.tmp"
        unfinished.write_bytes(b"what the first one is writing")
        output = train(copy_data, folder, *options, ok=False).stderr
        assert f"process {number} on {socket.gethostname()} (since 20" in output
        assert output.count("\n") == 1
        assert unfinished.exists()
        (folder / processes.LOCK).write_text("")
        with pytest.raises(ConfigError, match=r"^`--save-dir` .* but another process trains"):
            processes.lock(folder, stack)
        fairseq("generate", copy_data, "--path", folder / "checkpoint_last.pt")
        assert first.poll() is None
        # a worker of its data loader, which was forked from it, lives on for some seconds
        os.kill(number, signal.SIGKILL)
        assert first.wait() == -signal.SIGKILL
        names = [path.stem for path in folder.glob("checkpoint_*_*.pt")]
        updates = max(int(name.rpartition("_")[2]) for name in names)
        assert (folder / processes.LOCK).exists()
        train(copy_data, folder, *options, "--max-update", updates + 6)
    assert not unfinished.exists()
    assert not (folder / processes.LOCK).exists()


def test_a_process_does_not_lock_itself_out(tmp_path):
    with ExitStack() as held:
        processes.lock(tmp_path, held)
        with ExitStack() as again:
            processes.lock(tmp_path, again)
        assert (tmp_path / processes.LOCK).exists()
    assert not (tmp_path / processes.LOCK).exists()


@pytest.fixture
def no_locks(monkeypatch):
    def flock(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", flock)


def test_file_system_without_locks(no_locks, tmp_path, caplog):
    """Training goes on there, with one warning, and nothing is left behind."""
    with caplog.at_level(logging.WARNING), ExitStack() as held:
        processes.lock(tmp_path, held)
    fault = f"{tmp_path} is on a file system without locks: start no second run there"
    assert caplog.messages == [fault]
    assert not list(tmp_path.iterdir())


def test_log_file_has_the_warning_about_locks(no_locks, tmp_path):
    register()
    handler = logging.FileHandler(tmp_path / "log")
    loggers = [logging.getLogger(name) for name in ("fairseq_cli.train", "fairseq_ext")]
    loggers[0].addHandler(handler)
    try:
        checkpoint_utils.verify_checkpoint_directory(str(tmp_path))
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
        handler.close()
    assert "without locks" in (tmp_path / "log").read_text()
