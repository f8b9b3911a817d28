"""The table of docs/reliability.md, from the JSON files that the parts have written."""

import json
import sys
from collections.abc import Iterable
from pathlib import Path

from tests.support.harness import REPO

RESULTS = REPO / "docs" / "results"
HEADER = ("part", "check", "times", "failed", "observed")
LABELS = {  # of the figures whose names in the JSON do not explain themselves
    "left_temporary_files": "kills that left temporary files",
    "felt": "runs that met the fault",
    "memory_before_mib": "MiB before",
    "memory_peak_mib": "MiB at most",
    "change_in_per_cent": "memory growth in per cent",
    "rank": "rank of that process",
    "runs": "trainings killed",
    "moments": "moments of the kills",
    "no_HTTP": "not HTTP",
    "left_before_the_answer": "client left before the answer",
    "left_while_sending": "client left while sending",
}
MEMORY = ("mib_after_a_tenth", "mib_at_25%", "mib_at_50%", "mib_at_75%", "mib_at_the_end")


def figures(row: dict) -> str:
    """The figures of a row beside its counts, in words."""
    rest = {name: row[name] for name in row if name not in ("check", "count", "failures")}
    rest.pop("updates_done_when_killed", None)
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
