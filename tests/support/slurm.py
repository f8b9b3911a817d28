"""A stand-in for Slurm on one machine: ``sbatch``, ``srun`` and ``scontrol`` that start processes.

    SLURM_STANDIN=FOLDER sbatch --nodes 2 SCRIPT ARGUMENT...

``sbatch`` runs the script as a job, and waits for it. When the file FOLDER/limit appears, the job's
shell gets the signal of ``#SBATCH --signal=B:…``, as if its time were nearly over. A job that is
queued again is ended with all its processes, and then started again. ``srun`` starts ``--ntasks``
processes, all on this machine.
"""

import contextlib
import os
import re
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

NAMES = ("sbatch", "srun", "scontrol")
JOB = "4711"
SIGNALS = (signal.SIGTERM, signal.SIGKILL)


def install(folder: Path) -> Path:
    """Write the commands into a folder for PATH."""
    folder.mkdir()
    for name in NAMES:
        path = folder / name
        path.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{__file__}" {name} "$@"\n')
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return folder


def _options(words: list[str]) -> tuple[dict[str, str], list[str]]:
    """Parse ``--NAME=VALUE`` and ``--NAME VALUE``; return the options and the remaining words."""
    options = {}
    while words and words[0].startswith("--"):
        name, equals, value = words[0].partition("=")
        options[name] = value if equals else words[1]
        words = words[1 if equals else 2 :]
    return options, words


def sbatch(words: list[str]) -> int:
    options, command = _options(words)
    folder = Path(os.environ["SLURM_STANDIN"])
    directives = dict(
        re.findall(r"^#SBATCH (--\S+?)=(\S+)", Path(command[0]).read_text(), re.MULTILINE)
    )
    warning = getattr(signal, f"SIG{directives['--signal'].partition(':')[2].partition('@')[0]}")
    nodes = options.get("--nodes", directives["--nodes"])
    for restart in range(10):
        job = {"SLURM_JOB_ID": JOB, "SLURM_JOB_NUM_NODES": nodes, "SLURM_GPUS_ON_NODE": "2"}
        job |= {"SLURM_JOB_NODELIST": f"nodes[1-{nodes}]", "SLURM_RESTART_COUNT": str(restart)}
        process = subprocess.Popen(
            ["bash", *command], env={**os.environ, **job}, start_new_session=True
        )
        requeued = folder / "requeued"
        while process.poll() is None and not requeued.exists():
            if (folder / "limit").exists():
                (folder / "limit").unlink()
                process.send_signal(warning)
            time.sleep(0.05)
        if not requeued.exists():
            return process.returncode
        requeued.unlink()
        _end(SIGNALS, {f"SLURM_STANDIN={folder}", f"SLURM_JOB_ID={JOB}"})
        process.wait()
    return 1


def _end(signals: Iterable[signal.Signals], marks: set[str]) -> None:
    """End all processes with the variables ``marks``; torchrun's workers have other sessions."""
    for number in signals:
        deadline = time.monotonic() + 10
        sent: set[int] = set()
        while (marked := _marked(marks)) and time.monotonic() < deadline:
            for pid in marked - sent:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            sent |= marked
            time.sleep(0.05)


def _marked(marks: set[str]) -> set[int]:
    """Return the ids of the processes with all variables ``marks`` in their environment."""
    processes = set()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # it has ended, or is somebody else's
            if marks <= {*path.read_text(errors="replace").split("\0")}:
                processes.add(int(path.parent.name))
    return processes


def srun(words: list[str]) -> int:
    options, command = _options(words)
    tasks = [
        subprocess.Popen(command, env={**os.environ, "SLURM_PROCID": str(rank)})
        for rank in range(int(options["--ntasks"]))
    ]
    statuses: list[int] = []
    while len(statuses) < len(tasks):
        statuses = [status for task in tasks if (status := task.poll()) is not None]
        if any(statuses) and options.get("--kill-on-bad-exit") == "1":
            for task in tasks:
                task.kill()
        time.sleep(0.05)
    return max(map(abs, statuses))


def scontrol(words: list[str]) -> int:
    if words[:2] == ["show", "hostnames"]:
        count = int(os.environ["SLURM_JOB_NUM_NODES"])
        print("localhost", *(f"node{number}" for number in range(2, count + 1)), sep="\n")
        return 0
    assert words == ["requeue", JOB], words
    (Path(os.environ["SLURM_STANDIN"]) / "requeued").touch()
    return 0


if __name__ == "__main__":
    sys.exit({"sbatch": sbatch, "srun": srun, "scontrol": scontrol}[sys.argv[1]](sys.argv[2:]))
