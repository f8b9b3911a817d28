"""The state of a MUSE decoder between steps: one tensor for the keys and values of all layers.

Torch only. Letters as in :mod:`fairseq_ext.muse.attention`, ``L`` layers, ``P`` parts for each
position (keys, values …).
"""

from __future__ import annotations

import torch
from torch import Tensor

from fairseq_ext.base.padding import select_sentences
from fairseq_ext.muse.attention import Source

# How many positions to make room for at a time.
ROOM = 16


class DecoderState:
    """The keys and values of the hypotheses, and the sources of their sentences.

    A convolution needs no state of its own, because it reads the last values. The first step sets
    ``sources``. Each step calls :meth:`extend` once, and each layer fills in its new column.

    Args:
        shape: ``(L, P, R, H, D)``.
        like: a tensor with the required type and device.
        sources: keys and values of the source, for each layer.
    """

    def __init__(
        self, shape: tuple[int, int, int, int, int], like: Tensor, sources: list[Source]
    ) -> None:
        *outer, dim = shape
        self.sources, self.length = sources, 0
        self._kept = like.new_empty(*outer, ROOM, dim)
        self._spare: Tensor | None = None  # the next reordering writes to it

    @property
    def rows(self) -> int:
        """The number ``R`` of rows."""
        return self._kept.size(2)

    def extend(self) -> Tensor:
        """Make room for one more position, which the layers fill in: ``[L, P, R, H, t, D]``."""
        if self.length == self._kept.size(4):
            room = self._kept.new_empty(*self._kept.shape[:4], ROOM, self._kept.size(5))
            self._kept = torch.cat([self._kept, room], dim=4)
        self.length += 1
        return self._kept[..., : self.length, :]

    def reorder(self, order: Tensor) -> None:
        """Take rows ``order`` ``[R']``, and the sources of their sentences."""
        heads = self._kept.size(3)
        sentences = self.sources[0].keys.size(0) // heads
        if sentences > 1:
            sentence_order, _ = select_sentences(order, self.rows // sentences)
            if not sentence_order.equal(torch.arange(sentences, device=sentence_order.device)):
                self._keep_sources(sentence_order, heads)
        old, shape = self._kept, list(self._kept.shape)
        shape[2] = order.numel()
        new = self._spare
        if new is None or list(new.shape) != shape:
            new = old.new_empty(shape)
        filled = slice(0, self.length)
        torch.index_select(old[..., filled, :], 2, order, out=new[..., filled, :])
        self._kept, self._spare = new, old

    def _keep_sources(self, sentences: Tensor, heads: int) -> None:
        def keep(values: Tensor) -> Tensor:
            return values.unflatten(0, (-1, heads)).index_select(0, sentences).flatten(0, 1)

        mask = self.sources[0].mask
        mask = None if mask is None else keep(mask)
        self.sources = [Source(keep(s.keys), keep(s.values), mask) for s in self.sources]
