"""Linformer attention, written from its equations.

The functions take one sentence without padding. They are slow and meant to be read; the tests
compare the fast layer's values and gradients with theirs. Numbers of equations refer to Wang et al.
(2020). Numbers of sections refer to Pampaloni if no other paper is named.

Letters: ``T`` queries, ``n`` source tokens, ``C`` channels, ``H`` heads, ``K`` slots (mixtures of
tokens), ``N`` columns of E and F.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor


def matrix(kind: str, slots: int, max_len: int, weight: Tensor) -> Tensor:
    """Build E or F, ``[K, N]``, with ``K = slots`` and ``N = max_len`` (Wang et al., section 4).

    ``kind`` is ``learned``, ``mean-pool`` or ``convolution``. ``weight`` is the learned matrix
    itself, or the convolution's kernel ``[w]`` with ``w = ⌈N / K⌉``.
    """
    if kind == "learned":
        return weight
    window = math.ceil(max_len / slots)
    token, slot = torch.arange(max_len), torch.arange(slots).unsqueeze(1)
    inside = (token // window == slot).to(weight.dtype)  # slot i reads i w … i w + w - 1
    return inside / window if kind == "mean-pool" else inside * weight[token % window]


def attention(
    p: Mapping[str, Tensor],
    query: Tensor,
    source: Tensor,
    e: Tensor,
    f: Tensor,
    num_heads: int,
    scale: str = "head-dim",
) -> Tensor:
    """Attend from ``query`` ``[T, C]`` to ``source`` ``[n, C]``, equations (2) and (7).

    Args:
        p: weights and biases of the four linear layers by name, such as ``q_proj.weight``.
        e, f: E and F, ``[K, N]``; their first ``n`` columns are used.
        scale: ``head-dim`` divides scores by ``√(C / H)``, ``model-dim`` by ``√C`` (section 1).
    """

    def linear(name: str, x: Tensor) -> Tensor:
        return x @ p[f"{name}.weight"].t() + p[f"{name}.bias"]

    count, channels = source.shape
    divisor = math.sqrt(channels if scale == "model-dim" else channels // num_heads)
    keys = e[:, :count] @ linear("k_proj", source)  # E K: [K, C]
    values = f[:, :count] @ linear("v_proj", source)  # F V: [K, C]
    parts = (x.chunk(num_heads, dim=-1) for x in (linear("q_proj", query), keys, values))
    heads = [
        torch.softmax(q @ k.t() / divisor, dim=-1) @ v  # softmax(Q (E K)^T / √D) F V   (7)
        for q, k, v in zip(*parts, strict=True)
    ]
    return linear("out_proj", torch.cat(heads, dim=-1))  # Concat(head_1, …, head_H) W_O   (2)
