#!/usr/bin/env python
"""Reduce a checkpoint to the weights and options that translation needs, in bf16.

python recipes/shipped_weights.py checkpoint_last.pt model.pt
"""

import sys
from pathlib import Path

import torch


def reduce(checkpoint: Path, output: Path) -> int:
    """Write weights and options without optimizer and training state; return the update count."""
    # The recipe's own training has just written this checkpoint, so unpickling it is safe.
    state = torch.load(checkpoint, map_location="cpu", weights_only=False)
    history = state["optimizer_history"][-1:]
    updates = history[0]["num_updates"]
    torch.save(
        {
            "args": None,
            "cfg": state["cfg"],
            "model": {
                name: value.bfloat16() if value.is_floating_point() else value
                for name, value in state["model"].items()
            },
            "optimizer_history": [{**history[0], "lr_scheduler_state": {}}],
            "extra_state": {"dictionaries": state["extra_state"]["dictionaries"]},
            "last_optimizer_state": None,
        },
        output,
    )
    return updates


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: shipped_weights.py CHECKPOINT OUTPUT")
    print(f"{sys.argv[2]}: {reduce(*map(Path, sys.argv[1:]))} updates")
