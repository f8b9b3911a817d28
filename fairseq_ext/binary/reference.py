"""BMT, written from the paper's equations.

The functions take one sentence, without padding and dropout. They are slow and meant to be read;
the tests compare the fast layers' values and gradients with theirs. ``floor`` has the gradient of
the identity (the straight-through estimator). Section numbers are the paper's. ``p`` has the
parameters of a layer of the model ``bmt`` by name, such as ``q_proj.weight``.

Letters: ``T`` queries, ``S`` keys, ``C`` channels, ``D`` channels of a head.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

Parameters = Mapping[str, Tensor]
EPSILON = 2.0**-7


def binarized(x: Tensor, bound: Tensor | None = None) -> Tensor:
    """Binarize each row of K numbers of ``x`` ``[..., K]`` to ±B/2 (section 3.1).

    The result is ``(floor(clip(x / B, -1 + ε, 1 - ε)) + 0.5) B``. ``bound`` is ``B`` ``[..., 1]``,
    or None for the largest magnitude of each row.
    """
    if bound is None:
        bound = x.detach().abs().amax(-1, keepdim=True)  # B = max |x|
    clipped = torch.clamp(x / bound.masked_fill(bound == 0, 1), -1 + EPSILON, 1 - EPSILON)
    floor = clipped + (torch.floor(clipped) - clipped).detach()  # ∂ floor(x) / ∂x := 1
    return (floor + 0.5) * bound


def ternary(weight: Tensor, rows: bool = True) -> Tensor:
    """Make weights ternary, as BitNet b1.58 does: ``round(clip(W / γ, -1, 1)) γ``.

    ``γ`` is the mean of ``|W|`` in each row or, if ``rows`` is false, in the whole matrix. A weight
    of ``±γ / 2`` becomes 0.
    """
    level = weight.detach().abs()
    level = level.mean(-1, keepdim=True) if rows else level.mean()  # γ
    rounded = torch.clamp(weight / level.masked_fill(level == 0, 1), -1, 1).round() * level
    return weight + (rounded - weight).detach()  # ∂ W_t / ∂ W := 1


def dense(x: Tensor, weight: Tensor, bias: Tensor | None, bits: str, scale: float = 1.0) -> Tensor:
    """Compute ``A_b W_b / s + b`` (section 3.3) for ``A = x`` ``[..., K]`` and ``W`` ``[N, K]``.

    ``bits`` contains ``w`` if the weights are binary, ``t`` if they are ternary, and ``a`` if the
    inputs are binary. ``scale`` is ``s``. The layer has K inputs and N outputs.
    """
    x, weight = binarized(x) if "a" in bits else x, binarized(weight) if "w" in bits else weight
    weight = ternary(weight) if "t" in bits else weight
    y = x @ weight.t() / scale
    return y if bias is None else y + bias


def norm(p: Parameters, name: str, x: Tensor, eps: float) -> Tensor:
    """Apply the layer norm whose parameters in ``p`` are called ``name``; ``eps`` is its ε."""
    return functional.layer_norm(x, x.shape[-1:], p[f"{name}.weight"], p[f"{name}.bias"], eps)


def feed_forward(x: Tensor, p: Parameters, bits: str, eps: float) -> Tensor:
    """Compute ``LN(LN(max(0, A_b W_1b + b_1))_b W_2b + b_2)`` (section 3.4) for ``A = x``.

    ``x`` and the result are ``[T, C]``. ``bits`` is as in :func:`dense`; ``eps`` is ε of the norms.
    """
    hidden = torch.relu(dense(x, p["fc1.weight"], p["fc1.bias"], bits))
    hidden = norm(p, "fc2.input_norm", hidden, eps)
    y = dense(hidden, p["fc2.linear.weight"], p["fc2.linear.bias"], bits)
    return norm(p, "fc2.output_norm", y, eps)


def attention(
    queries: Tensor,
    source: Tensor,
    visible: Tensor,
    p: Parameters,
    heads: int,
    bits: Mapping[str, str],
    eps: float,
    score_v: str | None = None,
) -> Tensor:
    """Attend from ``queries`` ``[T, C]`` to ``source`` ``[S, C]`` (section 3.5 and figure 1).

    ``visible`` ``[T, S]`` is true where a query may look. ``bits`` maps each of the products
    ``qkv``, ``out`` and ``qk`` to the ``bits`` of :func:`dense`. ``score_v`` says how to binarize
    attention weights and values: ``signed``, ``unsigned``, or None for not at all. ``eps`` is ε of
    the norms.
    """

    def by_head(x: Tensor, name: str) -> list[Tensor]:
        y = dense(x, p[f"{name}_proj.weight"], None, bits["qkv"])
        parts = y.chunk(heads, dim=-1)
        return [norm(p, f"head_norms.{name}", part, eps) for part in parts]  # LN(A_b W_b)

    pairs = zip(by_head(queries, "q"), by_head(source, "k"), by_head(source, "v"), strict=True)
    contexts = [attend_head(q, k, v, visible, "a" in bits["qk"], score_v) for q, k, v in pairs]
    joined = torch.cat(contexts, dim=-1)  # A
    y = dense(joined, p["out_proj.weight"], None, bits["out"])
    return norm(p, "output_norm", y, eps) + joined  # LN(A_b W_b) + A


def attend_head(
    q: Tensor, k: Tensor, v: Tensor, visible: Tensor, binary_qk: bool, score_v: str | None
) -> Tensor:
    """Attend from ``q`` ``[T, D]`` to ``k`` and ``v`` ``[S, D]`` of one head; return ``[T, D]``.

    ``binary_qk`` says whether to binarize queries and keys; ``visible`` and ``score_v`` are as in
    :func:`attention`.
    """
    if binary_qk:  # QK Einsum
        q, k = binarized(q), binarized(k)
    scores = (q @ k.t() / math.sqrt(q.size(-1))).masked_fill(~visible, -math.inf)
    weights = torch.softmax(scores, dim=-1)  # p: [T, S]
    if score_v is None:
        return weights @ v
    bounds = v.detach().abs().amax(-1)  # Score-V Einsum; B of each value: [S]
    moved = weights * bounds  # p_j v_j = (p_j B_j) (v_j / B_j): the sum over j needs one bound
    if score_v == "signed":
        picked = binarized(moved)  # ±B/2
    else:
        largest = moved.detach().amax(-1, keepdim=True)
        picked = binarized(moved - largest / 2, largest) + largest / 2  # 0 or B
    return (picked * visible) @ (binarized(v) / bounds.unsqueeze(-1))
