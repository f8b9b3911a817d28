#!/usr/bin/env python
"""The table of ``table1.sh``: what is binarized, validation loss and BLEU of each row.

    python recipes/bmt/table1.py --dir runs/table1-…

Writes ``table1.json``, ``table1.md`` and the learning curves ``curves.png`` there. The loss is the
references' negative log-likelihood in nats per token, as in the paper.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import sys
from pathlib import Path
from typing import Any

from fairseq_ext.binary.switches import PRESETS
from fairseq_ext.evaluation import plots, training_log
from fairseq_ext.evaluation.tables import markdown
from fairseq_ext.utils import files


def row(folder: Path) -> dict[str, Any]:
    """Read the figures of a model."""
    scores = json.loads((folder / "scores.json").read_text(encoding="utf-8"))["scores"]
    perplexities = training_log.read_log(folder / "train.log").valid["ppl"]
    last = max(perplexities)
    switches = PRESETS[folder.name]
    return {
        "binary_weights": sorted(switches.weights),
        "binary_activations": sorted(switches.activations),
        "updates": int(last),
        "valid_loss": math.log(perplexities[last]),
        "scores": scores,
        "settings": (folder / "settings.txt").read_text(encoding="utf-8").strip().split("\n"),
    }


def table(rows: dict[str, dict[str, Any]]) -> str:
    """Render the rows as Markdown."""
    names = [score["name"].split(" ")[0] for score in next(iter(rows.values()))["scores"]]
    lines = [["", "1-bit weights", "1-bit activations", "valid loss", *names]]
    for name, figures in rows.items():
        values = [f"{score['value']:.2f}" for score in figures["scores"]]
        binary = [" ".join(figures[f"binary_{kind}"]) for kind in ("weights", "activations")]
        lines.append([name, *binary, f"{figures['valid_loss']:.3f}", *values])
    return markdown(lines)


def main() -> None:
    """Run the command; a user's error ends it with one line and status 1."""
    logging.getLogger("matplotlib").setLevel(logging.WARNING)  # fairseq's import chooses DEBUG
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--dir", type=Path, required=True, help="the folder of table1.sh")
    folder = parser.parse_args().dir
    finished = [name for name in PRESETS if (folder / "models" / name / "scores.json").exists()]
    if not finished:
        sys.exit(f"table1: error: `{folder}` holds no finished row; run table1.sh first.")
    rows = {name: row(folder / "models" / name) for name in finished}
    text = table(rows)
    for name, content in {"json": json.dumps(rows, indent=1), "md": text}.items():
        with files.atomic_write(folder / f"table1.{name}") as file:
            file.write(content + "\n")
    logs = {name: folder / "models" / name / "train.log" for name in rows}
    curves = {name: training_log.read_log(path) for name, path in logs.items()}
    plots.plot_curves(curves, folder / "curves.png")
    print(text)


if __name__ == "__main__":
    main()
