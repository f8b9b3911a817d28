"""Self-attention with a convolution in parallel, and attention over the source.

Letters: ``T`` queries, ``S`` keys (positions), ``B`` sentences, ``R`` rows (sentences or, in beam
search, hypotheses), ``C`` channels, ``H`` heads of ``D`` channels, ``K`` taps, ``N`` = B·H.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from fairseq_ext.muse.convolution import (
    DynamicConvolution,
    Past,
    band,
    convolve,
    extend,
    longest_band,
)

# Added to the score of a pad, so that its weight is exactly 0; finite even in fp16.
MASKED = -3e4


def heads_first(projected: Tensor, parts: int, heads: int) -> tuple[Tensor, ...]:
    """Split ``[T, B, parts · C]`` into parts, such as q, k and v, and each part into heads.

    Return a contiguous tensor ``[B·H, T, D]`` for each part, by a single copy.
    """
    length, batch, _ = projected.shape
    split = projected.view(length, batch, parts, heads, -1).permute(2, 1, 3, 0, 4)
    return split.reshape(parts, batch * heads, length, -1).unbind()


def additive_mask(padding_mask: Tensor, heads: int, like: Tensor) -> Tensor:
    """Turn a padding mask ``[B, S]``, true on pads, into numbers to add to the attention scores.

    The result ``[B·H, 1, S]`` is -30,000 on pads and 0 elsewhere, in type and device like ``like``.
    """
    added = like.new_zeros(padding_mask.shape).masked_fill_(padding_mask, MASKED)
    return added.repeat_interleave(heads, dim=0).unsqueeze(1)


def attention_weights(queries: Tensor, keys: Tensor, mask: Tensor | None) -> Tensor:
    """Compute the attention weights ``softmax(Q K^T / √D + mask)`` ``[N, M, S]``, equation (4).

    The M queries are ``[N, M, D]``, the S keys ``[N, S, D]``; N counts the heads of all sentences.
    The mask is broadcast to ``[N, M, S]``; None masks nothing. The softmax is computed at least in
    fp32, and the result has the type of the scores.
    """
    added, beta = (queries.new_zeros(1), 0) if mask is None else (mask, 1)
    scale = queries.size(-1) ** -0.5
    scores = torch.baddbmm(added, queries, keys.transpose(1, 2), beta=beta, alpha=scale)
    precise = torch.promote_types(scores.dtype, torch.float32)
    return torch.softmax(scores, dim=-1, dtype=precise).to(scores.dtype)


class MultiScaleAttention(nn.Module):
    """Multi-head self-attention, in parallel with a convolution of the attention's values.

    The caller projects the input to q, k and v, and multiplies the output by ``[W_O; W_out]``.

    Args:
        heads: H.
        convolution: convolution of the values, or None (MUSE-simple).
        separate: whether the convolution reads values of its own instead of the attention's (Table
            3, "without shared projection").
        dropout: applied to the attention weights.
    """

    def __init__(
        self,
        heads: int,
        convolution: DynamicConvolution | None,
        separate: bool,
        dropout: nn.Module,
    ) -> None:
        super().__init__()
        self.heads, self.convolution, self.separate = heads, convolution, separate
        self.dropout = dropout

    @property
    def parts_in(self) -> int:
        """The number of projections in :meth:`forward`'s input: q, k, v and any separate values."""
        return 4 if self.separate else 3

    @property
    def parts_out(self) -> int:
        """The number of results in the output: 1 (attention) or 2 (attention and convolution)."""
        return 1 if self.convolution is None else 2

    def forward(
        self,
        projected: Tensor,
        padding_mask: Tensor | None,
        attention_mask: Tensor | None,
        past: Past | None,
    ) -> Tensor:
        """Attend and convolve; return ``[T, B, C]``, or ``[T, B, 2C]`` if there is a convolution.

        Args:
            projected: q, k and v ``[T, B, 3C]``; ``[T, B, 4C]`` with the convolution's own values.
            padding_mask: ``[B, T]``, true on pads. Pads get no attention, and the convolution reads
                0 instead of their values.
            attention_mask: ``[T, T]``, added to the scores of the attention.
            past: in incremental decoding, keys and values ``[B·H, t, D]`` of ``t`` earlier
                positions. ``T`` is then 1, and the newest keys and values are added to ``past``.
        """
        length, batch, _ = projected.shape
        queries, *parts = heads_first(projected, self.parts_in, self.heads)
        if past is not None:
            parts = [extend(past, str(place), part) for place, part in enumerate(parts)]
        (keys, *values), mask = parts, attention_mask
        if padding_mask is not None:
            mask = additive_mask(padding_mask, self.heads, queries)
            mask = mask if attention_mask is None else mask + attention_mask
            pads = padding_mask.repeat_interleave(self.heads, dim=0).unsqueeze(-1)
            values = [part.masked_fill(pads, 0.0) for part in values]
        weights = self.dropout(attention_weights(queries, keys, mask))
        if self.convolution is None:
            outputs = torch.bmm(weights, values[0])
        else:
            read = projected.unflatten(-1, (self.parts_in, -1))[..., -1, :]  # values, pads as well
            kernels = self.convolution.kernels(read).flatten(1, 2).transpose(0, 1)  # [N, T, K]
            outputs = self._joint_product(weights, kernels, values, self.convolution.left)
        outputs = outputs.view(batch, self.heads, self.parts_out, length, -1)
        return outputs.permute(3, 0, 2, 1, 4).reshape(length, batch, -1)

    def _joint_product(
        self, weights: Tensor, kernels: Tensor, values: list[Tensor], left: int
    ) -> Tensor:
        """Attend and convolve, by a single matrix product where that is faster.

        ``weights`` ``[N, T, S]`` are attention weights, ``kernels`` ``[N, T, K]`` have a kernel for
        each position, with ``left`` taps to the left of it. ``values`` has a tensor ``[N, S, D]``
        for both, or one for the attention and one for the convolution. Return ``[N, 2T, D]``: the
        attention's results, then the convolution's.
        """
        if weights.size(1) < weights.size(2):  # one position; the kernel's last tap reads it
            taps = min(kernels.size(-1), weights.size(2))
            convolved = torch.bmm(kernels[..., -taps:], values[-1][:, -taps:])
            return torch.cat([torch.bmm(weights, values[0]), convolved], dim=1)
        if not self.separate and weights.size(1) <= longest_band(kernels.size(-1)):
            return torch.bmm(torch.cat([weights, band(kernels, left)], dim=1), values[0])
        return torch.cat([torch.bmm(weights, values[0]), convolve(values[-1], kernels, left)], 1)


