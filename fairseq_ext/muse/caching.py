"""What a MUSE decoder keeps between steps: one tensor for all layers' keys and values (torch only).

Letters as in :mod:`fairseq_ext.muse.attention`, ``L`` layers, ``P`` parts kept of each position.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fairseq_ext.base.padding import select_sentences
from fairseq_ext.muse.attention import Source

# Positions to make room for at a time.
ROOM = 16


class DecoderState:
    """Hypotheses' keys and values, and their sentences' sources.

    The convolutions keep nothing: the last taps of the values are what they read. The first step
    sets ``sources``; each step calls :meth:`extend` once and fills the new column layer by layer.

    Args:
        shape: ``(L, P, R, H, D)``.
        like: its type and device are taken.
        sources: what each layer attends to, of each sentence.
    """

    def __init__(
        self, shape: tuple[int, int, int, int, int], like: Tensor, sources: list[Source]
    ) -> None:
        *outer, dim = shape
        self.sources, self.length = sources, 0
        self._kept = like.new_empty(*outer, ROOM, dim)
        self._spare: Tensor | None = None  # what the next reordering writes to

    @property
    def rows(self) -> int:
        """R."""
        return self._kept.size(2)

    def extend(self) -> Tensor:
        """Room for one more position: ``[L, P, R, H, t, D]``, the last one to be filled in."""
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
            kept, _ = select_sentences(order, self.rows // sentences)
            if not kept.equal(torch.arange(sentences, device=kept.device)):
                self._keep_sources(kept, heads)
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
