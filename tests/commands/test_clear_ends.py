"""A training that diverges, or is interrupted, ends with one line and a whole last checkpoint."""

import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch

from tests.support.harness import FORKING, REPO, after, forked, interrupted, run, write_lines
from tests.support.trainings import load, plugin_without

FAULTY = REPO / "tests" / "support" / "faulty"
TRAINING: tuple[object, ...] = (
    *("--arch", "gru_tiny", "--criterion", "faulty", "--optimizer", "adam", "--lr", 0.01),
    *("--max-tokens", 400, "--cpu", "--no-progress-bar", "--num-workers", 0),
    *("--max-update", 9, "--save-interval-updates", 2, "--no-epoch-checkpoints"),
)


def diverged(data: Path, folder: Path, *options: object, plugin: Path = FAULTY) -> tuple[str, str]:
    """Train until it fails; return the only message and the log."""
    command = ("fairseq-train", data, *TRAINING, "--save-dir", folder, "--user-dir", plugin)
    done = run(*after(FORKING, *command, *options), ok=False)
    output = done.stdout + done.stderr
    assert done.returncode == 1
    assert "Traceback" not in output
    (message,) = [line for line in output.splitlines() if line.startswith("fairseq-ext: ")]
    return message, output


def require_finite(folder: Path, updates: int) -> None:
    """The checkpoints that a user would take are of that update, and finite."""
    for name in ("checkpoint_last.pt", "checkpoint_best.pt"):
        state = load(folder / name)
        assert state["optimizer_history"][-1]["num_updates"] == updates
        assert all(torch.isfinite(weight).all() for weight in state["model"].values())
        averages = {key: value for key, value in state["extra_state"].items() if "ema" in key}
        for average in averages.values():
            assert all(torch.isfinite(weight).all() for weight in average.values())


@pytest.mark.parametrize(
    ("options", "update", "fault"),
    [
        (("--fault", "loss"), 5, "its gradients are NaN or infinite"),
        (("--fault", "gradient", "--fault-factor", "inf", "--store-ema"), 5, "its gradients"),
        (("--fault", "loss", "--update-freq", 2, "--fault-at", 8), 4, "its gradients"),
        (("--fault", "gradient", "--bf16"), 5, "its gradients are NaN or infinite"),
        (("--fault", "logged", "--fault-factor", "inf"), 5, "its loss is inf"),
        (("--fault", "validation"), 6, "the loss of a batch of the validation set is nan"),
        (("--fault", "loss", "--distributed-world-size", 2), 5, "its gradients are NaN"),
    ],
    ids=["loss", "gradient-ema", "update-freq", "bf16", "logged", "validation", "processes"],
)
def test_divergence(copy_data: Path, tmp_path: Path, options, update: int, fault: str):
    message, output = diverged(copy_data, tmp_path, *options)
    assert f"training diverged at update {update}: " in message
    assert fault in message
    assert f"(update {update if 'validation' in options else update - 1}). {tmp_path}" in message
    assert "checkpoint_last.pt is unchanged: continue from it with a lower `--lr`" in message
    require_finite(tmp_path, 4 if update > 4 else 2)
    if "its gradients" in fault:  # the report of fairseq itself, which names the layer
        assert re.search(r"(NaN|Inf) detected in output of decoder\.", output)


def test_an_update_that_makes_the_weights_infinite_is_not_saved(copy_data: Path, tmp_path: Path):
    options = ("--optimizer", "sgd", "--lr", 1e30, "--disable-validation", "--fault-at", 1)
    options = (*options, "--fault", "gradient", "--fault-factor", 1e12)
    message, _ = diverged(copy_data, tmp_path, *options, "--save-interval-updates", 1)
    assert "at update 1: after it, `encoder." in message
    assert "is NaN or infinite, so the model is not saved" in message
    assert "No checkpoint was saved: begin with a lower `--lr`" in message
    assert not list(tmp_path.glob("*.pt"))


FIRST = f"import sys\nsys.path.insert(0, {str(FAULTY.parent)!r})\n"
LOSS_SCALE = """
import faulty
from fairseq.optim import FP16Optimizer
from fairseq.optim.dynamic_loss_scaler import DynamicLossScaler
scaler = DynamicLossScaler(init_scale=2e-4)
def clip_grad_norm(self, *rest, **options):
    scaler.check_overflow(float("inf"))
FP16Optimizer.clip_grad_norm = clip_grad_norm
"""


