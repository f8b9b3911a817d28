"""The last product of a model, as the loss reads it (torch only)."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class OutputLayer(NamedTuple):
    """The last product of a model: logits are ``h W^T + b``.

    Attributes:
        features: ``h``, ``[..., C]``.
        weight: ``W``, ``[V, C]``.
        bias: ``b``, ``[V]``, or None.
    """

    features: Tensor
    weight: Tensor
    bias: Tensor | None = None

    def of_words(self, words: Tensor | slice) -> OutputLayer:
        """Return the layer for some of the words, ``[N, C]``."""
        return self._replace(features=self.features.flatten(0, -2)[words])

    def logits(self) -> Tensor:
        """Compute the logits ``[..., V]``, at least in fp32."""
        z = F.linear(*self)
        return z.to(torch.promote_types(z.dtype, torch.float32))
