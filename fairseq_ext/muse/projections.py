"""The first and last matrices of a block's branches, separate or fused into two.

Section 3.5 joins the first matrices of all branches into one matrix ``W_Enc``, and their last
matrices into ``W_Dec``. Training and checkpoints have separate matrices; a model that is prepared
for generation may have the joined ones, too.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def init_in_(weight: Tensor) -> None:
    """Initialize a weight uniformly in ±1/√fan_in, torch's default for linear layers."""
    nn.init.uniform_(weight, -(weight.size(1) ** -0.5), weight.size(1) ** -0.5)


def init_out_(weight: Tensor) -> None:
    """Initialize a weight uniformly in ±√(3/fan_in), so that outputs have the inputs' variance."""
    bound = math.sqrt(3 / weight.size(1))
    nn.init.uniform_(weight, -bound, bound)


class FinalLinear(nn.Module):
    """A linear layer whose weight no longer changes, so that a CPU may multiply faster.

    oneDNN multiplies with a packed copy of a weight that is fp32 and on a CPU. Where a gradient is
    needed, and after a move to another type or device, the product is ``F.linear``.

    Args:
        weight, bias: ``[N, K]``, and ``[N]`` or None.
    """

    weight: Tensor
    bias: Tensor | None

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        self.register_buffer("weight", weight.detach(), persistent=False)
        self.register_buffer("bias", bias, persistent=False)
        self._packed: Tensor | None = None
        on_cpu = weight.device.type == "cpu" and weight.dtype == torch.float32
        if on_cpu and torch.backends.mkldnn.is_available():
            self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach())

    def forward(self, x: Tensor) -> Tensor:
        """Compute ``x W^T + b``, from K inputs ``[..., K]`` to N outputs ``[..., N]``."""
        on_cpu = x.device.type == "cpu" and x.dtype == torch.float32
        if self._packed is None or x.requires_grad or not on_cpu:
            return F.linear(x, self.weight, self.bias)
        return torch.ops.mkldnn._linear_pointwise(x, self._packed, self.bias, "none", [], "")

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_packed": None}  # torch can neither copy nor pickle it


class Projections(nn.Module):
    """The first and last matrices of all branches, each in a linear layer of its own.

    Args:
        dim: number of channels ``C``.
        inward: number of rows of each branch's first matrix, by the name of its layer.
        outward: number of columns of each branch's last matrix, by the name of its layer.
        fused: whether :meth:`make_generation_fast_` joins the matrices to ``W_Enc`` and ``W_Dec``.
    """

    def __init__(
        self, dim: int, inward: dict[str, int], outward: dict[str, int], fused: bool = False
    ) -> None:
        super().__init__()
        self.inward, self.outward, self.fused = inward, outward, fused
        self.w_enc: FinalLinear | None = None
        self.w_dec: FinalLinear | None = None
        for name, rows in inward.items():
            self.add_module(name, nn.Linear(dim, rows))
        for name, columns in outward.items():
            self.add_module(name, nn.Linear(columns, dim))
        for name, linear in self.named_children():
            weight, bias = linear.parameters()
            (init_out_ if name in ("out_proj", "cross_out") else init_in_)(weight)
            nn.init.zeros_(bias)

    @torch.no_grad()
    def make_generation_fast_(self, **unused: Any) -> None:
        """Join the matrices, if ``fused``; fairseq calls this before generation."""
        if not self.fused:
            return
        first, last = (
            [getattr(self, name) for name in names] for names in (self.inward, self.outward)
        )
        weight_in = torch.cat([linear.weight for linear in first])
        weight_out = torch.cat([linear.weight for linear in last], dim=1)
        self.w_enc = FinalLinear(weight_in, torch.cat([linear.bias for linear in first]))
        self.w_dec = FinalLinear(weight_out, torch.stack([linear.bias for linear in last]).sum(0))

    def _load_from_state_dict(self, *arguments: Any) -> None:
        """Load other weights, and forget the matrices that were joined from earlier ones."""
        self.w_enc = self.w_dec = None
        super()._load_from_state_dict(*arguments)

    def read(self, x: Tensor, x_self: Tensor) -> list[Tensor]:
        """Apply each branch's first matrix; return the products in the order of ``W_Enc``.

        Self-attention reads ``x_self`` ``[..., C]``, all other branches read ``x`` ``[..., C]``.
        """
        if self.w_enc is not None and x is x_self:
            return list(self.w_enc(x).split([*self.inward.values()], dim=-1))
        inputs = [x_self, *[x] * (len(self.inward) - 1)]
        return [getattr(self, name)(x) for name, x in zip(self.inward, inputs, strict=True)]

    def write(self, parts: Sequence[Tensor], joined: bool = False) -> list[Tensor]:
        """Apply each branch's last matrix to its part; return each branch's output ``[..., C]``.

        If ``joined`` is true, a fused model returns the sum of all outputs as a single tensor.
        """
        if self.w_dec is not None and joined:
            return [self.w_dec(torch.cat(list(parts), dim=-1))]
        return [getattr(self, name)(part) for name, part in zip(self.outward, parts, strict=True)]
