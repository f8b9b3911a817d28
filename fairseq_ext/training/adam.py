"""fairseq's Adam, computed by torch's fused step.

fairseq's Adam takes a dozen operations for each parameter, each of which reads and writes whole
tensors. torch's fused kernel needs one pass. The two differ in where ε stands:

    fairseq    θ -= η √(1 - β₂^t) / (1 - β₁^t) · m / (√v + ε)
    torch      θ -= η / (1 - β₁^t) · m / (√v / √(1 - β₂^t) + ε')

With ``ε' = ε / √(1 - β₂^t)`` they are equal. Weight decay is decoupled in both.
"""

import math
from collections import defaultdict
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from fairseq_ext.utils.errors import CheckpointError


def can_fuse(optimizer: Optimizer) -> bool:
    """Return whether :func:`step` can replace the step of ``optimizer``, which is fairseq's Adam.

    This is so if all weights are fp32, all gradients are dense, and AMSGrad is off.
    """
    return all(
        not group.get("amsgrad", False)
        and all(
            weight.dtype == torch.float32
            and not (weight.grad is not None and weight.grad.is_sparse)
            for weight in group["params"]
        )
        for group in optimizer.param_groups
    )


def can_scale(optimizer: Optimizer) -> bool:
    """Return whether :func:`step` can multiply the gradients by a factor as it reads them.

    This saves a pass over the gradients for each factor, such as that of clipping. The optimizer
    must be fairseq's Adam on a CPU, and :func:`can_fuse` must be true. If the result is True,
    callers multiply the optimizer's attribute ``grad_factor`` by their factors; this function sets
    the attribute to 1 if it is missing.
    """
    if hasattr(optimizer, "grad_factor"):
        return True
    from fairseq.optim.adam import Adam

    if not isinstance(optimizer, Adam) or not can_fuse(optimizer):
        return False
    groups = optimizer.param_groups
    if any(weight.device.type != "cpu" for group in groups for weight in group["params"]):
        return False
    optimizer.grad_factor = 1.0
    return True


def step(optimizer: Optimizer) -> None:
    """Update every parameter that has a gradient; the state has the format of fairseq's Adam.

    The gradients are multiplied by the optimizer's ``grad_factor``, if it has one, which is then
    deleted.

    Raises:
        CheckpointError: the state, which comes from a checkpoint, does not fit the parameters.
    """
    factor = vars(optimizer).pop("grad_factor", None)
    scale = None if factor is None else 1 / torch.as_tensor(factor, dtype=torch.float32)
    for group in optimizer.param_groups:
        beta1, beta2 = group["betas"]
        together: dict[tuple[int, torch.device], list[Tensor]] = defaultdict(list)
        for weight in group["params"]:
            if weight.grad is not None:
                number = _advance(optimizer.state[weight], weight)
                together[number, weight.device].append(weight)
        for (number, device), weights in together.items():
            states = [optimizer.state[weight] for weight in weights]
            torch._fused_adamw_(
                [weight.data for weight in weights],
                [weight.grad.data for weight in weights if weight.grad is not None],
                [state["exp_avg"] for state in states],
                [state["exp_avg_sq"] for state in states],
                [],
                [torch.tensor(float(number), device=device)] * len(weights),
                lr=group["lr"],
                beta1=beta1,
                beta2=beta2,
                weight_decay=group["weight_decay"],
                eps=group["eps"] / math.sqrt(1 - beta2**number),
                amsgrad=False,
                maximize=False,
                grad_scale=scale,
            )


def _advance(state: dict[str, Any], weight: Tensor) -> int:
    """Prepare the ``state`` of a weight for its next step; return the number of this step, from 1.

    If the state is empty, the moments begin at 0.
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
    """Convert a moment to its weight's type, device and strides.

    torch's fused step needs them equal, but does not check. Raise CheckpointError if the shapes
    differ.
    """
    if not isinstance(moment, Tensor) or moment.shape != weight.shape:
        shape = list(moment.shape) if isinstance(moment, Tensor) else moment
        raise _unfit(f"{shape!r:.40} as a moment of a weight of {list(weight.shape)}")
    moment = moment.to(weight)  # as fairseq does
    if moment.stride() != weight.stride():
        moment = torch.empty_like(weight).copy_(moment)
    return moment


def _unfit(content: str) -> CheckpointError:
    return CheckpointError(
        f"The optimizer state does not fit the model: it has {content}. Go on without it: "
        "`--reset-optimizer`."
    )
