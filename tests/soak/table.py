"""The table of docs/reliability.md, from the JSON files that the parts have written."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path

from tests.support.harness import REPO

RESULTS = REPO / "docs" / "results"
HEADER = ("part", "check", "times", "failed", "seen")


def figures(row: dict) -> str:
    """What a row has beside its counts, in words."""
    rest = {name: row[name] for name in row if name not in ("check", "count", "failures")}
    rest.pop("updates_done_when_killed", None)
    return "; ".join(f"{name.replace('_', ' ')}: {_shown(value)}" for name, value in rest.items())


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {value[name]}" for name in sorted(value))
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
