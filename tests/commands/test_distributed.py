"""Several processes on the CPU train as one does, also as docs/scale.md has it; none is lost."""

import os
import re
import shutil
import signal
from pathlib import Path
from subprocess import CompletedProcess
from unittest.mock import Mock

import pytest
import torch

from fairseq_ext.plugin.checks import processes
from fairseq_ext.utils.errors import ConfigError, EnvironmentProblem
from tests.support import harness
from tests.support.harness import BIN, USER_DIR, fairseq, forked, run
from tests.support.trainings import (
    ARCHITECTURES,
    TRAINING,
    plugin_without,
    same_state,
    training_state,
)

RUN = (*TRAINING, "--dropout", 0, "--max-epoch", 2)
LAST = "checkpoint_last.pt"
ROUNDING = "attention.score.bias"
"""A softmax takes no notice of it: its gradient is rounding, of which Adam makes whole steps."""


def losses(log: str) -> list[float]:
    """Training and validation losses of all epochs, as the log rounds them."""
    return [float(loss) for loss in re.findall(r"\| (?:train|valid) \| .*?\| loss (\S+)", log)]


def end(folder: Path) -> dict:
    return training_state(folder / LAST)


def children_of(parent: int) -> list[int]:
    return [*map(int, Path(f"/proc/{parent}/task/{parent}/children").read_text().split())]


def torchrun(*command: object, **how: object):
    launcher = (forked("torchrun"), "--standalone", "--nproc_per_node", 2, "--no-python")
    return run(*launcher, forked(str(command[0])), *command[1:], **how)


def assert_same_end(left: Path, right: Path) -> None:
    """Equal validation losses and weights, within 1e-4, after equally many updates."""
    first, second = end(left), end(right)
    assert first["val_loss"] == pytest.approx(second["val_loss"], abs=1e-4)
    assert first["updates"] == second["updates"] > 8
    for name, weights in first["model"].items():
        if not name.endswith(ROUNDING):
            torch.testing.assert_close(weights, second["model"][name], rtol=0, atol=1e-4)


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
    if "lstm" in command:
        two = torchrun(*command, "--save-dir", tmp_path, "--user-dir", USER_DIR)
    else:
        two = train(tmp_path, *command[1:])
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
    words = ("torchrun", "--standalone", "--max-restarts", 2, "--nproc_per_node", 2)
    words += (BIN / command[0], *command[1:], "--save-interval-updates", 3)
    words += ("--save-dir", tmp_path, "--user-dir", USER_DIR)
    how = {"env": {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}}  # as in launch.sh
    with (
        (tmp_path / "log").open("w") as log,
        harness.start(*words, stdout=log, stderr=log, **how) as process,
    ):
        harness.wait_for((tmp_path / "checkpoint_1_3.pt").exists, process)
        os.kill(children_of(process.pid)[-1], signal.SIGKILL)
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
    words = ("--distributed-world-size", 2, "--save-dir", tmp_path, "--user-dir", plugin)
    done = torchrun(*command, *words, ok=False)
    assert complaint in done.stderr


def test_a_killed_process_ends_the_job_with_one_line(copy_data, tmp_path):
    """Both are started by fairseq-train."""
    command = harness.after(
        f"{harness.SESSION}\n{harness.FORKING}",
        *("fairseq-train", copy_data, *ARCHITECTURES["gru_tiny"], *TRAINING),
        *("--max-update", 100_000, "--save-interval-updates", 3, "--save-dir", tmp_path / "run"),
        *("--distributed-world-size", 2, "--user-dir", USER_DIR),
    )
    errors, how = tmp_path / "errors", {"cwd": tmp_path}
    with errors.open("w") as stream, harness.start(*command, stderr=stream, **how) as launcher:
        try:
            harness.wait_for((tmp_path / "run/checkpoint_last.pt").exists, launcher, 120)
            leader = int((tmp_path / "leader").read_text())
            os.kill(children_of(leader)[1], signal.SIGKILL)
            assert launcher.wait(timeout=60) == 1
        finally:
            launcher.kill()
    output = errors.read_text()
    assert "process 1 of this job was ended by SIGKILL, perhaps because memory ran out; " in output
    assert output.count("fairseq-ext: error: ") == 1
    assert "Traceback" not in output


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (RuntimeError(f"[gloo/transport/tcp/{reported}"), r"^process 2 of 4 ended because another")
        for reported in (
            "pair.cc:553] Connection closed by peer [127.0.0.1]:47340. This is ...",
            "pair.cc:537] Read error [127.0.0.1]:7342: Connection reset by peer.",
            "unbound_buffer.cc:81] Timed out waiting 5000ms for recv operation",
        )
    ]
    + [
        (RuntimeError("size mismatch"), "^size mismatch$"),
        (ConfigError("`--x` must be 1, but timed out."), "^`--x` must be 1, but timed out"),
    ],
)
def test_what_torch_reports_of_another_process_becomes_one_line(error, message, monkeypatch):
    """Messages of torch 2.13 as they were seen; other errors are left alone."""
    work = processes._work.wrapper(Mock(side_effect=error))
    with pytest.raises(type(error)) as caught:  # no job: another program's connection
        work()
    assert caught.value is error
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_rank", lambda: 2)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 4)
    expected = EnvironmentProblem if "process" in message else type(error)
    with pytest.raises(expected, match=message):
        work()


