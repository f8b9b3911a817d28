"""Naive twins of MUSE: one sentence, one position, one head and one tap at a time.

They follow the equations as printed and read parameters by name, so that autograd reaches them.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

Parameters = dict[str, Tensor]


def convolution(values: Tensor, logits: Tensor, causal: bool) -> Tensor:
    """Equation (6) for one head: values ``[T, D]``, logits of k taps ``[T, k]``.

    Tap j = 1 … k reads position ``i + j - ⌈(k+1)/2⌉``; a decoder's last tap reads i itself.
    """
    length, k = logits.shape
    rows = []
    for i in range(length):
        exponentials = [torch.exp(logit) for logit in logits[i]]
        row = torch.zeros_like(values[0])
        for j in range(1, k + 1):
            position = i + j - (k if causal else math.ceil((k + 1) / 2))
            if 0 <= position < length:
                row = row + exponentials[j - 1] / sum(exponentials) * values[position]
        rows.append(row)
    return torch.stack(rows)


def gated_convolutions(
    values: Tensor, predictor: Tensor, gate: Tensor | None, heads: int, sizes: tuple, causal: bool
) -> Tensor:
    """Equation (7) before ``W_out``: ``[T, C]``; rows of the predictor go by head, kernel, tap."""
    if gate is None:
        shares = [1.0]
    else:
        shares = [torch.exp(alpha) / sum(torch.exp(other) for other in gate) for alpha in gate]
    by_head = predictor.view(heads, sum(sizes), -1)
    outputs = []
    for head, channels in enumerate(values.chunk(heads, dim=-1)):
        total, first = torch.zeros_like(channels), 0
        for k, share in zip(sizes, shares, strict=True):
            logits = values @ by_head[head, first : first + k].t()
            total = total + share * convolution(channels, logits, causal)
            first += k
        outputs.append(total)
    return torch.cat(outputs, dim=-1)


def ordinary_convolution(x: Tensor, weight: Tensor, bias: Tensor, causal: bool) -> Tensor:
    """``[T, C]`` with a kernel ``[C, C, k]`` that is the same everywhere."""
    length, k = len(x), weight.size(-1)
    rows = []
    for i in range(length):
        row = bias
        for j in range(1, k + 1):
            position = i + j - (k if causal else math.ceil((k + 1) / 2))
            if 0 <= position < length:
                row = row + weight[:, :, j - 1] @ x[position]
        rows.append(row)
    return torch.stack(rows)


def attention(q: Tensor, k: Tensor, v: Tensor, heads: int, causal: bool = False) -> Tensor:
    """Equation (4) for each position and head: ``[T, C]``."""
    outputs = []
    for query, key, value in zip(*(part.chunk(heads, -1) for part in (q, k, v)), strict=True):
        rows = []
        for i in range(len(query)):
            read, scale = key[: i + 1] if causal else key, math.sqrt(query.size(-1))
            scores = [torch.exp(query[i] @ other / scale) for other in read]
            rows.append(sum(s / sum(scores) * value[j] for j, s in enumerate(scores)))
        outputs.append(torch.stack(rows))
    return torch.cat(outputs, dim=-1)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    mean = x.mean(-1, keepdim=True)
    variance = ((x - mean) ** 2).mean(-1, keepdim=True)
    return (x - mean) / torch.sqrt(variance + 1e-5) * weight + bias


def block(
    p: Parameters,
    x: Tensor,
    heads: int,
    sizes: tuple[int, ...] = (),
    *,
    causal: bool = False,
    source: Tensor | None = None,
    normalize_before: bool = False,
) -> Tensor:
    """One block on one sentence ``[T, C]`` without dropout; the parameters tell the variant."""

    def linear(name: str, argument: Tensor) -> Tensor:
        return argument @ p[f"{name}.weight"].t() + p[f"{name}.bias"]

    residual, norm = x, (p["layer_norm.weight"], p["layer_norm.bias"])
    if normalize_before:
        x = layer_norm(x, *norm)
    projected = linear("projections.in_proj", x).split(x.size(-1), dim=-1)
    q, k, v = projected[:3]
    parts = [attention(q, k, v, heads, causal)]
    if "attention.convolution.predictor.weight" in p:
        predictor, gate = p["attention.convolution.predictor.weight"], "attention.convolution.gate"
        parts.append(
            gated_convolutions(projected[-1], predictor, p.get(gate), heads, sizes, causal)
        )
    y = residual + linear("projections.out_proj", torch.cat(parts, dim=-1))
    ordinary = "ordinary_convolution.convolution"
    if f"{ordinary}.weight" in p:
        weights = p[f"{ordinary}.weight"], p[f"{ordinary}.bias"]
        y = y + ordinary_convolution(x, *weights, causal)
    if source is not None:
        k, v = linear("cross_key_value", source).chunk(2, dim=-1)
        context = attention(linear("projections.cross_query", x), k, v, heads)
        y = y + linear("projections.cross_out", context)
    y = y + linear("projections.fc2", linear("projections.fc1", x).clamp(min=0))
    return y if normalize_before else layer_norm(y, *norm)
