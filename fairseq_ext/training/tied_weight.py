"""Sum the gradients of embeddings that are also the weights of the output layer.

autograd makes one gradient of the whole table for each use of it, and then adds them up: several
passes over V × C numbers, however few tokens a batch has. Here each lookup of embeddings leaves
only the gradients of the rows that it read. Once all uses have left their gradients, that of the
output layer is copied into the layout of the table, and the rows are added to this copy.

V: vocabulary, C: features.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


@dataclass
class Parts:
    """The parts of a gradient ``[V, C]``, which a backward pass collects until all are there.

    Attributes:
        product: the output layer's part, transposed: ``[C, V]``.
        rows: indices ``[N]`` and gradients ``[N, C]`` of the rows that each lookup read.
        backward_pass: autograd's number of the backward pass that left these parts.
    """

    product: Tensor | None = None
    rows: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    backward_pass: int = -1

    def add_product(self, gradient: Tensor) -> None:
        """Add the output layer's part ``[C, V]``; ``gradient`` itself is not changed."""
        self._forget_earlier_pass()
        self.product = gradient if self.product is None else self.product + gradient

    def add_rows(self, numbers: Tensor, gradients: Tensor) -> None:
        """Add a lookup's part: row numbers ``[N]`` and their gradients ``[N, C]``."""
        self._forget_earlier_pass()
        self.rows.append((numbers, gradients))

    def take_sum(self, weight: Tensor) -> Tensor:
        """Sum the parts to the gradient, in the layout of ``weight``, and forget them."""
        self._forget_earlier_pass()
        if self.product is None:
            total = torch.zeros_like(weight)
        else:  # a copy even if C = 1, because the product is kept for a second backward pass
            total = torch.empty_like(weight).copy_(self.product.t())
        for numbers, gradients in self.rows:
            total.index_add_(0, numbers, gradients)
        self.product, self.rows = None, []
        return total

    def _forget_earlier_pass(self) -> None:
        """Forget parts of an earlier backward pass, which needed other gradients and no sum."""
        number = torch._C._current_graph_task_id()
        if number != self.backward_pass:
            self.backward_pass, self.product, self.rows = number, None, []


class TiedWeight:
    """A weight whose uses in one forward pass each leave a part of its gradient.

    Attributes:
        parameter: the weight ``[V, C]``.
        weight: the same numbers, without gradient.
        anchor: a scalar that stands for the weight in the graph. autograd computes the weight's
            gradient after the gradients of all functions that have the anchor as an input.
        parts: where these functions leave their parts of the gradient.
    """

    def __init__(self, weight: Tensor) -> None:
        self.parameter, self.weight, self.parts = weight, weight.detach(), Parts()
        self.anchor = _Summed.apply(weight, self.parts)

    def look_up(self, input: Tensor, padding_idx: int | None) -> Tensor:
        """Look up the embeddings of tokens ``input``; the row ``padding_idx`` gets no gradient.

        The argument has the name ``input`` because ``nn.Embedding`` names it so.
        """
        return _Lookup.apply(self.anchor, self.weight, input, padding_idx, self.parts)


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, parts: Parts) -> Tensor:
        ctx.parts = parts
        ctx.save_for_backward(weight)
        return weight.new_zeros(())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor, None]:
        return ctx.parts.take_sum(*ctx.saved_tensors), None


class _Lookup(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        anchor: Tensor,
        weight: Tensor,
        tokens: Tensor,
        padding_idx: int | None,
        parts: Parts,
    ) -> Tensor:
        ctx.padding_idx, ctx.parts = padding_idx, parts
        ctx.save_for_backward(tokens)
        return F.embedding(tokens, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        numbers = ctx.saved_tensors[0].flatten()
        gradients = grad.flatten(0, -2)
        if ctx.padding_idx is not None and not (real := numbers.ne(ctx.padding_idx)).all():
            numbers, gradients = numbers[real], gradients[real]
        ctx.parts.add_rows(numbers, gradients)
        return grad.new_zeros(()), None, None, None, None


@contextlib.contextmanager
def tied(model: nn.Module, weight: Tensor | None) -> Iterator[TiedWeight | None]:
    """Let embeddings tied to ``weight`` leave, in a block, only gradients of the rows they read.

    Yields the :class:`TiedWeight` that collects the gradients. Yields None, and changes nothing, if
    no embedding of ``model`` has this weight, if no gradient is needed, or where time would not be
    saved: on a GPU or in half precision.
    """
    embeddings = []
    if (
        weight is not None
        and weight.requires_grad
        and torch.is_grad_enabled()
        and weight.device.type == "cpu"
        and weight.dtype in (torch.float32, torch.float64)
    ):
        embeddings = [module for module in model.modules() if _is_plain(module, weight)]
    if not embeddings:
        yield None
        return
    tied_weight = TiedWeight(weight)
    for embedding in embeddings:  # in the instance, to hide the class's method
        vars(embedding)["forward"] = partial(tied_weight.look_up, padding_idx=embedding.padding_idx)
    try:
        yield tied_weight
    finally:
        for embedding in embeddings:
            del vars(embedding)["forward"]


def _is_plain(module: nn.Module, weight: Tensor) -> bool:
    return (
        type(module) is nn.Embedding
        and module.weight is weight
        and module.max_norm is None
        and not (module.scale_grad_by_freq or module.sparse or module._forward_pre_hooks)
        and "forward" not in vars(module)
    )
