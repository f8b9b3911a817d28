"""A picture of the figures of updates.py: how much longer each peer's updates take.

python benchmarks/updates_picture.py docs/results/updates_1_thread_avx2.json …
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pictures

from fairseq_ext.evaluation.plots import PALETTE, STYLE

PLUGIN = "plugin"
PEERS = {
    "before": "the plugin without speed.py",
    "stock": "stock fairseq",
    "rival": "fairseq's rival, with the plugin",
}


def draw(title: str, ratios: list[dict[str, Any]], output: Path) -> None:
    """Draw a dot for each model and peer, with quartiles, beside the file ``output``."""
    import matplotlib
    from matplotlib.figure import Figure

    shown = [row for row in ratios if row["candidate"] == PLUGIN]
    models = [*dict.fromkeys(row["what"] for row in shown)][::-1]
    peers = [*dict.fromkeys(row["peer"] for row in shown)]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7.2, 1.8 + 0.4 * len(models)), layout="constrained")
        axes = figure.subplots()
        for place, peer in enumerate(peers):
            peer_rows = [row for row in shown if row["peer"] == peer]
            middles = [row["ratio"] for row in peer_rows]
            reach = [
                [row["ratio"] - row["ratio_low"] for row in peer_rows],
                [row["ratio_high"] - row["ratio"] for row in peer_rows],
            ]
            lift = 0.18 * ((len(peers) - 1) / 2 - place)
            heights = [models.index(row["what"]) + lift for row in peer_rows]
            name = PEERS.get(peer, peer)
            how = {"fmt": "o", "ms": 5, "capsize": 3, "color": PALETTE[place]}
            axes.errorbar(middles, heights, xerr=reach, label=name, **how)
        axes.axvline(1, color="black", lw=1)
        axes.set_yticks(range(len(models)), models)
        axes.set(title=title, xlabel="time over the plugin's: right of 1, the plugin is faster")
        axes.set_ylim(-0.6, len(models) - 0.4)
        axes.grid(visible=True, axis="x")
        figure.legend(fontsize=8.5, loc="outside lower center", ncols=len(peers))
        pictures.save(figure, output)


def main() -> None:
    for name in sys.argv[1:]:
        path = Path(name)
        report = json.loads(path.read_text("utf-8"))
        draw(report["title"], report["ratios"], path)


if __name__ == "__main__":
    main()