def test_smallest_loss_scale(copy_data: Path, tmp_path: Path):
    """The scaler of --fp16 (which needs CUDA) at its floor, in the optimizer of --bf16."""
    plugin = write_lines(tmp_path / "plugin" / "__init__.py", [FIRST + LOSS_SCALE]).parent
    message, _ = diverged(copy_data, tmp_path / "run", "--bf16", plugin=plugin)
    assert "at update 1: fp16 overflows even at the smallest loss scale (0.0001); no" in message


def test_without_the_fix_there_is_no_report(copy_data: Path, tmp_path: Path):
    plugin = plugin_without(tmp_path, "report of a NaN")
    source = plugin / "__init__.py"
    source.write_text(FIRST + source.read_text() + "import faulty\n")
    command = ("fairseq-train", copy_data, *TRAINING, "--save-dir", tmp_path / "run")
    done = run(*command, "--fault", "loss", "--user-dir", plugin, ok=False)
    assert "StopIteration" in done.stderr


def processes_of(group: int) -> list[str]:
    """The living processes of a process group: their group and state."""
    rows = subprocess.run(["ps", "-eo", "pgid=,stat="], capture_output=True, text=True).stdout
    return re.findall(rf"^ *{group} +[^Z]\S*", rows, re.MULTILINE)


CASES = {
    "training-with-a-worker": (signal.SIGINT, True, ("--num-workers", 1), False),
    "saving": (signal.SIGTERM, False, (), True),
    "saving-in-a-closed-terminal": (signal.SIGHUP, True, (), True),
    "saving-in-two": (signal.SIGINT, True, ("--distributed-world-size", 2), True),
}


@pytest.mark.parametrize("case", CASES)
def test_interruption(copy_data: Path, tmp_path: Path, case: str):
    number, group, options, checkpoint = CASES[case]
    where = case.partition("-")[0]
    folder = tmp_path / "run"
    folder.mkdir()
    words = ("fairseq-train", copy_data, *TRAINING, *options, "--save-dir", folder / "run")
    words = (*words, "--user-dir", FAULTY)
    status, output, leader = interrupted(words, folder, where, number, group=group)
    assert status == -number, output  # which a shell calls 128 + number
    deadline = time.monotonic() + 20  # multiprocessing's own helper ends when its pipe is closed
    while (left := processes_of(leader)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left == []
    assert "Traceback" not in output
    (message,) = [line for line in output.splitlines() if line.startswith("fairseq-ext: ")]
    last = folder / "run" / "checkpoint_last.pt"
    assert last.exists() == checkpoint
    if checkpoint:
        ending = f"The same command continues from {last}."
        require_finite(folder / "run", 2)
    else:
        ending = "No checkpoint was saved yet: the same command starts from the beginning."
    assert message == f"fairseq-ext: stopped by {number.name}. {ending}"
    if "in-two" not in case:  # the second process may be killed first, and the next run sweeps
        assert not list(folder.rglob("*.tmp"))


FAILING = """
        try: raise ValueError
        except ValueError:
            time.sleep(60)
"""


EXITING = "atexit.register(os.kill, os.getpid(), signal.SIGTERM)"  # before the timer's signal


@pytest.mark.parametrize(
    ("work", "status"),
    [("time.sleep(60)", "interrupted"), (FAILING, "1"), (EXITING, "1")],
    ids=["at work", "failing", "exiting"],
)
def test_a_process_of_a_job_leaves_without_a_traceback(work: str, status: str):
    """A process that fails may be writing its traceback when the first process stops the job."""
    code = (
        "import atexit, os, signal, sys, threading, time\n"
        "from fairseq_ext.plugin.checks.processes import leave_quietly\n"
        "leave_quietly()\n"
        "threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()\n"
        "try:\n"
        f"    {work}\n"
        "except KeyboardInterrupt: sys.exit('interrupted')"
    )
    done = run(forked("python"), "-c", code, ok=False)
    assert (done.stderr.strip() or str(done.returncode)) == status
