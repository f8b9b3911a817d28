"""Resident memory stays flat: 10,000 sentences in one command, 2,000 updates of one training.

Memory after a tenth of the work is compared with memory at its end: the medians of what was seen
in the last twentieth before each.
"""

import argparse
import random
import re
import statistics
import subprocess
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.soak.report import Report, noted, parser, say, trained
from tests.support.harness import USER_DIR, start
from tests.support.trainings import ARCHITECTURES, TRAINING

LIMIT = 3.0  # per cent
PAGE = 4096


def resident(process: subprocess.Popen) -> int:
    """Bytes of memory that a process has resident."""
    return int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * PAGE


class Samples:
    """Memory seen while the work went on."""

    def __init__(self, unit: str, total: int) -> None:
        self.what, self.total, self.seen = unit, total, [(0, 0)]

    def take(self, done: int, process: subprocess.Popen) -> None:
        """Note the memory of ``process`` when ``done`` units of work are done."""
        tenths = 10 * done // self.total
        if tenths > 10 * self.seen[-1][0] // self.total:
            say(f"{self.what}: {done} of {self.total}, {resident(process) >> 20} MiB")
        self.seen.append((done, resident(process)))

    def around(self, share: float) -> float:
        """The median in MiB in the twentieth of the work that ends at ``share`` of it."""
        low, high = (share - 0.05) * self.total, share * self.total
        sizes = [size for done, size in self.seen if low < done <= high]
        return statistics.median(sizes or [self.seen[-1][1]]) / 2**20

    def add_to(self, report: Report, failures: list[str], **counts: int) -> None:
        """The row of the report, with more figures at its end."""
        early, late = self.around(0.1), self.around(1.0)
        growth = 100 * (late - early) / early
        if abs(growth) > LIMIT:
            failures.append(f"memory changed by {growth:.1f} % from {early:.0f} MiB")
        figures = {"mib_after_a_tenth": round(early, 1), "mib_at_the_end": round(late, 1)}
        for share in (0.25, 0.5, 0.75):
            figures[f"mib_at_{share:.0%}"] = round(self.around(share), 1)
        figures["change_in_per_cent"] = round(growth, 2)
        report.add(self.what, count=self.total, failures=failures, **figures, **counts)


def translating(report: Report, data: Path, model: Path, total: int) -> None:
    """One ``fairseq-ext translate`` that is fed from a pipe."""
    samples, draw = Samples("sentences in one `fairseq-ext translate`", total), random.Random(1)
    lines = [
        " ".join(str(draw.randrange(10)) for _ in range(draw.randint(1, 9))) for _ in range(total)
    ]
    options = ("--path", model, "--buffer-size", 50, "--beam", 2, "--max-len-b", 15, "--cpu")
    pipe = subprocess.PIPE
    words = ("fairseq-ext", "translate", data, *options)
    process = start(*words, stdin=pipe, stdout=pipe, stderr=None, text=True)

    def feed() -> None:
        with process.stdin as pipe:
            pipe.writelines(line + "\n" for line in lines)

    threading.Thread(target=feed, daemon=True).start()
    failures: list[str] = []
    for done, _ in enumerate(process.stdout, start=1):
        if done % 50 == 0:
            samples.take(done, process)
    with noted(failures, "translate"):
        assert process.wait() == 0
        assert done == total, f"{done} lines came back"
    samples.add_to(report, failures)


def training(report: Report, data: Path, folder: Path, total: int) -> None:
    """One ``fairseq-train`` with its validations and checkpoints."""
    samples = Samples("updates of one `fairseq-train`", total)
    options = (*ARCHITECTURES["gru_tiny"], *TRAINING, "--log-interval", 10, "--max-update", total)
    saving = ("--save-interval-updates", 50, "--keep-interval-updates", 2, "--no-epoch-checkpoints")
    where = ("--save-dir", folder, "--user-dir", USER_DIR, "--log-format", "simple")
    words = ("fairseq-train", data, *options, *saving, *where)
    process = start(*words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    last = ""
    for line in process.stdout:
        last = line
        if match := re.search(r"train_inner .*num_updates=(\d+)", line):
            samples.take(int(match[1]), process)
    failures: list[str] = []
    with noted(failures, "train"):
        assert process.wait() == 0, last
    samples.add_to(report, failures)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--sentences", type=int, default=10_000, metavar="N")
    options.add_argument("--updates", type=int, default=2_000, metavar="N")
    args = options.parse_args()
    report = Report("memory", args)
    with tempfile.TemporaryDirectory() as scratch:
        run_all(report, args, Path(scratch))
    report.end()


def run_all(report: Report, args: argparse.Namespace, folder: Path) -> None:
    """Both checks at the same time."""
    data, (model,) = trained(folder, "gru_tiny")
    with ThreadPoolExecutor() as pool:
        checks = (
            pool.submit(training, report, data, folder / "long", args.updates),
            pool.submit(translating, report, data, model, args.sentences),
        )
        for check in checks:
            check.result()


if __name__ == "__main__":
    main()
