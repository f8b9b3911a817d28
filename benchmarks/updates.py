"""Whole updates of fairseq-train: with the plugin, with it as it was, and stock fairseq without it.

``python benchmarks/updates.py --data BIN --threads 1 --json docs/results/updates_1_thread.json``

Each side is a process of its own that runs fairseq's trainer on the same batches in the same order:
loss, gradients, clipping, Adam, logging. A round is the same number of updates by each side in
turn. `before` is the plugin without the patches of `fairseq_ext/plugin/patches/speed.py`. Ratios
are a peer's time over ours. Memory is the most that a side has had resident, fairseq and torch
themselves included.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from argparse import Namespace
from pathlib import Path
from typing import Any

import shared_options
from cells import Cells

WORKER = Path(__file__).with_name("updates_worker.py")
USER_DIR = Path(__file__).parent.parent / "user_dir"
OURS, BEFORE, STOCK = "plugin", "before", "stock"
WITHOUT_SPEED = """
from fairseq_ext.plugin import patches
from fairseq_ext.plugin.patches import speed
patches.PATCHES = tuple(patch for patch in patches.PATCHES if patch not in speed.PATCHES)
import fairseq_ext
fairseq_ext.register()
"""


def sizes(layers: int, embed_dim: int, ffn_embed_dim: int, heads: int) -> list[str]:
    """Flags of a transformer's shape."""
    flags = ["--share-all-embeddings"]
    for side in ("encoder", "decoder"):
        flags += [f"--{side}-layers", str(layers), f"--{side}-embed-dim", str(embed_dim)]
        flags += [f"--{side}-ffn-embed-dim", str(ffn_embed_dim)]
        flags += [f"--{side}-attention-heads", str(heads)]
    return flags


MODELS = {
    name: words.split() + (sizes(*shape) if shape else ["--share-all-embeddings"])
    for name, words, shape in (
        ("transformer 128", "--arch transformer", (4, 128, 256, 4)),
        ("transformer 512", "--arch transformer", (6, 512, 1024, 4)),
        (
            "gru",
            "--arch gru_attention --encoder-embed-dim 128 --decoder-embed-dim 128 "
            "--encoder-hidden-size 216 --decoder-hidden-size 216",
            None,
        ),
        ("linformer", "--arch linformer_tiny", None),
        ("muse", "--arch muse_tiny", (4, 128, 160, 4)),
        ("bmt", "--arch bmt_tiny", (4, 128, 256, 4)),
    )
}
WITHOUT_PLUGIN = ("transformer 128", "transformer 512")


class Side:
    """A training process that makes updates when asked."""

    def __init__(self, name: str, flags: list[str], options: Namespace, plugin: Path | None):
        words = [*flags, *training(options), *(("--user-dir", str(plugin)) if plugin else ())]
        self.process = subprocess.Popen(
            [sys.executable, WORKER, options.data, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if not options.verbose else None,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": str(options.threads)},
        )
        self.name = name

    def run(self, updates: int) -> dict[str, Any]:
        """Make so many updates; their seconds, target tokens, losses, and the memory so far."""
        self.process.stdin.write(f"{updates}\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit(f"{self.name}: {self.process.communicate()[1][-2000:]}")
        return json.loads(answer)

    def end(self) -> None:
        self.process.stdin.close()
        self.process.wait()


def training(options: Namespace) -> list[str]:
    """Flags of fairseq-train that all sides share."""
    return [
        *("--optimizer", "adam", "--adam-betas", "(0.9, 0.98)", "--clip-norm", "1.0"),
        *("--lr", "0.001", "--lr-scheduler", "inverse_sqrt", "--warmup-updates", "1000"),
        *("--criterion", "label_smoothed_cross_entropy", "--label-smoothing", "0.1"),
        *("--dropout", str(options.dropout), "--max-tokens", str(options.tokens)),
        *("--num-workers", "0", "--seed", "1", "--no-save", "--disable-validation", "--cpu"),
        *("--max-update", "1000000", "--log-interval", "100", "--no-progress-bar"),
    ]


def compare(name: str, options: Namespace, before: Path, cells: Cells) -> None:
    """Time the updates of one model."""
    plugins = {OURS: USER_DIR, BEFORE: before}
    if name in WITHOUT_PLUGIN:
        plugins[STOCK] = None
    sides = [Side(side, MODELS[name], options, plugin) for side, plugin in plugins.items()]
    seconds: dict[str, list[float]] = {side.name: [] for side in sides}
    losses: dict[str, list[float]] = {side.name: [] for side in sides}
    tokens = memory = None
    for side in sides:
        losses[side.name] += side.run(options.warmup)["losses"]
    for number in range(options.repeats):
        for side in sides if number % 2 else sides[::-1]:
            answer = side.run(options.updates)
            seconds[side.name].append(answer["seconds"] / options.updates)
            losses[side.name] += answer["losses"]
            tokens = answer["tokens"] / options.updates
    memory = {side.name: side.run(0)["mebibytes"] for side in sides}
    for side in sides:
        side.end()
    peers = [peer for peer in (BEFORE, STOCK) if peer in seconds]
    differences = {  # with dropout, the sides drop other values
        peer: max(abs(a - b) / abs(b) for a, b in zip(losses[OURS], losses[peer], strict=True))
        for peer in (peers if options.dropout == 0 else ())
    }
    cells.add(
        name,
        None,
        seconds,
        [(OURS, peer) for peer in peers],
        tokens=tokens,
        mebibytes=memory,
        largest_relative_difference_of_losses=differences,
    )
    print(f"  resident MiB: {memory}; largest differences of losses: {differences}", flush=True)


def arguments() -> argparse.ArgumentParser:
    parser = shared_options.parser_with(
        __doc__, threads=1, repeats=9, warmup=5, tokens=1000, dropout=0.1
    )
    parser.add_argument("--data", required=True, help="a binarized corpus with a joint dictionary")
    parser.add_argument("--updates", type=int, default=5, help="of each side in a round")
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--verbose", action="store_true", help="show what the sides log")
    return parser


def main() -> None:
    options = arguments().parse_args()
    shared_options.begin(options)
    cells = Cells(f"Whole updates of fairseq-train, {options.threads} thread(s)")
    with tempfile.TemporaryDirectory() as folder:
        before = Path(folder, "before")
        before.mkdir()
        (before / "__init__.py").write_text(WITHOUT_SPEED)
        for name in options.models:
            compare(name, options, before, cells)
    cells.save(options.json, shared_options.settings(options, ("json", "data")))


if __name__ == "__main__":
    main()
