"""Measure the peak resident memory of training, over vocabulary and tokens of a batch.

    python benchmarks/updates_memory.py --json docs/results/updates_memory.json

Each figure is of a process of its own that makes --updates updates of fairseq's trainer on a
made-up corpus: stock fairseq, the plugin, and the plugin with ``--checkpoint-activations``. Python
and torch themselves are included; how much they have before the first update stands beside it.
"""

from __future__ import annotations

import itertools
import tempfile
from argparse import Namespace
from pathlib import Path
from typing import Any

import bench
import updates

PLUGIN = ["--user-dir", str(updates.USER_DIR)]
RECOMPUTED = "--checkpoint-activations"
SIDES = {
    updates.STOCK: [],
    updates.OURS: PLUGIN,
    f"plugin, {RECOMPUTED}": [*PLUGIN, RECOMPUTED],
}


def arguments() -> Namespace:
    parser = bench.parser_with(__doc__, threads=1, device="cpu", dropout=0.1, tokens=[1_000, 4_000])
    add = parser.add_argument
    add("--models", nargs="+", default=list(updates.WITHOUT_PLUGIN), choices=updates.MODELS)
    add("--vocabularies", type=int, nargs="+", default=[8_000, 32_000])
    add("--updates", type=int, default=2)
    add("--verbose", action="store_true", help="show what the sides log")
    return parser.parse_args()


def one(options: Namespace, data: str, model: str, tokens: int, flags: list[str]) -> dict[str, Any]:
    """Measure the memory of one process, in MiB."""
    options = Namespace(**{**vars(options), "tokens": tokens})
    words = [data, *updates.training(options), *updates.MODELS[model], *flags]
    side = updates.worker([str(updates.WORKER), *words], options)
    before = side.ask("0")["mebibytes"]
    answer = side.ask(str(options.updates))
    side.end()
    return {
        "mebibytes": answer["mebibytes"],
        "mebibytes_before_first_update": before,
        "tokens_of_an_update": answer["tokens"] / options.updates,
        "parameters": answer["parameters"],
    }


def main() -> None:
    options = arguments()
    bench.begin(options)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for vocabulary in options.vocabularies:
            place = Path(folder, str(vocabulary))
            place.mkdir()
            data = updates.made_up(place, vocabulary)
            for model, tokens in itertools.product(options.models, options.tokens):
                for side, flags in SIDES.items():
                    settings = {
                        "model": model,
                        "vocabulary": vocabulary,
                        "tokens": tokens,
                        "side": side,
                    }
                    rows.append({**settings, **one(options, data, model, tokens, flags)})
                    print(
                        f"{model}, V = {vocabulary:,}, {tokens:,} tokens, {side}: "
                        f"{rows[-1]['mebibytes']:,.0f} MiB",
                        flush=True,
                    )
    settings = bench.settings(options, without=("json", "verbose"))
    bench.save(options.json, title="Memory of training", settings=settings, rows=rows)


if __name__ == "__main__":
    main()
