"""The first and last matrices of a block's branches, separate or fused into two.

Section 3.5 joins the first matrices of all branches into one matrix ``W_Enc``, and their last
matrices into ``W_Dec``. The numbers stay the same, so :func:`fuse` and :func:`unfuse` convert a
state dict without rounding.
"""

import math
from collections.abc import Iterable, Sequence
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


class OneDnnProduct:
    """``F.linear``, but faster on a CPU: oneDNN multiplies with a packed copy of the weight.

    The copy is made at the first use after ``enabled`` is set, and again after the weight has been
    reloaded. Set ``enabled`` only after training: changes by an optimizer go unnoticed. Only fp32
    weights on a CPU with oneDNN are packed, and only while no gradient is needed.
    """

    def __init__(self) -> None:
        self.enabled = False
        self._packed: Tensor | None = None
        self._of: tuple[int, int] | None = None

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Compute ``x W^T + b``, from C inputs ``[..., C]`` to N outputs ``[..., N]``."""
        if not self.enabled or torch.is_grad_enabled() or not can_pack(weight):
            return F.linear(x, weight, bias)
        current = (weight.data_ptr(), weight._version)
        if self._of != current:
            self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach())
            self._of = current
        return torch.ops.mkldnn._linear_pointwise(x, self._packed, bias, "none", [], "")

    def __reduce__(self) -> "tuple[type[OneDnnProduct], tuple[()]]":
        return OneDnnProduct, ()  # not enabled, because a copy of a model may be trained


def can_pack(weight: Tensor) -> bool:
    """Return whether oneDNN can multiply with a packed copy of this weight on this machine."""
    return (
        weight.device.type == "cpu"
        and weight.dtype == torch.float32
        and not weight.is_inference()
        and torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
        and not torch.is_autocast_enabled("cpu")
    )


class SeparateProjections(nn.Module):
    """The first and last matrices of all branches, each in a linear layer of its own (default).

    Args:
        dim: number of channels ``C``.
        inward: number of rows of each branch's first matrix, by the name of its layer.
        outward: number of columns of each branch's last matrix, by the name of its layer.
    """

    def __init__(self, dim: int, inward: dict[str, int], outward: dict[str, int]) -> None:
        super().__init__()
        self.inward, self.outward = inward, outward
        for name, rows in inward.items():
            self.add_module(name, nn.Linear(dim, rows))
        for name, columns in outward.items():
            self.add_module(name, nn.Linear(columns, dim))
        for name, linear in self.named_children():
            weight, bias = linear.parameters()
            (init_out_ if name in ("out_proj", "cross_out") else init_in_)(weight)
            nn.init.zeros_(bias)

    def read(self, x: Tensor, x_self: Tensor) -> list[Tensor]:
        """Apply each branch's first matrix; return the products in the order of ``W_Enc``.

        Self-attention reads ``x_self`` ``[..., C]``, all other branches read ``x`` ``[..., C]``.
        """
        inputs = [x_self, *[x] * (len(self.inward) - 1)]
        return [getattr(self, name)(x) for name, x in zip(self.inward, inputs, strict=True)]

    def write(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """Apply each branch's last matrix to its part; return each branch's output ``[..., C]``."""
        return [getattr(self, name)(part) for name, part in zip(self.outward, parts, strict=True)]


class FusedProjections(nn.Module):
    """All branches' first matrices joined into ``W_Enc``, and their last ones into ``W_Dec``.

    The biases of the last matrices are stored separately, so that :func:`unfuse` is exact. If the
    branches' inputs differ (input dropout), ``W_Enc`` is applied in two parts. If the branches'
    outputs have dropout, ``W_Dec`` is applied to each branch separately. The arguments are those of
    :class:`SeparateProjections`.
    """

    def __init__(self, dim: int, inward: dict[str, int], outward: dict[str, int]) -> None:
        super().__init__()
        self.inward, self.outward = inward, outward
        self.rows, self.columns = [*inward.values()], [*outward.values()]
        self.weight_in = nn.Parameter(torch.empty(sum(self.rows), dim))
        self.bias_in = nn.Parameter(torch.empty(sum(self.rows)))
        self.weight_out = nn.Parameter(torch.empty(dim, sum(self.columns)))
        self.biases_out = nn.Parameter(torch.empty(len(self.columns), dim))
        self._linear_in, self._linear_out = OneDnnProduct(), OneDnnProduct()
        state = SeparateProjections(dim, inward, outward).state_dict()
        fuse(state, self)
        self.load_state_dict(state)

    def read(self, x: Tensor, x_self: Tensor) -> list[Tensor]:
        """Apply ``W_Enc``; arguments and result are as in :meth:`SeparateProjections.read`."""
        if x is x_self:
            return list(self._linear_in(x, self.weight_in, self.bias_in).split(self.rows, -1))
        first = self.rows[0]
        other_rows = F.linear(x, self.weight_in[first:], self.bias_in[first:])
        self_rows = F.linear(x_self, self.weight_in[:first], self.bias_in[:first])
        return [self_rows, *other_rows.split(self.rows[1:], dim=-1)]

    def write(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """Apply ``W_Dec``; arguments and result are as in :meth:`SeparateProjections.write`."""
        weights = self.weight_out.split(self.columns, dim=1)
        return [F.linear(*triple) for triple in zip(parts, weights, self.biases_out, strict=True)]

    def make_generation_fast_(self, **unused: Any) -> None:
        """Use packed weights from now on; fairseq calls this before generation."""
        self._linear_in.enabled = self._linear_out.enabled = True

    def write_sum(self, parts: Sequence[Tensor]) -> Tensor:
        """Apply ``W_Dec`` to all ``parts`` at once; return their sum ``[..., channels]``."""
        joined = torch.cat(list(parts), dim=-1)
        return self._linear_out(joined, self.weight_out, self.biases_out.sum(0))


Projections = SeparateProjections | FusedProjections


def fuse(state: dict[str, Tensor], projections: Projections, prefix: str = "") -> None:
    """Turn a state dict of :class:`SeparateProjections` into one of :class:`FusedProjections`.

    ``projections`` have the names and sizes of the layers. Only keys that start with ``prefix``
    change. A state that is fused or incomplete stays as it is.
    """
    first, last = projections.inward, projections.outward
    kinds = ("weight", "bias")
    if any(f"{prefix}{name}.{kind}" not in state for name in (*first, *last) for kind in kinds):
        return

    def popped(names: Iterable[str], kind: str) -> list[Tensor]:
        return [state.pop(f"{prefix}{name}.{kind}") for name in names]

    state[f"{prefix}weight_in"] = torch.cat(popped(first, "weight"))
    state[f"{prefix}bias_in"] = torch.cat(popped(first, "bias"))
    state[f"{prefix}weight_out"] = torch.cat(popped(last, "weight"), dim=1)
    state[f"{prefix}biases_out"] = torch.stack(popped(last, "bias"))


def unfuse(state: dict[str, Tensor], projections: Projections, prefix: str = "") -> None:
    """Reverse :func:`fuse`, to the bit. A state that is not fused stays as it is."""
    if f"{prefix}weight_in" not in state:
        return
    first, last = projections.inward, projections.outward
    for kind in ("weight", "bias"):
        rows = state.pop(f"{prefix}{kind}_in").split([*first.values()])
        for name, part in zip(first, rows, strict=True):
            state[f"{prefix}{name}.{kind}"] = part.clone()
    columns = state.pop(f"{prefix}weight_out").split([*last.values()], dim=1)
    biases = state.pop(f"{prefix}biases_out")
    for name, part, bias in zip(last, columns, biases, strict=True):
        state[f"{prefix}{name}.weight"] = part.clone()
        state[f"{prefix}{name}.bias"] = bias.clone()