# What docs/scale.md says of training with several processes: two, on the CPU, with gloo
CLIPPED = (*TRAINING, "--max-tokens", 600, "--no-epoch-checkpoints", "--clip-norm", 0.5)
TRANSFORMER = (*ARCHITECTURES["transformer"], *CLIPPED, "--dropout", 0.1)
GRU = (*ARCHITECTURES["gru_tiny"], *CLIPPED, "--ddp-backend", "legacy_ddp")
SHARDED = ("--zero-sharding", "os")
RECORDER = """
import fairseq_ext
from torch.distributed import get_rank
from fairseq.tasks.fairseq_task import FairseqTask

fairseq_ext.register()
original = FairseqTask.train_step

def train_step(self, sample, ignore_grad=False, **how):
    if not ignore_grad:
        with open({file!r} + str(get_rank()), "a") as out:
            print(self.epoch, *sample["id"].tolist(), file=out)
    return original(self, sample, ignore_grad=ignore_grad, **how)

FairseqTask.train_step = train_step
FairseqTask.begin_epoch = lambda self, epoch, model: setattr(self, "epoch", epoch)
"""


def train(folder: Path, *options: object, plugin: Path = USER_DIR) -> CompletedProcess[str]:
    """Train with two processes."""
    job = ("--distributed-world-size", 2, "--save-dir", folder, "--user-dir", plugin)
    return run(*harness.after(harness.FORKING, "fairseq-train", *options, *job))


def norms(done: CompletedProcess[str]) -> list[str]:
    """The norm of the gradients in each update."""
    return re.findall(r"\| train_inner \|.*? gnorm=([^,\s]+)", done.stdout)


def update_losses(done: CompletedProcess[str]) -> list[float]:
    """The loss of each update, and that of the validation set."""
    result = re.findall(r"\| train_inner \|.*? loss=([^,\s]+)", done.stdout)
    result += re.findall(r"\| valid \| .*?\| loss (\S+)", done.stdout)
    return [float(loss) for loss in result]


@pytest.fixture(scope="module", params=["fp32", pytest.param("bf16", marks=pytest.mark.long)])
def complete(request, copy_data, tmp_path_factory):
    """Two epochs with an optimizer in each process: folder, command, and what it said."""
    folder = tmp_path_factory.mktemp("whole")
    half = ("--bf16", "--fp16-no-flatten-grads") if request.param == "bf16" else ()
    command = (copy_data, *TRANSFORMER, *half)
    return folder, command, train(folder, *command, "--max-epoch", 2)


def test_a_sharded_optimizer_ends_with_the_same_weights(complete, tmp_path):
    """Also where it was stopped: each process goes on with its part of the state.

    The second time a thread collects the parts, for a checkpoint behind the training.
    """
    folder, command, output = complete
    first = train(tmp_path, *command, *SHARDED, "--max-epoch", 1)
    pattern = r"state of ([\d,]+) of ([\d,]+) weights is in"
    sharded, weights = re.search(pattern, first.stdout).groups()
    share = int(sharded.replace(",", "")) / int(weights.replace(",", ""))
    assert share == pytest.approx(0.5, abs=0.1)
    behind = (*SHARDED, "--write-checkpoints-asynchronously")
    second = train(tmp_path, *command, *behind, "--max-epoch", 2)
    assert norms(first) + norms(second) == norms(output)
    assert len(norms(output)) == 8
    assert any(float(norm) > 0.5 for norm in norms(output))  # and so clipped
    sharded, plain = end(tmp_path), end(folder)
    assert sharded["updates"] == plain["updates"] == 8
    for name, weights in sharded["model"].items():  # Adam that is not shared out clips in its step
        torch.testing.assert_close(weights, plain["model"][name], rtol=0, atol=1e-4)


