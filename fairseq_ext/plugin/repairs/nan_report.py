"""Repair fairseq's report of the layer in which a NaN first appeared."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from fairseq_ext.plugin.table import Patch, around


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
        name="report of a NaN",
        reason="when gradients are not finite, fairseq runs the update again to say which layer is "
        "to blame, and torch's old backward hooks end that with `StopIteration`, because an "
        "encoder's output is not a tensor",
        layers=(watch_tensors,),
    ),
)
