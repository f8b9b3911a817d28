"""The two matrix products of an attention, whose operands may be binary (torch only).

The paper binarizes them in rows BMT-7 and BMT-8 of Table 1, but neither the paper nor its code says
how. There must be one bound for each sum (3.1), and no sum may depend on masked positions.

*QK*: ``q_b · k_b`` is a sum over the channels of a head. Queries and keys have a bound for each
position and head, so positions do not influence each other.

*Score-V*: ``Σ_j p_ij v_j`` is a sum over positions ``j``. By the rule of 3.1, each channel of V
would have one bound over all positions, also masked and future ones. Here each ``v_j`` has its own
bound ``B_j`` instead, which is moved to the other operand: ``Σ_j (p_ij B_j) (v_jb / B_j)``. The
left operand has one bound for each query, and the right one is ±1/2. So each sum still has one
bound, and it depends only on positions that the query may see. Probabilities are never negative, so
3.1 maps them all to ``+B/2``, even the zeros of masked positions; these are set to 0 again
afterwards. With ``signed`` all visible positions therefore count equally; with ``unsigned`` only
those count that have at least half of the largest weight, as in binarized BERTs.

Letters: ``N`` sentences, ``H`` heads, ``T`` queries, ``S`` keys, ``D`` channels of a head.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fairseq_ext.binary.binarize import Binarizer, zero_or_one

BINARIZER = Binarizer()


def attention_weights(
    queries: Tensor, keys: Tensor, hidden: Tensor | None, binary: bool = False
) -> Tensor:
    """Compute ``softmax(Q K^T / √D)`` ``[N, H, T, S]``, in at least fp32.

    A query that may not look anywhere (the source has only pads) looks at all positions equally.

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
        # With -inf a query that may not look anywhere would give NaN. The weight is 0 all the same
        # if any position is visible.
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
    """Compute ``Σ_j p_ij v_j`` ``[N, H, T, D]``.

    Args:
        weights: ``p`` ``[N, H, T, S]``.
        values: ``[N, H, S, D]``.
        hidden: as for :func:`attention_weights`.
        dropout: applied to the weights, binarized or not.
        binary: ``signed`` or ``unsigned`` to binarize both operands (Score-V Einsum).
    """
    if binary is None:
        return dropout(weights) @ values
    signs, half = BINARIZER.signs(values)  # half is B_j / 2: [N, H, S, 1]
    weights = weights * (2 * half).transpose(-1, -2)
    picked, level = zero_or_one(weights) if binary == "unsigned" else BINARIZER.signs(weights)
    if hidden is not None:
        picked = picked.masked_fill(hidden, 0)
    return (dropout(picked) @ signs) * (level * 0.5)
