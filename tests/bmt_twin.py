"""Naive twins of BMT, from the equations as printed: one head, one query and one key at a time.

``floor`` counts as the identity in the backward pass (the straight-through estimator); everything
else is plain autograd. Parameters are read by name.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

Parameters = dict[str, Tensor]
EPSILON = 2.0**-7


def binarized(x: Tensor, bound: Tensor | None = None) -> Tensor:
    """Section 3.1 for one row: ``(floor(clip(x / B, -1 + ε, 1 - ε)) + 0.5) B``, B detached."""
    bound = x.detach().abs().max() if bound is None else bound
    if bound == 0:
        return x * 0
    clipped = torch.clamp(x / bound, -1 + EPSILON, 1 - EPSILON)
    floor = clipped + (torch.floor(clipped) - clipped).detach()
    return (floor + 0.5) * bound


def dense(x: Tensor, weight: Tensor, bias: Tensor | None, bits: str, scale: float = 1.0) -> Tensor:
    """``A_b W_b / s + b`` of a token ``[K]``; ``bits`` has ``w`` and ``a`` for what is binary."""
    x = binarized(x) if "a" in bits else x
    outputs = []
    for row in weight:
        row = binarized(row) if "w" in bits else row
        outputs.append((x * row).sum() / scale)
    y = torch.stack(outputs)
    return y if bias is None else y + bias


def norm(x: Tensor, gain: Tensor, shift: Tensor, eps: float) -> Tensor:
    """Layer normalisation of one vector."""
    mean = x.sum() / len(x)
    variance = ((x - mean) ** 2).sum() / len(x)
    return (x - mean) / torch.sqrt(variance + eps) * gain + shift


def feed_forward(x: Tensor, p: Parameters, bits: str, eps: float) -> Tensor:
    """``LN(LN(max(0, A_b W_1b + b_1))_b W_2b + b_2)`` of one token."""
    hidden = torch.relu(dense(x, p["fc1.weight"], p["fc1.bias"], bits))
    hidden = norm(hidden, p["fc2.input_norm.weight"], p["fc2.input_norm.bias"], eps)
    y = dense(hidden, p["fc2.linear.weight"], p["fc2.linear.bias"], bits)
    return norm(y, p["fc2.output_norm.weight"], p["fc2.output_norm.bias"], eps)


def attention(
    queries: Tensor,
    source: Tensor,
    visible: list[list[int]],
    p: Parameters,
    heads: int,
    bits: dict[str, str],
    eps: float,
    score_v: str | None = None,
) -> Tensor:
    """Figure 1 for one sentence: ``[T, C]``, ``[S, C]`` to ``[T, C]``.

    ``visible[i]`` are the positions query i may look at; ``bits`` are of ``qkv``, ``out``, ``qk``.
    """

    def by_head(x: Tensor, name: str) -> list[list[Tensor]]:
        rows = [dense(row, p[f"{name}_proj.weight"], None, bits["qkv"]) for row in x]
        gain, shift = p[f"head_norms.{name}.weight"], p[f"head_norms.{name}.bias"]
        return [[norm(part, gain, shift, eps) for part in row.chunk(heads)] for row in rows]

    q, k, v = by_head(queries, "q"), by_head(source, "k"), by_head(source, "v")
    outputs = []
    for i in range(len(queries)):
        context = [
            one_head(
                q[i][h],
                [k[j][h] for j in visible[i]],
                [v[j][h] for j in visible[i]],
                "a" in bits["qk"],
                score_v,
            )
            for h in range(heads)
        ]
        joined = torch.cat(context)
        y = dense(joined, p["out_proj.weight"], None, bits["out"])
        outputs.append(norm(y, p["output_norm.weight"], p["output_norm.bias"], eps) + joined)
    return torch.stack(outputs)


def one_head(
    query: Tensor, keys: list[Tensor], values: list[Tensor], binary_qk: bool, score_v: str | None
) -> Tensor:
    """Softmax of the scores of the visible positions, and the weighted sum of their values."""
    scores = []
    for key in keys:
        a, b = (binarized(query), binarized(key)) if binary_qk else (query, key)
        scores.append((a * b).sum() / math.sqrt(len(query)))
    weights = torch.softmax(torch.stack(scores), 0)
    if score_v is None:
        return sum(weight * value for weight, value in zip(weights, values, strict=True))
    bounds = [value.detach().abs().max() for value in values]
    moved = torch.stack([weight * b for weight, b in zip(weights, bounds, strict=True)])
    if score_v == "signed":
        picked = binarized(moved)
    else:
        largest = moved.detach().max()
        picked = binarized(moved - largest / 2, largest) + largest / 2
    return sum(
        weight * binarized(value) / b
        for weight, value, b in zip(picked, values, bounds, strict=True)
    )
