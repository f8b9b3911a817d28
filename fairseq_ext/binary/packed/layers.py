"""Layers that compute with bits and int8 tables. They are for translation and have no gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_ext.base.dropout import is_active
from fairseq_ext.base.onednn import OneDnnProduct
from fairseq_ext.binary.binarize import Binarizer
from fairseq_ext.binary.kernels import PackedWeight, linear_1bit, linear_1bit_1bit
from fairseq_ext.binary.linear import BinaryLinear
from fairseq_ext.binary.packed.int8_product import Int8Product

LARGEST = 127  # of int8, symmetric


class PackedLinear(nn.Module):
    """Computes the same as a :class:`~fairseq_ext.binary.linear.BinaryLinear`, with packed weights.

    Args:
        linear: the layer, in the last stage of the model's training. Its weight is not read.
        packed: its weight.
    """

    def __init__(self, linear: BinaryLinear, packed: PackedWeight) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.bias = linear.bias
        self.packed = packed
        self.scale = linear.scale
        self.input_binarizer: Binarizer | None = (
            linear.input_binarizer if linear.binary_inputs else None
        )

    def forward(self, x: Tensor, dropout: nn.Module | None = None) -> Tensor:
        """``[..., K]`` to ``[..., N]``; ``dropout`` as for ``BinaryLinear``."""
        x = x.detach()
        if self.input_binarizer is None:
            x = x if dropout is None else dropout(x)
            return linear_1bit(x, self.packed, self.bias)
        if dropout is not None and is_active(dropout):  # --retain-dropout
            return self._dropped(x, dropout.p)
        bounds = None
        if self.input_binarizer.kind == "xnor":
            bounds = 2 * x.float().abs().mean(-1)
        elif self.input_binarizer.bound is not None:
            bounds = self.input_binarizer.bound
        return linear_1bit_1bit(x, self.packed, self.bias, self.scale, input_bounds=bounds)

    def _dropped(self, x: Tensor, p: float) -> Tensor:
        """With dropout: a dropped input has no sign, so the inputs become floats."""
        bits = self.input_binarizer.bits(x, grad=False)
        bits, scale_up = bits.drop(p)
        x = bits.signs * (bits.level * (scale_up / self.scale))
        return linear_1bit(x, self.packed, self.bias)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> PackedLinear:
        # Moves with the model, but keeps its types: half precision is for activations only.
        self.packed = self.packed.to(fn(self.packed.words).device)
        return super()._apply(fn, recurse)

    def extra_repr(self) -> str:
        bits = 32 if self.input_binarizer is None else 1
        return f"{self.packed}, weight_bits=1, input_bits={bits}"


class Int8Table(nn.Module):
    """A table of int8 numbers; each row has a scale.

    Args:
        table: ``[V, C]``.
        scale: ``[V]``.
    """

    def __init__(self, table: Tensor, scale: Tensor) -> None:
        super().__init__()
        self.register_buffer("table", table, persistent=False)
        self.register_buffer("scale", scale, persistent=False)
        self.dtype = torch.float32  # the type of the results

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Int8Table:
        precise = self.scale
        super()._apply(fn, recurse)
        self.dtype, self.scale = self.scale.dtype, precise.to(self.scale.device)
        return self

    def extra_repr(self) -> str:
        return f"{list(self.table.shape)}, int8"


class Int8Embedding(Int8Table):
    """Replaces ``nn.Embedding``; it has ``padding_idx`` because fairseq reads that."""

    def __init__(self, table: Tensor, scale: Tensor, padding_idx: int | None) -> None:
        super().__init__(table, scale)
        self.num_embeddings, self.embedding_dim = table.shape
        self.padding_idx = padding_idx

    def forward(self, words: Tensor) -> Tensor:
        """``[...]`` to ``[..., C]``."""
        rows = F.embedding(words, self.table).float()
        return (rows * self.scale[words].unsqueeze(-1)).to(self.dtype)


class Int8Linear(Int8Table):
    """Replaces the output projection: int8 weights times inputs that are rounded to int8.

    Each row of inputs has a scale, its largest magnitude divided by 127. On devices other than the
    CPU inputs are not rounded.
    """

    def __init__(self, table: Tensor, scale: Tensor) -> None:
        super().__init__(table, scale)
        self._product = Int8Product()

    def forward(self, x: Tensor) -> Tensor:
        """``[..., C]`` to ``[..., V]``."""
        if not x.is_cpu:
            return F.linear(x, (self.table * self.scale[:, None]).to(x.dtype))
        rows = x.detach().float().reshape(-1, x.shape[-1])
        rounded, scale = _rounded(rows)
        y = self._product(rounded, self.table, self.scale).mul_(scale[:, None])
        return y.view(*x.shape[:-1], -1).to(x.dtype)


class FloatOutput(nn.Module):
    """Replaces the float output projection by the same product with weights packed by oneDNN.

    A step of a few rows reads packed weights two to three times as fast. They take as much memory
    again, because embeddings are looked up in the original table.

    Args:
        linear: the projection. Its parameters are used, not copied.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias
        self._product = OneDnnProduct()
        self._product.enabled = True

    def forward(self, x: Tensor) -> Tensor:
        """``[..., C]`` to ``[..., V]``."""
        return self._product(x, self.weight, self.bias)


def quantize(table: Tensor) -> tuple[Tensor, Tensor]:
    """Round floats ``[V, C]`` to int8, with a scale ``max |row| / 127`` for each row, ``[V]``."""
    rounded, scale = _rounded(table.detach().float())
    return rounded.to(torch.int8), scale


def _rounded(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Whole numbers in units of each row's scale, and these scales."""
    scale = rows.abs().amax(dim=1) / LARGEST
    units = scale.where(scale > 0, 1.0)
    return (rows / units[:, None]).round_(), scale


def dequantize(table: Tensor, scale: Tensor) -> Tensor:
    """The inverse of :func:`quantize`, apart from its rounding."""
    return table.float() * scale[:, None]


def exchange(model: nn.Module, path: str, layer: nn.Module) -> None:
    """Replace the layer at ``path`` in a model by ``layer``."""
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, layer)


def use_table(model: nn.Module, path: str, table: Tensor, scale: Tensor) -> None:
    """Replace the embedding or output projection at ``path`` by its int8 kind."""
    old: Any = model.get_submodule(path)
    if isinstance(old, nn.Embedding):
        exchange(model, path, Int8Embedding(table, scale, old.padding_idx))
        return
    layer = Int8Linear(table, scale)
    exchange(model, path, layer)
    # Some decoders read the weight of the projection directly.
    model.get_submodule(path.rpartition(".")[0]).output_layer = layer.forward
