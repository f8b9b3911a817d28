"""fairseq's Adam, computed by torch's fused step (torch only).

fairseq's Adam takes a dozen operations for each parameter, each of which reads and writes whole
tensors. torch's fused kernel needs one pass. The two differ in where ε stands:

    fairseq    θ -= η √(1 - β₂^t) / (1 - β₁^t) · m / (√v + ε)
    torch      θ -= η / (1 - β₁^t) · m / (√v / √(1 - β₂^t) + ε')

so ``ε' = ε / √(1 - β₂^t)`` makes them equal. Weight decay is decoupled in both.

A trainer multiplies all gradients twice: by one over the number of words, and to clip their norm.
:func:`fold` leaves both factors to the step, which reads the gradients anyway. Before the step the
gradients are still those of the backward pass; after it they have been multiplied.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from fairseq_ext.utils.errors import CheckpointError


def can_fuse(optimizer: Optimizer) -> bool:
    """Return whether :func:`step` can replace fairseq's Adam: dense fp32 on one device."""
    return all(
        not group.get("amsgrad", False)
        and all(
            weight.dtype == torch.float32
            and not (weight.grad is not None and weight.grad.is_sparse)
            for weight in group["params"]
        )
        for group in optimizer.param_groups
    )


def fold(optimizer: Optimizer) -> None:
    """Let :func:`multiply` and :func:`clip` leave their factors to the step if it can apply them.

    The caller must not read gradients between these two functions and the step.
    """
    # Experts have a norm of their own.
    if not any(hasattr(weight, "expert") for weight in _weights(optimizer)):
        optimizer.factor = 1.0


def is_folded(optimizer: Optimizer) -> bool:
    """Return whether the next step applies a factor; a hook before the step prevents this."""
    hooks = getattr(optimizer, "_optimizer_step_pre_hooks", None)
    return hasattr(optimizer, "factor") and not hooks and can_fuse(optimizer)


def forget(optimizer: Optimizer) -> None:
    """Drop the factor, because its gradients are dropped."""
    if hasattr(optimizer, "factor"):
        optimizer.factor = 1.0


def settle(optimizer: Optimizer) -> None:
    """Multiply the gradients by the factor now, for code that reads them."""
    factor = getattr(optimizer, "factor", 1.0)
    if isinstance(factor, Tensor) or factor != 1:
        forget(optimizer)
        for weight in _weights(optimizer):
            if weight.grad is not None:
                weight.grad.detach().mul_(factor)


def multiply(optimizer: Optimizer, factor: float | Tensor) -> None:
    """Multiply all gradients at the next step (:func:`is_folded`)."""
    optimizer.factor = optimizer.factor * factor


def clip(optimizer: Optimizer, largest: float) -> Tensor:
    """Return the norm of all gradients, a scalar; the next step clips it to ``largest``.

    This is fairseq's rule; ``largest`` 0 means no clipping (:func:`is_folded`).
    """
    gradients = [weight.grad for weight in _weights(optimizer) if weight.grad is not None]
    if not gradients:
        return torch.zeros((), device=next(_weights(optimizer)).device)
    norm = torch.stack(torch._foreach_norm(gradients)).norm() * optimizer.factor
    if largest > 0:
        multiply(optimizer, (largest / (norm + 1e-6)).clamp_(max=1))
    return norm


def step(optimizer: Optimizer) -> None:
    """Update every parameter that has a gradient, and keep the state like fairseq's Adam.

    Args:
        optimizer: its groups have ``lr``, ``betas``, ``eps`` and ``weight_decay``.
    """
    factor = getattr(optimizer, "factor", 1.0)
    forget(optimizer)
    for group in optimizer.param_groups:
        together: dict[tuple[int, torch.device], list[Tensor]] = defaultdict(list)
        for weight in group["params"]:
            if weight.grad is not None:
                number = _advance(optimizer.state[weight], weight)
                together[number, weight.device].append(weight)
        for (number, _), weights in together.items():
            _update(weights, [optimizer.state[weight] for weight in weights], number, group, factor)


def _weights(optimizer: Optimizer) -> Iterator[Tensor]:
    return (weight for group in optimizer.param_groups for weight in group["params"])


def _advance(state: dict[str, Any], weight: Tensor) -> int:
    """Count a step, and make the moments or convert them to fit the weight.

    Raises:
        CheckpointError: a loaded state does not belong to this weight.
    """
    if not state:
        state.update(step=0, exp_avg=torch.zeros_like(weight), exp_avg_sq=torch.zeros_like(weight))
    for name in ("exp_avg", "exp_avg_sq"):
        state[name] = _fitted(state.get(name), weight)
    if not isinstance(state.get("step"), int | float | Tensor):
        raise _unfit("a step that is not a number")
    state["step"] += 1
    return int(state["step"])


def _fitted(moment: Any, weight: Tensor) -> Tensor:
    """Return a moment in the type and layout of its weight, which the kernel does not check."""
    if not isinstance(moment, Tensor) or moment.shape != weight.shape:
        shape = list(moment.shape) if isinstance(moment, Tensor) else moment
        raise _unfit(f"{shape!r:.40} as a moment of a weight of {list(weight.shape)}")
    moment = moment.to(weight)  # as fairseq does
    pair = (moment, weight)
    if not all(tensor.is_contiguous() for tensor in pair) and moment.stride() != weight.stride():
        moment = torch.empty_like(weight).copy_(moment)
    return moment


def _unfit(content: str) -> CheckpointError:
    return CheckpointError(
        f"The optimizer state does not fit the model: it has {content}. Go on without it: "
        "`--reset-optimizer`."
    )


def _update(
    weights: list[Tensor],
    states: list[dict[str, Any]],
    number: int,
    group: dict[str, Any],
    factor: float | Tensor,
) -> None:
    beta1, beta2 = group["betas"]
    count = torch.tensor(float(number), device=weights[0].device)
    unchanged = not isinstance(factor, Tensor) and factor == 1
    torch._fused_adamw_(
        [weight.data for weight in weights],
        [weight.grad.data for weight in weights],
        [state["exp_avg"] for state in states],
        [state["exp_avg_sq"] for state in states],
        [],
        [count] * len(weights),
        lr=group["lr"],
        beta1=beta1,
        beta2=beta2,
        weight_decay=group["weight_decay"],
        eps=group["eps"] / math.sqrt(1 - beta2**number),
        amsgrad=False,
        maximize=False,
        grad_scale=None if unchanged else (1 / torch.as_tensor(factor)).to(count),
    )
