"""One of 2 and one of 4 processes of a job is killed: the others end at once, and it resumes.

Processes are started as ``fairseq-train --distributed-world-size N`` starts them, as ``torchrun``
does, and without anybody who looks after them, as on a cluster.
"""

import datetime
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fairseq_ext.plugin.repairs.cpu_training import _free_port
from tests.soak import forks
from tests.soak.kills import LENGTH, difference
from tests.soak.report import Report, noted, parser
from tests.support.harness import BIN, USER_DIR, binarize, digits_corpus
from tests.support.trainings import ARCHITECTURES, TRAINING, load

LIMIT = 60.0  # seconds until all have ended
SAVED = "checkpoint_1_3.pt"
MESSAGES = {
    "alone": r"process \d of \d ended, because another one does not answer any more: ",
    "spawned": r"process \d of this job was ended by SIGKILL, ",
    "torchrun": r"process \d of \d ended, because another one does not answer any more: ",
}


def words(data: Path, folder: Path, size: int, ddp: str | None = None) -> list[str]:
    """The command, in small updates.

    torch's own DDP sums gradients in another order in the first update of a process than later,
    which shows in the last bits where more than two are summed.
    """
    options = (*ARCHITECTURES["gru_tiny"], *TRAINING, *LENGTH, "--max-tokens", 60)
    backend = ddp or ("pytorch_ddp" if size == 2 else "legacy_ddp")
    where = ("--save-dir", folder, "--user-dir", USER_DIR, "--ddp-backend", backend)
    return [*map(str, ("fairseq-train", data, *options, *where))]


def alone(
    command: list[str], size: int, log: Path, first: Callable[[], None] = lambda: None
) -> list[int]:
    """Start one process for each rank; each writes into a file of its own."""
    join = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
    return [
        forks.start(
            command,
            log.with_suffix(f".{rank}"),
            first=first,
            **{"WORLD_SIZE": str(size), "RANK": str(rank), "LOCAL_RANK": str(rank), **join},
        )
        for rank in range(size)
    ]


def short_timeout() -> None:
    """A process group gives up after five seconds, not after half an hour."""
    from torch.distributed import distributed_c10d

    distributed_c10d.default_pg_timeout = datetime.timedelta(seconds=5)


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 300
    while not path.exists():
        assert time.monotonic() < deadline, f"no {path.name} within 5 minutes"
        time.sleep(0.005)


def require_one_line(message: str, kind: str) -> None:
    """Our message, and no traceback."""
    assert len(re.findall(MESSAGES[kind], message)) == 1, message[-1500:]
    if kind != "torchrun":  # which adds its own report
        assert "Traceback" not in message, message[-3000:]


def without_a_launcher(command: list[str], size: int, rank: int, log: Path, folder: Path) -> float:
    """Kill ``rank``, or stop it if the number is negative; seconds until all others ended."""
    stopped = rank < 0
    processes = alone(command, size, log, short_timeout if stopped else lambda: None)
    wait_for(folder / SAVED)
    began = time.monotonic()
    os.kill(processes[rank], signal.SIGSTOP if stopped else signal.SIGKILL)
    survivors = [process for process in processes if process != processes[rank]]
    statuses = [forks.wait(process, LIMIT) for process in survivors]
    seconds = time.monotonic() - began
    forks.kill(processes[rank])
    assert set(statuses) == {1}, statuses
    for place, process in enumerate(processes):
        if process in survivors:
            require_one_line(log.with_suffix(f".{place}").read_text(), "alone")
    return seconds


