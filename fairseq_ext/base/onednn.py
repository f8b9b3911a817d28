"""Products of few rows with large matrices on the CPU, as decoding has them (torch only).

A step reads every weight once for a handful of rows, so how they lie in memory is what counts:
packed by oneDNN they are read two to three times faster than as they are.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


class OneDnnProduct:
    """``F.linear`` that, once ``enabled``, packs its weight when first used or loaded anew.

    Enable it for a model that is not trained any more: an optimizer's changes go unseen. Packing
    is for fp32 on a CPU with oneDNN, without gradient; anywhere else it stays ``F.linear``.
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
        return OneDnnProduct, ()  # copies of a model pack their own weights


def can_pack(weight: Tensor) -> bool:
    """Whether oneDNN has a packed product for this weight here."""
    return (
        weight.device.type == "cpu"
        and weight.dtype == torch.float32
        and not weight.is_inference()
        and torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
        and not torch.is_autocast_enabled("cpu")
    )
