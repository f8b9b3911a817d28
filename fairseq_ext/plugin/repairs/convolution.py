"""Train fairseq's dynamic convolutions as they translate.

``--decoder-conv-type dynamic`` computes a kernel of K taps for each token (Wu et al., 2019,
equation 4). Generation takes the softmax over all K taps, as the paper does.
"""

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from fairseq_ext.plugin.table import around


@around(
    "fairseq.modules.dynamic_convolution:DynamicConv_scripatable._forward_unfolded",
    patch="dynamic convolution of short sentences",
)
def over_all_taps(
    original: Callable, self: Any, x: Tensor, incremental_state: Any, query: Tensor
) -> Tensor:
    """Pad targets ``[T, B, C]`` at their end to K words, where the softmax is over all K taps.

    The convolution is causal, so the padding changes no word before it.

    Problem: In training and scoring, fairseq takes the softmax of a dynamic convolution in the
    decoder over T instead of K taps where T, the longest target of the batch, is below K. The model
    depends on its batches, generates with other kernels, and repeats phrases.
    """
    missing = self.kernel_size - len(x)
    causal = self.padding_l == self.kernel_size - 1
    if incremental_state is not None or missing <= 0 or not causal:
        return original(self, x, incremental_state, query)
    at_end = (0, 0, 0, 0, 0, missing)
    padded = original(self, F.pad(x, at_end), None, F.pad(query, at_end))
    return padded[: len(x)]
