"""Copy half-precision gradients and weights to fp32 and back, all tensors at once (torch only).

For each parameter, fairseq starts one operation to copy the gradient, one to copy the weight back,
and one for the norm of the gradients. The host starts these more slowly than a GPU computes them.
"""

from typing import Any

import torch
from torch import Tensor


def copy_gradients(optimizer: Any) -> bool:
    """Copy the weights' gradients to the gradients of the fp32 copies.

    Args:
        optimizer: fairseq's ``FP16Optimizer``.

    Returns:
        False if a gradient is missing; then nothing is copied.
    """
    weights = [weight for weight in optimizer.fp16_params if weight.requires_grad]
    gradients = [weight.grad for weight in weights if weight.grad is not None]
    copies = _fp32_copies(optimizer, weights, gradients=True)
    if len(gradients) < len(weights) or copies is None:
        return False
    torch._foreach_copy_(copies, gradients)
    return True


def copy_weights(optimizer: Any) -> bool:
    """Copy the fp32 copies to the weights; return False if they are on several devices."""
    weights = [weight for weight in optimizer.fp16_params if weight.requires_grad]
    copies = _fp32_copies(optimizer, weights, gradients=False)
    if copies is None:
        return False
    torch._foreach_copy_([weight.data for weight in weights], copies)
    return True


def total_norm(gradients: list[Tensor], chunk_size: int = 0) -> Tensor:
    """Compute the norm of all gradients together, in fp32.

    Args:
        gradients: dense or sparse, on one or more devices.
        chunk_size: unused; an argument of the function of fairseq that this replaces.
    """
    dense = [part.coalesce().values() if part.is_sparse else part for part in gradients]
    norms = torch._foreach_norm(dense, 2, dtype=torch.float32)
    return torch.linalg.vector_norm(torch.stack([norm.to(dense[0].device) for norm in norms]))


def _fp32_copies(optimizer: Any, weights: list[Tensor], gradients: bool) -> list[Tensor] | None:
    """Return the fp32 copy of each weight, or the copy's gradient, in the weight's shape."""
    copies = optimizer.fp32_params
    if optimizer.has_flat_params:
        if not isinstance(copies, dict) or len(copies) > 1:
            return None
        (flat,) = copies.values()
        if flat.numel() != sum(weight.numel() for weight in weights):
            return None
        parts = (flat.grad if gradients else flat.data).split(
            [weight.numel() for weight in weights]
        )
        return [part.view_as(weight) for part, weight in zip(parts, weights, strict=True)]
    pairs = zip(optimizer.fp16_params, copies, strict=True)
    copies = [copy for weight, copy in pairs if weight.requires_grad]
    if not gradients:
        return [copy.data for copy in copies]
    return None if any(copy.grad is None for copy in copies) else [copy.grad for copy in copies]
