"""``kill -9`` at random moments of training: the end is bit for bit that of an undisturbed run.

Each of the configurations is trained once undisturbed; then again with a kill, and the same command
is started again, until the run is done. A kill comes at a random point in time, the next one at a
random file operation in the run's folder, the third at a random byte of the files being written.
"""

import os
import random
import signal
import subprocess
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from torch.distributed.elastic.utils.distributed import get_free_port

from tests.soak.report import Report, noted, parser
from tests.support.harness import USER_DIR, after, binarize, digits_corpus, start
from tests.support.trainings import ARCHITECTURES, TRAINING, load, same_state

BMT = (
    *("--arch", "bmt_tiny", "--encoder-layers", 1, "--decoder-layers", 1),
    *("--bmt-preset", "bmt-6", "--stage-updates", "7,7,7"),
    *("--lr-scheduler", "staged_cosine", "--warmup-updates", 2),
)
BINARY = (
    *("--arch", "binary_transformer_tiny", "--encoder-layers", 1, "--decoder-layers", 1),
    *("--binary-weights", "qkv,out,ffn", "--binary-activations", "qkv,out,ffn"),
)
EMA = ("--store-ema", "--ema-decay", 0.9)
TWO = "two processes"
WORKER = ("--num-workers", 1)

RUNS: dict[str, tuple[tuple[object, ...], int]] = {
    "gru_tiny": (ARCHITECTURES["gru_tiny"], 8),
    "linformer_tiny": (ARCHITECTURES["linformer_tiny"], 8),
    "muse_tiny": (ARCHITECTURES["muse_tiny"], 8),
    "bmt_tiny, three stages": (BMT, 15),
    "binary_transformer_tiny": (BINARY, 8),
    "transformer": (ARCHITECTURES["transformer"], 8),
    "lstm": (ARCHITECTURES["lstm"], 8),
    "transformer, bf16": ((*ARCHITECTURES["transformer"], "--bf16"), 8),
    "muse_tiny, bf16, EMA": ((*ARCHITECTURES["muse_tiny"], "--bf16", *EMA, "--ema-fp32"), 7),
    "gru_tiny, EMA": ((*ARCHITECTURES["gru_tiny"], *EMA), 7),
    "bmt_tiny, EMA, a worker": ((*BMT, *EMA, *WORKER), 5),
    f"gru_tiny, {TWO}": (ARCHITECTURES["gru_tiny"], 5),
    f"muse_tiny, bf16, {TWO}": ((*ARCHITECTURES["muse_tiny"], "--bf16"), 5),
}
"""Options, and how many kills: 100 in all."""

LENGTH = ("--max-update", 21, "--save-interval-updates", 3, "--dropout", 0.1, "--max-tokens", 100)


def state(path: Path) -> dict[str, Any]:
    """All of a checkpoint but clocks, the names of folders, and how often it was resumed."""
    checkpoint = load(path)
    del checkpoint["cfg"], checkpoint["args"], checkpoint["optimizer_history"][:-1]
    extra = dict(checkpoint["extra_state"])
    for clock in ("metrics", "previous_training_time"):
        extra.pop(clock, None)
    return {**checkpoint, "extra_state": extra}


def difference(ended: Path, undisturbed: Path) -> str:
    """How two folders of finished runs differ, or nothing."""
    names = [sorted(path.name for path in folder.iterdir()) for folder in (ended, undisturbed)]
    if names[0] != names[1]:
        return f"files: {sorted(set(names[0]) ^ set(names[1]))}"
    return ", ".join(name for name in names[0] if not equal(ended / name, undisturbed / name))


def equal(path: Path, other: Path) -> bool:
    """Checkpoints and logs but for clocks; other files, such as the text pipeline, to the byte."""
    if path.suffix == ".pt":
        return same_state(state(path), state(other))
    return path.suffix == ".log" or path.read_bytes() == other.read_bytes()


