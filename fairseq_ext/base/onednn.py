"""Fast products of a few rows with a large matrix on the CPU, for decoding (torch only).

A decoding step reads every weight once for a handful of rows, so its speed depends on the layout of
the weights in memory. In oneDNN's packed layout they are read two to three times as fast.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


class OneDnnProduct:
    """``F.linear`` with a packed copy of the weight, once ``enabled`` is set.

    The copy is made at the first use, and again after the weight has been reloaded. Enable it only
    for a model that is no longer trained, because an optimizer's changes go unnoticed. Only fp32
    weights on a CPU with oneDNN are packed, and only while no gradient is needed; in all other
    cases this is plain ``F.linear``.
    """

    def __init__(self) -> None:
        self.enabled = False
        self._packed: Tensor | None = None
        self._of: tuple[int, int] | None = None

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """``x W^T + b``: ``[..., C]`` to ``[..., N]``."""
        if not self.enabled or torch.is_grad_enabled() or not can_pack(weight):
            return F.linear(x, weight, bias)
        current = (weight.data_ptr(), weight._version)
        if self._of != current:
            self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach())
            self._of = current
        return torch.ops.mkldnn._linear_pointwise(x, self._packed, bias, "none", [], "")

    def __reduce__(self) -> tuple[type[OneDnnProduct], tuple[()]]:
        return OneDnnProduct, ()  # a copy of a model may be trained, so it is not enabled


def can_pack(weight: Tensor) -> bool:
    """Whether oneDNN can multiply with a packed copy of this weight on this machine."""
    return (
        weight.device.type == "cpu"
        and weight.dtype == torch.float32
        and not weight.is_inference()
        and torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
        and not torch.is_autocast_enabled("cpu")
    )
