"""Several processes on the CPU train as one does, and end with one line when one is gone."""

import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from fairseq_ext.plugin.checks import processes
from fairseq_ext.utils.errors import ConfigError, EnvironmentProblem
from tests.support.harness import BIN, USER_DIR, run, spawned, wait_for
from tests.support.trainings import ARCHITECTURES, TRAINING, load, plugin_without

pytestmark = pytest.mark.system

RUN = (*TRAINING, "--dropout", 0, "--max-epoch", 2)
LAST = "checkpoint_last.pt"
ROUNDING = "attention.score.bias"
"""A softmax takes no notice of it: its gradient is rounding, of which Adam makes whole steps."""


def losses(log: str) -> list[float]:
    """Training and validation losses of all epochs, as the log rounds them."""
    return [float(loss) for loss in re.findall(r"\| (?:train|valid) \| .*?\| loss (\S+)", log)]


def torchrun(*command: object, **how: object):
    launcher = ("torchrun", "--standalone", "--nproc_per_node", 2)
    return run(*launcher, BIN / str(command[0]), *command[1:], **how)


def assert_same_end(left: Path, right: Path) -> None:
    """Equal validation losses and weights, within 1e-4, after equally many updates."""
    first, second = load(left / LAST), load(right / LAST)
    assert first["extra_state"]["val_loss"] == pytest.approx(
        second["extra_state"]["val_loss"], abs=1e-4
    )
    updates = [state["optimizer_history"][-1]["num_updates"] for state in (first, second)]
    assert updates[0] == updates[1] > 8
    for name, weights in first["model"].items():
        if name.endswith(ROUNDING):
            continue
        assert (weights - second["model"][name]).abs().max() < 1e-4, name


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=() if name in ("lstm", "muse_tiny") else pytest.mark.long)
        for name in ARCHITECTURES
    ],
)
def single(request, copy_data, tmp_path_factory):
    """Two epochs of one process: folder, the command that made it, and its log."""
    folder = tmp_path_factory.mktemp("single")
    command = ("fairseq-train", copy_data, *ARCHITECTURES[request.param], *RUN)
    options = ("--update-freq", 2, "--save-dir", folder, "--user-dir", USER_DIR)
    return folder, command, run(*command, *options).stdout


def test_two_processes_equal_update_freq_2(single, tmp_path):
    folder, command, log = single
    two = torchrun(*command, "--save-dir", tmp_path, "--user-dir", USER_DIR)
    assert len(losses(log)) == 4
    assert losses(two.stdout) == pytest.approx(losses(log), abs=1.5e-3)
    assert_same_end(folder, tmp_path)
    assert "Warning" not in two.stdout + two.stderr


@pytest.mark.parametrize("single", ["lstm"], indirect=True)
def test_spawned_processes_resume(single, tmp_path):
    """Two processes started by fairseq itself take over after the first epoch."""
    folder, command, _ = single
    shutil.copy(folder / "checkpoint1.pt", tmp_path / LAST)
    options = ("--distributed-world-size", 2, "--save-dir", tmp_path, "--user-dir", USER_DIR)
    assert len(losses(run(*command, *options).stdout)) == 2
    assert_same_end(folder, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("single", ["lstm"], indirect=True)
def test_torchrun_starts_a_training_again_whose_process_died(single, tmp_path):
    """Both processes begin again, and go on from the last checkpoint to the undisturbed end."""
    folder, command, _ = single
    words = [BIN / "torchrun", "--standalone", "--max-restarts", 2, "--nproc_per_node", 2]
    words += [BIN / command[0], *command[1:], "--save-interval-updates", 3]
    words += ["--save-dir", tmp_path, "--user-dir", USER_DIR]
    environment = {**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}  # as in launch.sh
    with (
        (tmp_path / "log").open("w") as log,
        subprocess.Popen([*map(str, words)], stdout=log, stderr=log, env=environment) as process,
    ):
        wait_for((tmp_path / "checkpoint_1_3.pt").exists, process)
        command_line = ("ps", "-o", "pid=", "--ppid", str(process.pid))
        children = subprocess.run(command_line, capture_output=True, text=True).stdout.split()
        os.kill(int(children[-1]), signal.SIGKILL)
        status = process.wait(600)
    output = (tmp_path / "log").read_text()
    assert status == 0, output
    assert re.search(r"checkpoint_last\.pt \(epoch \d+ @ [1-9]\d* updates\)", output), output
    assert_same_end(folder, tmp_path)


@pytest.mark.parametrize("single", ["lstm"], indirect=True)
@pytest.mark.parametrize(
    ("fix", "complaint"),
    [
        ("processes on the CPU", "ZeroDivisionError"),
        ("resume on several processes", "UnpicklingError"),
    ],
)
def test_fails_without_the_fix(single, fix, complaint, tmp_path):
    folder, command, _ = single
    plugin = plugin_without(tmp_path, fix)
    shutil.copy(folder / "checkpoint1.pt", tmp_path / LAST)
    options = ("--distributed-world-size", 2, "--save-dir", tmp_path, "--user-dir", plugin)
    assert complaint in torchrun(*command, *options, ok=False).stderr


def test_a_killed_process_ends_the_job_with_one_line(copy_data, tmp_path):
    """Both are started by fairseq-train."""
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