class Job:
    """One configuration, trained in a folder by one process or by two."""

    def __init__(self, name: str, data: Path, folder: Path, log: Path) -> None:
        self.folder, self.log, self.two = folder, log, TWO in name
        self.words = (
            *("fairseq-train", data, *TRAINING, *RUNS[name][0], *LENGTH),
            *("--save-dir", folder, "--user-dir", USER_DIR),
        )

    def start(self, code: str = "") -> list[subprocess.Popen[bytes]]:
        """Start it; the process that saves runs the code first."""
        join = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(get_free_port())}
        processes = []
        for rank in range(1 + self.two):
            place = {**join, "RANK": str(rank), "LOCAL_RANK": str(rank)} if self.two else {}
            words = after("" if rank else code, *self.words)
            with self.log.open("ab") as log:
                streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
                processes.append(start(*words, env=place, preexec_fn=os.setpgrp, **streams))
        return processes

    def finish(self, code: str = "") -> None:
        """Run it to its end."""
        statuses = [process.wait(600) for process in self.start(code)]
        assert not any(statuses), f"status {statuses}: {self.log.read_text()[-1500:]}"

    def killed(self, code: str, seconds: float) -> bool:
        """Start it and kill it, after so many seconds if code does not; false if it had ended."""
        processes = self.start(code)
        deadline = time.monotonic() + (600 if code else seconds)
        while time.monotonic() < deadline and all(process.poll() is None for process in processes):
            time.sleep(0.002)
        if all(process.poll() in (None, 0) for process in processes) and any(
            process.poll() == 0 for process in processes
        ):
            for process in processes:  # where one has ended well, the other does too
                process.wait(600)
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        statuses = {process.wait() for process in processes}
        killed = -signal.SIGKILL in statuses
        possible = {0, -9, 1} if self.two and killed else {0, -9}  # 1 for one that lost the other
        assert statuses <= possible, f"{statuses}: {self.log.read_text()[-1500:]}"
        return killed


def progress(folder: Path) -> int:
    """Updates in the newest checkpoint of a folder, 0 without any."""
    path = folder / "checkpoint_last.pt"
    return load(path)["optimizer_history"][-1]["num_updates"] if path.exists() else 0


def soak_one(
    name: str, data: Path, folder: Path, kills: int, draw: random.Random
) -> dict[str, Any]:
    """Kill one configuration ``kills`` times; ends in an assertion if anything differs."""
    undisturbed = Job(name, data, folder / "whole", folder / "whole.log")
    counted = folder / "operations"
    began = time.monotonic()
    undisturbed.finish(f"at_operation(-1, {str(undisturbed.folder)!r}, {str(counted)!r})")
    seconds, operations = time.monotonic() - began, int(counted.read_text())
    size = sum(path.stat().st_size for path in undisturbed.folder.iterdir())
    kinds: Counter[str] = Counter()
    updates: list[int] = []
    rounds = 0
    while len(updates) < kills:
        rounds += 1
        job = Job(name, data, folder / f"killed{rounds}", folder / f"killed{rounds}.log")
        while len(updates) < kills:
            kind = ("time", "operation", "byte")[len(updates) % 3]
            # early enough that runs have several kills, late enough that they get on
            code = ""
            if kind != "time":
                function, most = {
                    "operation": ("at_operation", operations),
                    "byte": ("at_byte", size),
                }[kind]
                code = f"{function}({draw.randint(1, most // 2)}, {str(job.folder)!r})"
            if not job.killed(code, draw.uniform(0.1, 0.8) * seconds):
                break
            kinds[kind] += 1
            updates.append(progress(job.folder))
        job.finish()
        wrong = difference(job.folder, undisturbed.folder)
        assert not wrong, f"differs after {len(updates)} kills: {wrong}"
    return {"runs": rounds, "moments": dict(kinds), "updates_done_when_killed": updates}


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--runs", nargs="+", choices=[*RUNS], default=[*RUNS], help="only these")
    options.add_argument("--kills", type=int, help="of each configuration (100 in all)")
    args = options.parse_args()
    report = Report("kills", args)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        text = digits_corpus(folder / "text", train=110, valid=10, test=10)
        data = binarize(text, folder / "bin")
        for number, name in enumerate(args.runs):
            kills, place = args.kills or RUNS[name][1], folder / str(number)
            place.mkdir()
            failures: list[str] = []
            figures: dict[str, Any] = {}
            with noted(failures, name):
                draw = random.Random(f"{args.seed} {name}")
                figures = soak_one(name, data, place, kills, draw)
            report.add(name, count=kills, failures=failures, **figures)
    report.end()


if __name__ == "__main__":
    main()
