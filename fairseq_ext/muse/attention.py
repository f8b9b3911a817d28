"""Self-attention with a convolution beside it, and attention over the source (torch only).

Letters as in :mod:`fairseq_ext.muse.convolution`; ``S`` source positions, ``R`` rows of a beam.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from fairseq_ext.base.padding import select_sentences
from fairseq_ext.muse.convolution import DynamicConvolution, band, convolve, longest_band

# Added to the score of a pad, so that its weight is exactly 0; finite even in fp16.
MASKED = -3e4
# How many positions of a decoder to make room for at a time.
ROOM = 16


def heads_first(projected: Tensor, parts: int, heads: int) -> tuple[Tensor, ...]:
    """Split ``[T, B, parts · C]`` into ``[B·H, T, D]`` for each part, contiguous, by one copy."""
    length, batch, _ = projected.shape
    split = projected.view(length, batch, parts, heads, -1).permute(2, 1, 3, 0, 4)
    return split.reshape(parts, batch * heads, length, -1).unbind()


def additive_mask(padding_mask: Tensor, heads: int, like: Tensor) -> Tensor:
    """Make a mask ``[B·H, 1, S]`` to add to scores ``[B·H, ·, S]``, from pads ``[B, S]``."""
    added = like.new_zeros(padding_mask.shape).masked_fill_(padding_mask, MASKED)
    return added.repeat_interleave(heads, dim=0).unsqueeze(1)


def attention_weights(queries: Tensor, keys: Tensor, mask: Tensor | None) -> Tensor:
    """Compute ``softmax(Q K^T / √D + mask)`` ``[N, M, S]``, equation (4), at least in fp32.

    Args:
        queries, keys: ``[N, M, D]``, ``[N, S, D]``.
        mask: additive, broadcast over ``[N, M, S]``.
    """
    absent = 1 if mask is not None else 0
    added = mask if mask is not None else queries.new_zeros(1)
    scale = queries.size(-1) ** -0.5
    scores = torch.baddbmm(added, queries, keys.transpose(1, 2), beta=absent, alpha=scale)
    precise = torch.promote_types(scores.dtype, torch.float32)
    return torch.softmax(scores, dim=-1, dtype=precise).to(scores.dtype)


class MultiScaleAttention(nn.Module):
    """Multi-head attention and convolution of the same values, before ``[W_O; W_out]``.

    Args:
        heads: H.
        convolution: of the values, or None (MUSE-simple).
        separate: whether the convolution has its own values (Table 3, "without shared projection").
        dropout: applied to the attention weights.
    """

    def __init__(
        self,
        heads: int,
        convolution: DynamicConvolution | None = None,
        separate: bool = False,
        dropout: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.heads, self.convolution, self.separate = heads, convolution, separate
        self.dropout = dropout or nn.Identity()

    @property
    def parts_in(self) -> int:
        """The number of projections to read: q, k, v and perhaps the convolution's own values."""
        return 4 if self.separate else 3

    @property
    def parts_out(self) -> int:
        """The number of parts in the output: attention and perhaps convolution."""
        return 1 if self.convolution is None else 2

    def forward(
        self,
        projected: Tensor,
        padding_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
    ) -> Tensor:
        """Attend and convolve.

        Args:
            projected: ``[T, B, 3C]``, q, k and v (``[T, B, 4C]`` if separate).
            padding_mask: ``[B, T]``, true on pads; their values count as 0 in the convolution too.
            attention_mask: ``[T, T]``, added to the scores of the attention.

        Returns:
            ``[T, B, C]``, or ``[T, B, 2C]`` with a convolution.
        """
        length, batch, _ = projected.shape
        queries, keys, *values = heads_first(projected, self.parts_in, self.heads)
        mask = attention_mask
        if padding_mask is not None:
            mask = additive_mask(padding_mask, self.heads, queries)
            mask = mask if attention_mask is None else mask + attention_mask
            pads = padding_mask.repeat_interleave(self.heads, dim=0).unsqueeze(-1)
            values = [part.masked_fill(pads, 0.0) for part in values]
        weights = self.dropout(attention_weights(queries, keys, mask))
        if self.convolution is None:
            outputs = torch.bmm(weights, values[0])
        else:
            read = projected.unflatten(-1, (self.parts_in, -1))[..., -1, :]  # not masked
            kernels = self.convolution.kernels(read).flatten(1, 2).transpose(0, 1)  # [N, T, K]
            outputs = self._joint_product(weights, kernels, values)
        outputs = outputs.view(batch, self.heads, self.parts_out, length, -1)
        return outputs.permute(3, 0, 2, 1, 4).reshape(length, batch, -1)

    def _joint_product(self, weights: Tensor, kernels: Tensor, values: list[Tensor]) -> Tensor:
        """Attend, then convolve: ``[N, 2T, D]``, by one product if values are shared and short."""
        left = self.convolution.left
        if not self.separate and weights.size(1) <= longest_band(kernels.size(-1)):
            return torch.bmm(torch.cat([weights, band(kernels, left)], dim=1), values[0])
        return torch.cat([torch.bmm(weights, values[0]), convolve(values[-1], kernels, left)], 1)

    def step(self, projected: Tensor, cache: Tensor) -> Tensor:
        """Compute :meth:`forward` only for the newest position, under a causal mask.

        Args:
            projected: ``[R, 3C]`` (``[R, 4C]`` if separate), of the newest position.
            cache: ``[2, R, H, t, D]`` (3 if separate), keys and values, the newest included.

        Returns:
            ``[R, C]``, or ``[R, 2C]``: the convolution reads the last values of the cache.
        """
        rows, length = projected.size(0), cache.size(3)
        by_part = projected.view(rows, self.parts_in, -1)
        keys, *values = (part.flatten(0, 1) for part in cache)
        queries = by_part[:, 0].reshape(rows * self.heads, 1, -1)
        weights = self.dropout(attention_weights(queries, keys, None))
        attended = torch.bmm(weights, values[0]).view(rows, -1)
        if self.convolution is None:
            return attended
        kernels = self.convolution.kernels(by_part[:, -1]).flatten(0, 1).unsqueeze(1)
        taps = min(kernels.size(-1), length)
        convolved = torch.bmm(kernels[..., -taps:], values[-1][:, length - taps :])
        return torch.cat([attended, convolved.view(rows, -1)], dim=-1)

    def extra_repr(self) -> str:
        return f"heads={self.heads}, separate={self.separate}"


