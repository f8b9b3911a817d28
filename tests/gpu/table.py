"""A short table of the results in a folder: ``python -m tests.gpu.table OUT``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

STEPS = ("laws", "processes", "updates", "layers", "generation", "multi30k")


def short(value: Any) -> str:
    """Format numbers with three digits, nested ones too."""
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} {short(one)}" for name, one in value.items()) + "}"
    if isinstance(value, list):
        return f"{short(value[0])} … {short(value[-1])}" if value else "[]"
    return str(value)


def rows(content: dict[str, Any]) -> Iterator[str]:
    """One line for each cell; of the laws only what failed."""
    for name, cell in content["cells"].items():
        if "error" in cell:
            last = cell["error"].strip().splitlines() or ["?"]
            yield f"{name}: ERROR {last[-1][:160]}"
        elif content["step"] != "laws":
            left_out = ("wall_seconds", "setting", "updates", "seconds", "tokens")
            parts = {key: value for key, value in cell.items() if key not in left_out}
            if content["step"] == "multi30k":
                parts["updates"] = cell["updates"]
            yield f"{name}: " + ", ".join(f"{key} {short(one)}" for key, one in parts.items())


def speedups(cells: dict[str, Any]) -> Iterator[str]:
    """Tokens per second of the plugin over the other side's."""
    for name, cell in cells.items():
        model, precision, side = name.rsplit(" ", 2)
        if side != "plugin" or "tokens_per_second" not in cell:
            continue
        for peer in ("stock", "without-speed"):
            other = cells.get(f"{model} {precision} {peer}", {})
            if "tokens_per_second" in other:
                ratio = cell["tokens_per_second"] / other["tokens_per_second"]
                yield f"{model} {precision}: plugin over {peer} {ratio:.2f}"


def main() -> None:
    folder = Path(sys.argv[1])
    for step in STEPS:
        path = folder / f"{step}.json"
        if not path.exists():
            continue
        content = json.loads(path.read_text())
        done = "complete" if content["complete"] else "NOT COMPLETE"
        print(f"\n== {step}: {done} {content.get('counts', '')} {content['machine']['gpu']}")
        for row in rows(content):
            print(row)
        if step == "updates":
            for row in speedups(content["cells"]):
                print(row)


if __name__ == "__main__":
    main()
