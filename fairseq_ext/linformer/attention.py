"""Linformer attention (torch only): Wang et al. 2020, equation (7); Pampaloni, section 1.

``head = softmax(Q (E K)^T / √D) F V`` with ``Q = x W_q + b_q``, ``K = y W_k + b_k``,
``V = y W_v + b_v``. Letters: ``T`` queries, ``S`` tokens of the source, ``B`` sentences, ``C``
channels, ``H`` heads of ``D`` channels, ``K`` slots.
"""

from __future__ import annotations

from math import sqrt

import torch
from torch import Tensor, nn
from torch.nn import functional

from fairseq_ext.base.dropout import is_active
from fairseq_ext.linformer.projection import LengthProjection

SCALES = ("head-dim", "model-dim")
# Up to this many slots, two plain products beat the fused kernel in inference on a CPU.
FEW_SLOTS = 64


class LinformerAttention(nn.Module):
    """Multi-head attention over ``K`` mixtures of the source tokens.

    All slots take part in the softmax, even those that stay empty because the source is short:
    their key is 0, so they count as ``e^0``. A slot mixes several tokens, so its weight cannot be
    divided among them, and no attention weights are returned.

    Args:
        embed_dim: ``C``.
        num_heads: ``H``.
        projection: E and F; layers may share one.
        scale: ``head-dim`` divides scores by ``√D``, ``model-dim`` by ``√C`` as the paper prints.
        compress_first: whether to mix the tokens before ``W_k`` and ``W_v``, which then multiply
            ``K`` instead of ``S`` rows with equal results; None chooses the cheaper order. It must
            be False if ``k_proj`` or ``v_proj`` is replaced by a layer that is not linear.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        projection: LengthProjection,
        *,
        scale: str = "head-dim",
        compress_first: bool | None = None,
    ) -> None:
        super().__init__()
        self.embed_dim, self.num_heads = embed_dim, num_heads
        self.head_dim = embed_dim // num_heads
        self.scaling = 1 / sqrt(self.head_dim if scale == "head-dim" else embed_dim)
        self.dropout: nn.Module = nn.Identity()  # replaced by fairseq's in a model
        self.compress_first = compress_first
        self.projection = projection
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.k_proj = nn.Linear(embed_dim, embed_dim)
        self.v_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize like fairseq's exact attention; E and F initialize themselves."""
        for linear in (self.q_proj, self.k_proj, self.v_proj):
            nn.init.xavier_uniform_(linear.weight, gain=1 / sqrt(2))
        nn.init.xavier_uniform_(self.out_proj.weight)
        nn.init.zeros_(self.out_proj.bias)

    def compress(self, source: Tensor, padding_mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Compute ``E K`` and ``F V`` of a source ``[S, B, C]``, padded on the right.

        Returns:
            keys and values ``[B, H, K, D]``.

        Raises:
            DataError: the source is longer than the projection.
        """
        matrices = self.projection(source.size(0))  # [M, K, S]
        if padding_mask is not None:
            source = source.masked_fill(padding_mask.t().unsqueeze(-1), 0)
        first = self.compress_first
        if first is None:
            first = source.size(0) > self.projection.slots
        project = self._compress_then_project if first else self._project_then_compress
        keys, values = project(source, padding_mask, matrices)
        return self._heads(keys), self._heads(values)

    def _compress_then_project(
        self, source: Tensor, padding_mask: Tensor | None, matrices: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Compress first, by ``(E y) W + (E 1) b^T = E (y W + 1 b^T)``; vector 1 is 0 on pads."""
        mixed = mix(matrices.flatten(0, 1), source).unflatten(0, matrices.shape[:2])  # [M, K, B, C]
        if padding_mask is None:
            mass = matrices.sum(-1, keepdim=True)  # E 1: [M, K, 1]
        else:
            mass = matrices @ (~padding_mask).t().to(matrices.dtype)  # [M, K, B]
        rest = (mass - 1).unsqueeze(-1)  # the layers below add the bias once
        keys = torch.addcmul(self.k_proj(mixed[0]), rest[0], self.k_proj.bias)
        values = torch.addcmul(self.v_proj(mixed[-1]), rest[-1], self.v_proj.bias)
        return keys, values

    def _project_then_compress(
        self, source: Tensor, padding_mask: Tensor | None, matrices: Tensor
    ) -> tuple[Tensor, Tensor]:
        keys, values = self.k_proj(source), self.v_proj(source)
        if padding_mask is not None:  # pads now have the bias instead of 0
            pads = padding_mask.t().unsqueeze(-1)
            keys, values = keys.masked_fill(pads, 0), values.masked_fill(pads, 0)
        return mix(matrices[0], keys), mix(matrices[-1], values)

    def attend(self, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Compute ``softmax(Q (E K)^T / √D) F V`` of all heads, joined and projected by ``W_o``.

        Args:
            query: ``[T, R, C]``; ``R`` is ``B``, or a multiple of it if the hypotheses of a
                sentence are neighbours and share its keys.
            keys, values: ``[B, H, K, D]``.
        """
        length, rows, _ = query.shape
        sentences = keys.size(0)
        q = self.q_proj(query).view(length, sentences, -1, self.num_heads, self.head_dim)
        q = q.permute(1, 3, 2, 0, 4).flatten(2, 3)  # [B, H, R/B · T, D]
        dropout = self.dropout.p if is_active(self.dropout) else 0.0
        heads = attend_to_slots(q, keys, values, self.scaling, dropout)
        heads = heads.unflatten(2, (-1, length)).permute(3, 0, 2, 1, 4)  # [T, B, R/B, H, D]
        return self.out_proj(heads.reshape(length, rows, self.embed_dim))

    def forward(self, query: Tensor, source: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        """Attend from ``query`` ``[T, B, C]`` to ``source`` ``[S, B, C]``: ``[T, B, C]``."""
        return self.attend(query, *self.compress(source, padding_mask))

    def _heads(self, slots: Tensor) -> Tensor:
        """Split slots ``[K, B, C]`` into heads ``[B, H, K, D]``."""
        return slots.unflatten(2, (self.num_heads, self.head_dim)).permute(1, 2, 0, 3)


def mix(matrix: Tensor, source: Tensor) -> Tensor:
    """Compute ``E y`` for every sentence: ``[K, S]`` times ``[S, B, C]`` is ``[K, B, C]``.

    It takes one product for all sentences, except in inference on a CPU, where one product for each
    sentence is faster. (In training that would give a gradient of E for each sentence.)
    """
    if source.is_cuda or torch.is_grad_enabled():
        return (matrix @ source.flatten(1)).unflatten(1, source.shape[1:])
    matrices = matrix.expand(source.size(1), -1, -1)  # [B, K, S]
    return torch.bmm(matrices, source.transpose(0, 1)).transpose(0, 1)


def attend_to_slots(
    query: Tensor, keys: Tensor, values: Tensor, scaling: float, dropout: float = 0.0
) -> Tensor:
    """Compute ``softmax(scaling · Q K^T) V`` for ``[B, H, T, D]`` over ``[B, H, K, D]``, unmasked.

    It uses torch's fused kernel, except in inference on a CPU with few slots, where two plain
    products are up to twice as fast.
    """
    plain = not (query.is_cuda or torch.is_grad_enabled() or dropout)
    if not (plain and keys.size(2) <= FEW_SLOTS):
        return functional.scaled_dot_product_attention(
            query, keys, values, dropout_p=dropout, scale=scaling
        )
    sentences = query.shape[:2]
    query, keys = query.flatten(0, 1), keys.flatten(0, 1)  # [B · H, T, D], [B · H, K, D]
    scores = torch.baddbmm(
        query.new_zeros(()), query, keys.transpose(1, 2), beta=0, alpha=scaling
    ).unflatten(0, sentences)
    exact = torch.promote_types(scores.dtype, torch.float32)
    return scores.softmax(-1, dtype=exact).to(values.dtype) @ values