class Source(NamedTuple):
    """The source of a layer: keys and values ``[B·H, S, D]``, additive mask ``[B·H, 1, S]``."""

    keys: Tensor
    values: Tensor
    mask: Tensor | None


class SourceAttention(nn.Module):
    """Multi-head attention over the source, without its projections.

    Rows of one sentence (hypotheses of a beam) share its keys and values.

    Args:
        heads: H.
        dropout: applied to the attention weights.
    """

    def __init__(self, heads: int, dropout: nn.Module | None = None) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout or nn.Identity()

    def source(self, projected: Tensor, padding_mask: Tensor | None) -> Source:
        """Convert keys and values ``[S, B, 2C]`` and pads ``[B, S]`` to :meth:`forward`'s form."""
        keys, values = heads_first(projected, 2, self.heads)
        mask = None if padding_mask is None else additive_mask(padding_mask, self.heads, keys)
        return Source(keys, values, mask)

    def forward(self, queries: Tensor, source: Source) -> tuple[Tensor, Tensor]:
        """Attend from ``[T, B, C]``: contexts ``[T, B, C]`` and weights ``[B, H, T, S]``."""
        length, batch, _ = queries.shape
        (by_head,) = heads_first(queries, 1, self.heads)
        weights = attention_weights(by_head, source.keys, source.mask)
        contexts = torch.bmm(self.dropout(weights), source.values)
        contexts = contexts.view(batch, self.heads, length, -1).permute(2, 0, 1, 3)
        return contexts.reshape(length, batch, -1), weights.unflatten(0, (batch, self.heads))

    def step(self, queries: Tensor, source: Source) -> tuple[Tensor, Tensor]:
        """Attend from the newest position of rows ``[R, C]``; a sentence's rows are neighbours.

        Returns:
            contexts ``[R, C]`` and weights ``[B, H, R / B, S]``.
        """
        sentences = source.keys.size(0) // self.heads
        # Hypotheses take the place of time, so that hypotheses with equal keys share one product.
        by_sentence = queries.view(sentences, -1, queries.size(-1)).transpose(0, 1)
        contexts, weights = self(by_sentence, source)
        return contexts.transpose(0, 1).reshape(queries.shape), weights


class DecoderState:
    """The keys and values of the hypotheses in all layers, and the sources of their sentences.

    A convolution needs no state of its own, because it reads the last values. Each step calls
    :meth:`extend` once, and each layer fills in its new column.

    Args:
        shape: ``(L, P, R, H, D)``: layers, parts for each position (keys, values …), rows, H, D.
        like: a tensor with the required type and device.
        sources: keys and values of the source, for each layer.
    """

    def __init__(
        self, shape: tuple[int, int, int, int, int], like: Tensor, sources: list[Source]
    ) -> None:
        *outer, dim = shape
        self.sources, self.length = sources, 0
        self._past = like.new_empty(*outer, ROOM, dim)

    def extend(self) -> Tensor:
        """Make room for one more position, which the layers fill in: ``[L, P, R, H, t, D]``."""
        if self.length == self._past.size(4):
            room = self._past.new_empty(*self._past.shape[:4], ROOM, self._past.size(5))
            self._past = torch.cat([self._past, room], dim=4)
        self.length += 1
        return self._past[..., : self.length, :]

    def reorder(self, order: Tensor) -> None:
        """Keep only the rows ``order`` ``[R']``, and the sources of their sentences."""
        rows, heads = self._past.shape[2:4]
        sentences = self.sources[0].keys.size(0) // heads
        if sentences > 1:
            sentence_order = select_sentences(order, rows // sentences)
            if not sentence_order.equal(torch.arange(sentences, device=sentence_order.device)):
                self._select_sources(sentence_order, heads)
        self._past = self._past.index_select(2, order)

    def _select_sources(self, sentences: Tensor, heads: int) -> None:
        def select(values: Tensor) -> Tensor:
            return values.unflatten(0, (-1, heads)).index_select(0, sentences).flatten(0, 1)

        mask = self.sources[0].mask
        mask = None if mask is None else select(mask)
        self.sources = [Source(select(s.keys), select(s.values), mask) for s in self.sources]
