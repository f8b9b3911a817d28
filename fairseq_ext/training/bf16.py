"""Measure whether bf16 trains faster on this processor (torch only)."""

from __future__ import annotations

import contextlib
import time
from collections import Counter

import torch
from torch import Tensor, nn

from fairseq_ext.training import onednn_matmul

ROWS = 512
"""Tokens in the products that are timed."""


def times_as_long(model: nn.Module, repeats: int = 3) -> float | None:
    """Divide the time of a product in bf16 by its time in fp32, as in training on the CPU.

    Args:
        model: has the matrices; the shape of most of its weights, without embeddings, is timed.
        repeats: number of trials, of which the fastest counts.

    Returns:
        The ratio; None for a model without matrices.
    """
    embeddings = {
        id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)
    }
    matrices = [
        weight
        for weight in model.parameters()
        if weight.dim() == 2 and id(weight) not in embeddings
    ]
    if not matrices:
        return None
    shapes: Counter[tuple[int, ...]] = Counter()
    for matrix in matrices:
        shapes[tuple(matrix.shape)] += matrix.numel()
    ((rows, columns), _) = shapes.most_common(1)[0]
    x, weight = torch.ones(ROWS, columns), torch.ones(rows, columns)
    with (
        torch.no_grad(),
        onednn_matmul.by_onednn() if onednn_matmul.is_slow() else contextlib.nullcontext(),
    ):
        fp32 = _seconds(x, weight, repeats)
        half = _seconds(x.bfloat16(), weight.bfloat16(), repeats)
    return half / fp32


def _seconds(x: Tensor, weight: Tensor, repeats: int) -> float:
    torch.mm(x, weight.t())  # the first product includes compiling
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        torch.mm(x, weight.t())
        times.append(time.perf_counter() - began)
    return min(times)