def with_a_launcher(kind: str, command: list[str], size: int, log: Path, folder: Path) -> float:
    """Kill the last process that the launcher started; seconds until all have ended."""
    name, *rest = command
    launched = [str(BIN / name), *rest]
    if kind == "torchrun":
        options = ["--standalone", "--nproc_per_node", str(size)]
        launched = [str(BIN / "torchrun"), *options, *launched]
    else:
        launched += ["--distributed-world-size", str(size)]
    with (
        log.open("w") as errors,
        subprocess.Popen(launched, stdout=subprocess.DEVNULL, stderr=errors) as process,
    ):
        wait_for(folder / SAVED)
        children = _children(process.pid)
        began = time.monotonic()
        os.kill(children[-1], signal.SIGKILL)
        status = process.wait(LIMIT)
        seconds = time.monotonic() - began
    assert status == 1, status
    assert not [child for child in children if _alive(child)]
    require_one_line(log.read_text(), kind)
    return seconds


def _children(parent: int) -> list[int]:
    """The training processes below a launcher, in the order they were started."""
    listing = subprocess.run(["ps", "-o", "pid=,args=", "--ppid", str(parent)], capture_output=True)
    lines = listing.stdout.decode().splitlines()
    return [int(line.split()[0]) for line in lines if "resource_tracker" not in line]


def _alive(process: int) -> bool:
    return Path(f"/proc/{process}").exists()


def run_groups(report: Report, data: Path, folder: Path, kind: str, size: int, rank: int) -> None:
    """One row: a killed job, and its resumption."""
    outcome = "stopped" if rank < 0 else "killed"
    name = f"{kind}: one of {size} processes {outcome}, the others end and the job resumes"
    place = folder / f"{kind}-{size}-{rank}"
    place.mkdir()
    command, log = words(data, place / "run", size), place / "log"
    failures: list[str] = []
    figures: dict[str, Any] = {}
    with noted(failures, name):
        if kind == "alone":
            seconds = without_a_launcher(command, size, rank, log, place / "run")
        else:
            seconds = with_a_launcher(kind, command, size, log, place / "run")
        figures = {"seconds_until_all_ended": round(seconds, 1)}
        finish(command, size, place / "resumed")
        wrong = difference(place / "run", folder / f"whole{size}")
        assert not wrong, wrong
    report.add(name, count=1, failures=failures, rank=size - 1 if rank < 0 else rank, **figures)


def finish(command: list[str], size: int, log: Path) -> None:
    """Run a job to its end."""
    finished = [forks.wait(process) for process in alone(command, size, log)]
    assert set(finished) == {0}, log.with_suffix(".0").read_text()[-1500:]


def rounding(report: Report, data: Path, folder: Path, size: int) -> None:
    """How far a resumed run is from an undisturbed one with torch's own DDP."""
    undisturbed, resumed = folder / "whole", folder / "resumed"
    resumed.mkdir(parents=True)
    finish(words(data, undisturbed, size, "pytorch_ddp"), size, undisturbed)
    shutil.copy(undisturbed / "checkpoint_2_6.pt", resumed / "checkpoint_last.pt")
    finish(words(data, resumed, size, "pytorch_ddp"), size, resumed)
    ends = [load(run / "checkpoint_last.pt")["model"] for run in (undisturbed, resumed)]
    far = max(float((ends[0][name] - ends[1][name]).abs().max()) for name in ends[0])
    report.add(
        f"{size} processes with torch's own DDP resume to rounding, not to the bit",
        count=1,
        failures=[] if far < 0.01 else [f"a weight differs by {far}"],
        largest_difference_of_a_weight=far,
    )


def main() -> None:
    args = parser(__doc__).parse_args()
    report = Report("gloo", args)
    forks.preload()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        text = digits_corpus(folder / "text", train=160, valid=10, test=10)
        data = binarize(text, folder / "bin")
        for size in (2, 4):
            undisturbed = folder / f"whole{size}"
            finish(words(data, undisturbed, size), size, undisturbed)
        for size in (2, 4):
            for rank in (*range(size), -1):
                run_groups(report, data, folder, "alone", size, rank)
        for kind, size in (("spawned", 2), ("torchrun", 2), ("spawned", 4)):
            run_groups(report, data, folder, kind, size, size - 1)
        rounding(report, data, folder / "rounding", 4)
    report.end()


if __name__ == "__main__":
    main()
