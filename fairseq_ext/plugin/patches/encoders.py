"""The encoder's layers of fairseq 0.12.2, which keep their weights twice.

It has a second copy of them, for a fused layer of torch's own (“BetterTransformer”). Every copy is
a parameter without a gradient, so that models, optimizers and checkpoints grow and other fairseqs
refuse the files. And once weights are loaded, the fused layer runs in place of the attention that
the layer has: a Linformer would translate with ordinary attention, without a word.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fairseq_ext.plugin.patches import probes
from fairseq_ext.plugin.patches.table import Layer, Patch

COPIES = tuple(
    f"{name}_{kind}"
    for name in ("in_proj", "out_proj", "fc1", "fc2")
    for kind in ("weight", "bias")
)


def without_copies(original: Callable) -> Callable:
    """The copies come last, and fail where a layer has no bias; what is before them stays."""

    def __init__(self: Any, *args: Any, **options: Any) -> None:
        try:
            original(self, *args, **options)
        except AttributeError:
            if "load_to_BT" not in vars(self):
                raise
        for name in COPIES:
            self._parameters.pop(name, None)
        self.BT_version = False  # the fused layer is not there

    return __init__


def load_once(original: Callable) -> Callable:
    """Load the weights that are left, and never switch to the fused layer."""

    def _load_from_state_dict(self: Any, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        for name in COPIES:
            state.pop(prefix + name, None)
        torch.nn.Module._load_from_state_dict(self, state, prefix, *rest)

    return _load_from_state_dict


LAYER = "fairseq.modules.transformer_layer:TransformerEncoderLayerBase"

PATCHES = (
    Patch(
        name="weights kept twice",
        reason="encoders have a second copy of their weights, and once loaded compute with it, "
        "whatever attention stands in its place",
        until="fairseq 0.12.2 is out of use; it was mended in 0.12.3",
        needed=probes.keeps_weights_twice,
        layers=(
            Layer(f"{LAYER}.__init__", without_copies),
            Layer(f"{LAYER}._load_from_state_dict", load_once),
        ),
    ),
)