class Source(NamedTuple):
    """The source's keys and values ``[B·H, S, D]``, and its :func:`additive_mask` or None."""

    keys: Tensor
    values: Tensor
    mask: Tensor | None


class SourceAttention(nn.Module):
    """Multi-head attention over the source; the caller projects queries, keys, values and outputs.

    In beam search, neighbouring rows (hypotheses) of one sentence share its keys and values.
    """

    def __init__(self, heads: int, dropout: nn.Module) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout

    def source(self, projected: Tensor, padding_mask: Tensor | None) -> Source:
        """Split keys and values ``[S, B, 2C]`` into heads; the mask ``[B, S]`` is true on pads."""
        keys, values = heads_first(projected, 2, self.heads)
        mask = None if padding_mask is None else additive_mask(padding_mask, self.heads, keys)
        return Source(keys, values, mask)

    def forward(self, queries: Tensor, source: Source) -> tuple[Tensor, Tensor]:
        """Attend from ``[T, R, C]``; return contexts ``[T, R, C]`` and weights ``[R, H, T, S]``."""
        length, rows, dim = queries.shape
        sentences = source.keys.size(0) // self.heads
        # Hypotheses become further positions, so that a sentence needs only one product.
        by_sentence = queries.view(length, sentences, -1, dim).transpose(1, 2)
        (by_head,) = heads_first(by_sentence.reshape(-1, sentences, dim), 1, self.heads)
        weights = attention_weights(by_head, source.keys, source.mask)
        contexts = torch.bmm(self.dropout(weights), source.values)
        shape = (sentences, self.heads, length, rows // sentences, -1)
        contexts = contexts.view(shape).permute(2, 0, 3, 1, 4).reshape(queries.shape)
        return contexts, weights.view(shape).permute(0, 3, 1, 2, 4).flatten(0, 1)
