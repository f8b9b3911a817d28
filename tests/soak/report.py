"""What all parts have in common: options, progress, the JSON that they write, and its table."""

import argparse
import json
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.bench import machine
from fairseq_ext.utils.files import atomic_write
from tests.support.harness import REPO, binarize, digits_corpus, fairseq
from tests.support.trainings import ARCHITECTURES, TRAINING


def parser(description: str) -> argparse.ArgumentParser:
    """A parser with the options of every part; of its description the first line is used."""
    options = argparse.ArgumentParser(description=description.partition("\n")[0])
    options.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    options.add_argument("--seed", type=int, default=1, help="of all draws (%(default)s)")
    return options


def trained(folder: Path, *architectures: str, updates: int = 20) -> tuple[Path, list[Path]]:
    """Make a small corpus, and a checkpoint of each architecture after a few updates on it."""
    data = binarize(digits_corpus(folder / "text", train=300), folder / "bin")
    for name in architectures:
        run = (*ARCHITECTURES[name], *TRAINING, "--max-update", updates)
        fairseq("train", data, *run, "--save-dir", folder / name)
    return data, [folder / name / "checkpoint_last.pt" for name in architectures]


def say(text: str) -> None:
    """One line of progress."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)


class Report:
    """Rows of checks, each with how often it was done and what went wrong."""

    def __init__(self, part: str, args: argparse.Namespace) -> None:
        self.part, self.args, self.began = part, args, time.monotonic()
        self.rows: list[dict[str, Any]] = []

    def add(self, check: str, *, count: int, failures: list[str], **figures: Any) -> None:
        """One row; ``failures`` describes each one of ``count`` that did not end as it should."""
        self.rows.append({"check": check, "count": count, "failures": failures, **figures})
        suffix = ", ".join(f"{name} {value}" for name, value in figures.items())
        say(f"{check}: {count} done, {len(failures)} failed{', ' + suffix if suffix else ''}")
        for failure in failures:
            say(f"  FAILED: {failure}")

        self._write()  # what is done is kept, should the rest be stopped

    @property
    def failed(self) -> int:
        """How many have failed so far."""
        return sum(len(row["failures"]) for row in self.rows)

    @property
    def figures(self) -> dict[str, Any]:
        """What is written."""
        return {
            "part": self.part,
            "machine": machine(),
            "seed": self.args.seed,
            "seconds": round(time.monotonic() - self.began),
            "count": sum(row["count"] for row in self.rows),
            "failed": self.failed,
            "checks": self.rows,
        }

    def _write(self) -> None:
        if self.args.json:
            with atomic_write(self.args.json) as file:
                json.dump(self.figures, file, indent=1, ensure_ascii=False)
                file.write("\n")

    def end(self) -> None:
        """End the process: with status 1 if anything failed."""
        say("{part}: {count:,} done, {failed} failed, {seconds} s".format_map(self.figures))
        sys.exit(self.failed > 0)


@contextmanager
def noted(failures: list[str], topic: str) -> Iterator[None]:
    """Take a failed assertion in the block for a failure of ``what``, and go on."""
    try:
        yield
    except AssertionError as error:
        failures.append(f"{topic}: {str(error)[-2000:] or 'assertion failed'}")


RESULTS = REPO / "docs" / "results"
HEADER = ("part", "check", "times", "failed", "observed")
LABELS = {  # of the figures whose names in the JSON do not explain themselves
    "felt": "runs that met the fault",
    "change_in_per_cent": "memory growth in per cent",
    "runs": "trainings killed",
    "byte": "kills while a checkpoint was written",
    "operation": "kills at a file operation",
    "time": "kills at a time",
    "no_HTTP": "not HTTP",
    "left_before_the_answer": "client left before the answer",
    "left_while_sending": "client left while sending",
}
MEMORY = ("mib_after_a_tenth", "mib_at_25%", "mib_at_50%", "mib_at_75%", "mib_at_the_end")


def figures(row: dict) -> str:
    """The figures of a row beside its counts, in words."""
    rest = {name: row[name] for name in row if name not in ("check", "count", "failures")}
    rest.pop("updates_done_when_killed", None)
    rest |= dict(sorted(rest.pop("moments", {}).items()))
    if MEMORY[0] in rest:
        sizes = ", ".join(_shown(rest.pop(name)) for name in MEMORY)
        rest = {"MiB at 10, 25, 50, 75 and 100% of the work": sizes, **rest}
    return "; ".join(f"{_label(name)}: {_shown(value)}" for name, value in rest.items())


def _label(name: str) -> str:
    return LABELS.get(name, name.replace("mib", "MiB").replace("_", " "))


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {value[name]:,}" for name in sorted(value))
    if isinstance(value, float):
        return f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def table(paths: Iterable[Path]) -> str:
    """A Markdown table with a line for each check."""
    lines = ["| " + " | ".join(HEADER) + " |", "|---|---|---:|---:|---|"]
    for path in paths:
        report = json.loads(path.read_text(encoding="utf-8"))
        for row in report["checks"]:
            part = f"[{report['part']}](results/{path.name})"
            counts = f"{row['count']:,} | {len(row['failures']):,}"
            lines.append(f"| {part} | {row['check']} | {counts} | {figures(row)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Print the table of all parts that have been run."""
    sys.stdout.write(table(sorted(RESULTS.glob("reliability_*.json"))))


if __name__ == "__main__":
    main()
