"""Compare a layer with another form of it: its values, and its gradients."""

from collections.abc import Iterable

import torch
from torch import Tensor


def assert_same_function(
    actual: Tensor, expected: Tensor, inputs: Iterable[Tensor], atol: float = 1e-12
) -> None:
    """Require equal values, and equal gradients of a random sum of them by each of ``inputs``."""
    torch.testing.assert_close(actual, expected, rtol=0, atol=atol)
    generator = torch.Generator().manual_seed(9)
    direction = torch.randn(actual.shape, generator=generator, dtype=actual.dtype)
    gradients = [
        torch.autograd.grad(output, [*inputs], direction, retain_graph=True, materialize_grads=True)
        for output in (actual, expected)
    ]
    for gradient, other in zip(*gradients, strict=True):
        torch.testing.assert_close(gradient, other, rtol=0, atol=atol)
