"""Predict the cost of large corpora from measured figures, as a table in docs/scale.md.

    python benchmarks/predicted_cost.py            # write the table
    python benchmarks/predicted_cost.py --check    # status 1 if it is not what the figures say

Every row is an amount of work divided by a measured speed of one core, and nothing else: no figure
of a GPU, none of several machines. Tokens of a pair are an assumption, as given by --tokens.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parent.parent
RESULTS = REPO / "docs" / "results"
PAGE = REPO / "docs" / "scale.md"
BEGIN, END = "<!-- benchmarks/predicted_cost.py writes this table -->\n", "<!-- end of it -->\n"
CORPORA = {"WMT14 En–Fr": 36_000_000, "a billion pairs": 1_000_000_000}
TRAINED = {
    "updates_toolkits_512": {"transformer 512": "transformer, 6 + 6 layers of 512"},
    "updates_rivals_512": {"gru 512": "GRU with attention, 512", "muse 512": "MUSE, 512"},
    "updates_1_thread_transformers": {"transformer 128": "transformer of a Multi30k run"},
    "updates_1_thread": {
        "gru": "GRU of a Multi30k run",
        "muse": "MUSE of a Multi30k run",
        "linformer": "Linformer of a Multi30k run",
        "bmt": "BMT of a Multi30k run",
    },
}
"""By file of training speeds, its models and their names in the table."""


Row = tuple[str, float, str]
"""The work, the pairs that one core does in a second, and the file with this speed."""


def _figures(name: str) -> list[dict[str, Any]]:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))["figures"]


def rows(tokens: float) -> list[Row]:
    """List all work whose speed was measured, for targets of this many tokens."""
    ours = [figure for figure in _figures("preprocessing") if figure["name"] == "ours"]
    largest = max(ours, key=lambda figure: figure["pairs"])
    costs: list[Row] = [("Moses tokens, cleaning, subwords", largest["per_core"], "preprocessing")]
    for name, models in TRAINED.items():
        speeds = {
            figure["what"]: figure["tokens_per_second"] / tokens
            for figure in _figures(name)
            if figure["candidate"] == "plugin"
        }
        costs += [(f"an epoch: {work}", speeds[model], name) for model, work in models.items()]
    name = "engine_transformer_512"
    engine = [figure for figure in _figures(name) if figure["candidate"] == "engine int8"]
    largest = max(engine, key=lambda figure: figure["n"])
    work = f"translating: transformer, 6 + 6 layers of 512, engine, int8, batches of {largest['n']}"
    return [*costs, (work, largest["tokens_per_second"] / tokens, name)]


def table(tokens: float) -> str:
    """Format the core hours of each corpus, to two significant digits, as Markdown."""
    head = ["", *(f"{name}, {pairs / 1e6:,g} million" for name, pairs in CORPORA.items()), "from"]
    lines = [head, ["---", *["--:"] * len(CORPORA), "---"]]
    for work, per_second, source in rows(tokens):
        hours = (pairs / per_second / 3600 for pairs in CORPORA.values())
        cells = (f"{float(f'{value:.2g}'):,g}" for value in hours)
        lines.append([work, *cells, f"[{source}](results/{source}.json)"])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def page(text: str, tokens: float) -> str:
    """Return the page with its table replaced by one of the current figures."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table(tokens)}\n{END}{after}"


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--tokens", type=float, default=30, help="of a target sentence (30)")
    parser.add_argument("--check", action="store_true", help="write nothing, but compare")
    options = parser.parse_args(words)
    text = PAGE.read_text(encoding="utf-8")
    updated = page(text, options.tokens)
    if not options.check:
        PAGE.write_text(updated, encoding="utf-8")
        print(table(options.tokens))
    elif updated != text:
        sys.exit(f"{PAGE.name} is not what the figures say: python benchmarks/predicted_cost.py")


if __name__ == "__main__":
    main()
