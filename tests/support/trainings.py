"""Helpers for the tests of patches: tiny models, training states, plugins without a patch."""

import argparse
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import torch

from tests.support.harness import USER_DIR, run, write_lines

ARCHITECTURES: dict[str, tuple[object, ...]] = {
    "lstm": (
        *("--arch", "lstm"),
        *("--encoder-embed-dim", 16, "--encoder-hidden-size", 16),
        *("--decoder-embed-dim", 16, "--decoder-hidden-size", 16, "--decoder-out-embed-dim", 16),
    ),
    "transformer": (
        *("--arch", "transformer"),
        *("--encoder-layers", 1, "--encoder-embed-dim", 16, "--encoder-ffn-embed-dim", 16),
        *("--decoder-layers", 1, "--decoder-embed-dim", 16, "--decoder-ffn-embed-dim", 16),
        *("--encoder-attention-heads", 2, "--decoder-attention-heads", 2),
    ),
    "gru_tiny": ("--arch", "gru_tiny"),
    "linformer_tiny": (
        *("--arch", "linformer_tiny", "--encoder-layers", 1, "--decoder-layers", 1),
        *("--linformer-k", 4, "--linformer-max-len", 32),
    ),
    "muse_tiny": (
        *("--arch", "muse_tiny", "--encoder-layers", 1, "--decoder-layers", 1),
        *("--weight-dropout", 0),  # each process would draw its own mask
    ),
}
STOCK = ("lstm", "transformer")
"""The architectures of fairseq itself."""

TRAINING: tuple[object, ...] = (
    *("--optimizer", "adam", "--lr", 0.01, "--criterion", "label_smoothed_cross_entropy"),
    *("--label-smoothing", 0.1, "--max-tokens", 400, "--cpu", "--no-progress-bar"),
    *("--num-workers", 0, "--log-interval", 1),
)
"""Options for some ten updates per epoch on the digits corpus."""


def train(
    data: Path, folder: Path, *options: object, plugin: Path = USER_DIR, **how: Any
) -> CompletedProcess[str]:
    """Run ``fairseq-train`` with `TRAINING` and further options, which have priority."""
    words = (data, *TRAINING, "--save-dir", folder, "--user-dir", plugin, *options)
    return run("fairseq-train", *words, **how)


WITHOUT = """
import fairseq_ext
from fairseq_ext.plugin import patches
patches.PATCHES = tuple(patch for patch in patches.PATCHES if patch.name not in {names!r})
fairseq_ext.register()
"""


def plugin_without(folder: Path, *names: str) -> Path:
    """Write a ``--user-dir`` that applies all patches except ``names``; return its folder."""
    from fairseq_ext.plugin import patches

    unknown = set(names) - {patch.name for patch in patches.PATCHES}
    assert not unknown, unknown
    code = WITHOUT.format(names=set(names))
    return write_lines(folder / "plugin_without" / "__init__.py", [code]).parent


def load(path: Path) -> dict[str, Any]:
    """Load a checkpoint as it is on disk."""
    torch.serialization.add_safe_globals([argparse.Namespace])
    return torch.load(path, map_location="cpu", weights_only=True)


def with_data(checkpoint: Path, data: object, path: Path) -> Path:
    """Write a copy of a checkpoint, as if trained on the folder ``data``; return its path."""
    state = load(checkpoint)
    state["cfg"]["task"]["data"] = str(data)
    torch.save(state, path)
    return path


def training_state(path: Path) -> dict[str, Any]:
    """Return the content of a checkpoint that decides how training continues."""
    checkpoint = load(path)
    extra = checkpoint["extra_state"]
    history = checkpoint["optimizer_history"][-1]
    return {
        "model": checkpoint["model"],
        "optimizer": checkpoint["last_optimizer_state"],
        "updates": history["num_updates"],
        "scheduler": history["lr_scheduler_state"],
        "position": extra["train_iterator"],
        "best": extra.get("best"),
        "val_loss": extra["val_loss"],
        "early_stopping": extra.get("early_stopping"),
    }


def same_state(left: Any, right: Any) -> bool:
    """Return whether two nested states are equal bit for bit."""
    if torch.is_tensor(left) and torch.is_tensor(right):
        return left.dtype == right.dtype and torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(
            same_state(left[key], right[key]) for key in left
        )
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same_state, left, right))
    return left == right
