"""The two products of an attention, with one bit for each operand where asked for (torch only).

The paper binarizes them in rows BMT-7 and BMT-8 of Table 1 without saying how, and its code does
not. Each product must have one bound for each sum (3.1), and no sum may see what is masked.

*QK*: ``q_b · k_b`` sums over a head's channels. Queries and keys have a bound for each position
and head, so no position influences another.

*Score-V*: ``Σ_j p_ij v_j`` sums over positions ``j``. The rule of 3.1 would give each channel of V
one bound over all positions, masked and future ones too. Here each ``v_j`` has its own bound
``B_j``, which moves to the other operand: ``Σ_j (p_ij B_j) (v_jb / B_j)``. The left operand then
gets one bound for each query, and the right one is ±1/2: still one bound for each sum, and none
sees more than the query may. As the probabilities are not negative, 3.1 maps them all, masked
zeros included, to ``+B/2``: what is masked is masked again (``signed``: a mean over what is
visible). ``unsigned`` keeps those of at least half the largest, as binarized BERTs do.

Letters: ``N`` sentences, ``H`` heads, ``T`` queries, ``S`` keys, ``D`` channels of a head.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fairseq_ext.binary.binarize import Binarizer, zero_or_one

SCORE_V = ("signed", "unsigned")
BINARIZER = Binarizer()


def attention_weights(
    queries: Tensor, keys: Tensor, hidden: Tensor | None, binary: bool = False
) -> Tensor:
    """``softmax(Q K^T / √D)`` ``[N, H, T, S]``, in fp32 at least.

    A query that must look nowhere, as of a source of pads only, looks at all alike.

    Args:
        queries, keys: ``[N, H, T, D]``, ``[N, H, S, D]``.
        hidden: true where a query must not look, broadcast over ``[N, H, T, S]``.
        binary: binarize both operands (QK Einsum).
    """
    factor: Tensor | float = queries.size(-1) ** -0.5
    if binary:
        queries, of_queries = BINARIZER.signs(queries)
        keys, of_keys = BINARIZER.signs(keys)
        factor = factor * of_queries * of_keys.transpose(-1, -2)
        scores = (queries @ keys.transpose(-1, -2)) * factor
    else:
        scores = (queries * factor) @ keys.transpose(-1, -2)
    if hidden is not None:
        # Not -inf: a source of pads only, where a query must look nowhere, would become NaN. Among
        # other scores the weight of this one is 0 all the same.
        scores = scores.masked_fill(hidden, torch.finfo(scores.dtype).min)
    precise = torch.promote_types(scores.dtype, torch.float32)
    return torch.softmax(scores, dim=-1, dtype=precise).to(scores.dtype)


def contexts(
    weights: Tensor,
    values: Tensor,
    hidden: Tensor | None,
    dropout: Callable[[Tensor], Tensor],
    binary: str | None = None,
) -> Tensor:
    """``Σ_j p_ij v_j`` ``[N, H, T, D]``.

    Args:
        weights: ``p`` ``[N, H, T, S]``.
        values: ``[N, H, S, D]``.
        hidden: as of :func:`attention_weights`.
        dropout: applied to the weights, binarized or not.
        binary: ``signed`` or ``unsigned`` to binarize both operands (Score-V Einsum).
    """
    if binary is None:
        return dropout(weights) @ values
    signs, half = BINARIZER.signs(values)  # half of B_j: [N, H, S, 1]
    weights = weights * (2 * half).transpose(-1, -2)
    picked, level = zero_or_one(weights) if binary == "unsigned" else BINARIZER.signs(weights)
    if hidden is not None:
        picked = picked.masked_fill(hidden, 0)
    return (dropout(picked) @ signs) * (level * 0.5)
