"""fairseq's Adam, by torch's fused step (torch only).

fairseq writes Adam in a dozen operations for each parameter, each of which reads and writes whole
tensors. torch's fused kernel does all of it in one pass. The two differ in where ε stands:

    fairseq    θ -= η √(1 - β₂^t) / (1 - β₁^t) · m / (√v + ε)
    torch      θ -= η / (1 - β₁^t) · m / (√v / √(1 - β₂^t) + ε')

so ``ε' = ε / √(1 - β₂^t)`` makes them equal. Weight decay is decoupled in both.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


def can_fuse(optimizer: Optimizer) -> bool:
    """Whether :func:`step` covers an optimizer with fairseq's Adam: dense fp32 on one device."""
    return all(
        not group.get("amsgrad", False)
        and all(
            one.dtype == torch.float32 and not (one.grad is not None and one.grad.is_sparse)
            for one in group["params"]
        )
        for group in optimizer.param_groups
    )


def step(optimizer: Optimizer) -> None:
    """One update of every parameter that has a gradient; the state is that of fairseq's Adam.

    Args:
        optimizer: whose groups have ``lr``, ``betas``, ``eps`` and ``weight_decay``.
    """
    for group in optimizer.param_groups:
        together: dict[int, list[Tensor]] = defaultdict(list)
        for weight in group["params"]:
            if weight.grad is not None:
                together[_advance(optimizer.state[weight], weight)].append(weight)
        for number, weights in together.items():
            _update(weights, [optimizer.state[one] for one in weights], number, group)


def _advance(state: dict[str, Any], weight: Tensor) -> int:
    """Count a step, and make or fit the moments."""
    if not state:
        state.update(step=0, exp_avg=torch.zeros_like(weight), exp_avg_sq=torch.zeros_like(weight))
    for name in ("exp_avg", "exp_avg_sq"):  # as fairseq does, for states loaded in another type
        state[name] = state[name].to(weight)
    state["step"] += 1
    return int(state["step"])


def _update(
    weights: list[Tensor], states: list[dict[str, Any]], number: int, group: dict[str, Any]
) -> None:
    beta1, beta2 = group["betas"]
    count = torch.tensor(float(number))
    torch._fused_adamw_(
        [one.data for one in weights],
        [one.grad.data for one in weights],
        [one["exp_avg"] for one in states],
        [one["exp_avg_sq"] for one in states],
        [],
        [count] * len(weights),
        lr=group["lr"],
        beta1=beta1,
        beta2=beta2,
        weight_decay=group["weight_decay"],
        eps=group["eps"] / math.sqrt(1 - beta2**number),
        amsgrad=False,
        maximize=False,
    )
