"""One process of a job is gone: the others end with one line, without a traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import time

import pytest

from fairseq_ext.plugin.checks import processes
from fairseq_ext.utils.errors import ConfigError, EnvironmentProblem
from tests.support.harness import BIN, USER_DIR, spawned
from tests.support.trainings import ARCHITECTURES, TRAINING


@pytest.mark.system
def test_a_killed_process_ends_the_job_with_one_line(copy_data, tmp_path):
    """Both are started by fairseq-train; tests/soak/gloo.py kills other processes of other jobs."""
    command = (
        *(BIN / "fairseq-train", copy_data, *ARCHITECTURES["gru_tiny"], *TRAINING),
        *("--max-update", 100_000, "--save-interval-updates", 3, "--save-dir", tmp_path / "run"),
        *("--distributed-world-size", 2, "--user-dir", USER_DIR),
    )
    errors = tmp_path / "errors"
    with (
        errors.open("w") as stream,
        subprocess.Popen(
            [*map(str, command)], stdout=subprocess.DEVNULL, stderr=stream
        ) as launcher,
    ):
        try:
            deadline = time.monotonic() + 120
            while not (tmp_path / "run/checkpoint_last.pt").exists():
                assert launcher.poll() is None, errors.read_text()
                assert time.monotonic() < deadline
                time.sleep(0.02)
            os.kill(spawned(launcher.pid)[-1], signal.SIGKILL)
            assert launcher.wait(timeout=60) == 1
        finally:
            launcher.kill()
    output = errors.read_text()
    assert "process 1 of this job was ended by SIGKILL, perhaps for want of memory; " in output
    assert output.count("fairseq-ext: error: ") == 1
    assert "Traceback" not in output


@pytest.mark.parametrize(
    "reported",
    [
        "[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:47340. This is ...",
        "[gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:7342: Connection reset by peer.",
        "[gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 5000ms for recv operation",
    ],
)
def test_what_torch_reports_becomes_one_line(reported, monkeypatch):
    """Messages of torch 2.13 as they were seen."""

    def main() -> None:
        raise RuntimeError(reported)

    run = processes._work.wrapper(main)
    with pytest.raises(RuntimeError, match=r"^\[gloo"):  # no job: another program's connection
        run()
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_rank", lambda: 2)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 4)
    with pytest.raises(EnvironmentProblem, match=r"^process 2 of 4 ended, because another"):
        run()


def test_other_errors_are_left_alone(monkeypatch):
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    for error in (RuntimeError("size mismatch"), ConfigError("`--x` must be 1, but timed out.")):

        def main(error=error) -> None:
            raise error

        with pytest.raises(type(error)) as caught:
            processes._work.wrapper(main)()
        assert caught.value is error
