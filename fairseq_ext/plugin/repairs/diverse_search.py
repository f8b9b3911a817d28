"""Diverse beam search on sentences that are not the first of their data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from fairseq_ext.plugin.table import Layer, Patch, around


@around
def count_from_the_first(
    original: Callable,
    self: Any,
    step: int,
    lprobs: Tensor,
    scores: Tensor | None,
    prev_output_tokens: Tensor | None = None,
    original_batch_idxs: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Number the sentences of a batch by their rows, as the overlap of groups is stored."""
    if original_batch_idxs is not None:
        if step == 0:  # all sentences of the batch are there
            self.sentences = original_batch_idxs
        matches = original_batch_idxs.unsqueeze(1).eq(self.sentences)
        original_batch_idxs = matches.int().argmax(1)
    return original(self, step, lprobs, scores, prev_output_tokens, original_batch_idxs)


PATCHES = (
    Patch(
        name="diverse beam search",
        kind="repair",
        reason="fairseq-generate --diverse-beam-groups ends in an IndexError: sentences are "
        "numbered as in the data, but the overlap of their groups is stored by row of the batch",
        layers=(Layer("fairseq.search:DiverseBeamSearch.step", count_from_the_first),),
    ),
)
