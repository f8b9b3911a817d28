"""Repair encoder layers, which store their weights twice, and the report of a NaN in a layer.

The second copy is for torch's fused layer (“BetterTransformer”). Its parameters have no gradient,
so models, optimizers and checkpoints grow, and other versions of fairseq refuse the files. After
loading, fairseq uses the fused layer instead of the layer's own attention: a Linformer would
silently translate with ordinary attention.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
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
    """Build the layer without copies; making them is the last step, and fails without biases."""
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


@around("fairseq.nan_detector:NanDetector.add_hooks")
def watch_tensors(original: Callable, self: Any, module: torch.nn.Module) -> None:
    """Check the gradients of a layer's outputs with hooks on the tensors."""
    if self.forward:
        self.fhooks.append(module.register_forward_hook(self.fhook_fn))
    if self.backward:
        self.bhooks.append(module.register_forward_hook(functools.partial(_watch, self)))


def _watch(detector: Any, module: torch.nn.Module, _: Any, output: Any) -> None:
    for tensor in _tensors(output):
        if tensor.requires_grad:
            tensor.register_hook(lambda gradient: detector.bhook_fn(module, None, gradient))


def _tensors(output: Any) -> Iterator[torch.Tensor]:
    if torch.is_tensor(output):
        yield output
    elif isinstance(output, dict | list | tuple):
        for part in output.values() if isinstance(output, dict) else output:
            yield from _tensors(part)


PATCHES = (
    Patch(
        name="weights kept twice",
        reason="encoders have a second copy of their weights, and once loaded compute with it, "
        "whatever attention stands in its place",
        layers=(without_copies, load_once),
    ),
    Patch(
        name="report of a NaN",
        reason="when gradients are not finite, fairseq runs the update again to say which layer is "
        "to blame, and torch's old backward hooks end that with `StopIteration`, because an "
        "encoder's output is not a tensor",
        layers=(watch_tensors,),
    ),
)