@pytest.mark.long
@pytest.mark.parametrize("complete", ["fp32"], indirect=True)
def test_one_process_goes_on_with_a_sharded_optimizer(complete, copy_data, tmp_path):
    """There is nothing to share out then, and the option may stay."""
    _, command, _ = complete
    train(tmp_path / "plain", *command, *SHARDED, "--max-epoch", 1)
    shutil.copytree(tmp_path / "plain", tmp_path / "sharded")
    before = end(tmp_path / "plain")["updates"]
    for name, options in (("plain", ()), ("sharded", SHARDED)):
        fairseq("train", *command, *options, "--save-dir", tmp_path / name, "--max-epoch", 2)
    assert same_state(end(tmp_path / "plain"), end(tmp_path / "sharded"))
    assert end(tmp_path / "plain")["updates"] > before


@pytest.mark.parametrize("complete", ["fp32"], indirect=True)
def test_recomputed_activations_end_with_the_same_bits(complete, tmp_path):
    """Dropout included, with torch's own DDP."""
    folder, command, output = complete
    recomputed = train(tmp_path, *command, "--checkpoint-activations", "--max-epoch", 2)
    assert norms(recomputed) == norms(output)
    assert same_state(end(tmp_path)["model"], end(folder)["model"])


@pytest.mark.long
@pytest.mark.parametrize("name", ["muse_tiny", "linformer_tiny", "bmt_tiny"])
def test_recomputed_activations_give_the_same_losses(name, copy_data, tmp_path):
    # with Adam's own ε a gradient of nothing but rounding moves a weight as any other does
    adam = ("--adam-eps", 1e-3, "--dropout", 0.1, "--max-update", 3)
    command = (copy_data, *ARCHITECTURES.get(name, ("--arch", name)), *CLIPPED, *adam)
    stored = train(tmp_path / "kept", *command)
    recomputed = train(tmp_path / "recomputed", *command, "--checkpoint-activations")
    assert update_losses(recomputed) == pytest.approx(update_losses(stored), abs=1.5e-3)
    assert len(update_losses(stored)) == 4
    expected = end(tmp_path / "kept")["model"]
    for key, weights in end(tmp_path / "recomputed")["model"].items():
        torch.testing.assert_close(weights, expected[key], rtol=0, atol=1e-3)


def test_uneven_shards_count_every_sentence_once(copy_data, tmp_path):
    """13 batches for two processes, then a shard of one batch, of which one process has none."""
    dictionaries = ("--srcdict", copy_data / "dict.src.txt", "--joined-dictionary")
    text = harness.digits_corpus(tmp_path / "text", train=30, seed=2)
    small = harness.binarize(text, tmp_path / "small", *dictionaries)
    code = RECORDER.format(file=str(tmp_path / "seen"))
    plugin = harness.write_lines(tmp_path / "recorder" / "__init__.py", [code]).parent
    data = f"{copy_data}:{small}"
    options = ("--batch-size", 40, "--required-batch-size-multiple", 1, "--max-epoch", 2)
    train(tmp_path / "model", data, *GRU, *options, plugin=plugin)
    visited: dict[str, list[int]] = {"1": [], "2": []}
    batches = [(tmp_path / f"seen{rank}").read_text().splitlines() for rank in range(2)]
    for line in [*batches[0], *batches[1]]:
        epoch, *sentences = line.split()
        visited[epoch] += map(int, sentences)
    assert sorted(visited["1"]) == [*range(500)]
    assert sorted(visited["2"]) == [*range(30)]
    assert len(batches[0]) != len(batches[1])
    assert len(batches[0]) + len(batches[1]) == 13 + 1
    assert end(tmp_path / "model")["updates"] == 7 + 1
