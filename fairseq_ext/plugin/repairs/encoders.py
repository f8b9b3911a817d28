"""Repair the encoder layers of fairseq 0.12.2, which store their weights twice.

The second copy is for torch's fused layer (“BetterTransformer”). Its parameters have no gradient,
so models, optimizers and checkpoints grow, and other versions of fairseq refuse the files. After
loading, fairseq uses the fused layer instead of the layer's own attention: a Linformer would
silently translate with ordinary attention.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fairseq_ext.plugin.table import Patch, around

LAYER = "fairseq.modules.transformer_layer:TransformerEncoderLayerBase"

COPIES = tuple(
    f"{name}_{kind}"
    for name in ("in_proj", "out_proj", "fc1", "fc2")
    for kind in ("weight", "bias")
)


@around(f"{LAYER}.__init__")
def without_copies(original: Callable, self: Any, *args: Any, **options: Any) -> None:
    """Build the layer without copies, whose making is the last step and fails without biases."""
    try:
        original(self, *args, **options)
    except AttributeError:
        if "load_to_BT" not in vars(self):
            raise
    for name in COPIES:
        self._parameters.pop(name, None)
    self.BT_version = False  # there is no fused layer


@around(f"{LAYER}._load_from_state_dict")
def load_once(
    original: Callable, self: Any, state: dict[str, Any], prefix: str, *rest: Any
) -> None:
    """Load the weights, but never switch to the fused layer."""
    for name in COPIES:
        state.pop(prefix + name, None)
    torch.nn.Module._load_from_state_dict(self, state, prefix, *rest)


PATCHES = (
    Patch(
        name="weights kept twice",
        reason="encoders have a second copy of their weights, and once loaded compute with it, "
        "whatever attention stands in its place",
        layers=(without_copies, load_once),
    ),
)
