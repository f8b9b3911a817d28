"""Padding and beams: where a sentence's words stand, and what its hypotheses share (torch only).

fairseq pads sources on the left by default, and always in interactive use; beam search expands
a sentence into rows. Letters: ``B`` sentences, ``S`` columns, ``R`` rows.
"""

from __future__ import annotations

import torch
from torch import Tensor


def real_first(padding_mask: Tensor) -> Tensor:
    """For each sentence the columns of its words in order, then those of its pads.

    Gathering columns by this gives right-padded order; gathering by its ``argsort`` gives the
    columns as they were.

    Args:
        padding_mask: ``[B, S]``, true on pads.

    Returns:
        column indices ``[B, S]``.
    """
    return padding_mask.to(torch.uint8).argsort(dim=1, stable=True)


def gather_columns(values: Tensor, columns: Tensor) -> Tensor:
    """``values`` ``[B, S, ...]`` with the columns of each sentence taken by ``[B, S]`` indices."""
    index = columns.view(*columns.shape, *[1] * (values.dim() - 2)).expand_as(values)
    return values.gather(1, index)


def select_sentences(order: Tensor, rows_per_sentence: int) -> tuple[Tensor, int]:
    """Which sentences a reordering of their rows keeps, when all rows of one lie together.

    Beam search expands each sentence to a row per hypothesis and reorders the rows at every
    step, but nearly always within the sentence. What is the same for all rows of a sentence (its
    annotations and keys) can then be kept once, ``beam`` times smaller, and left alone.

    Args:
        order: ``[R']``, the rows to take, of ``R`` rows in groups of ``rows_per_sentence``.
        rows_per_sentence: rows of each sentence now.

    Returns:
        the sentences ``[B']`` to keep, one for each group of the new rows, and the size of those
        groups: the rows of a sentence that lie together, or 1 where the groups differ in size.
    """
    sentences = order.div(rows_per_sentence, rounding_mode="floor")
    kept, counts = torch.unique_consecutive(sentences, return_counts=True)
    group = int(counts[0])
    if bool((counts == group).all()):
        return kept, group
    return sentences, 1


def keep_sentences(values: Tensor, axis: int, sentences: Tensor) -> Tensor:
    """``values`` with ``sentences`` along ``axis``; itself when those are all it has, in order."""
    count = values.size(axis)
    if sentences.numel() == count and bool(
        (sentences == torch.arange(count, device=sentences.device)).all()
    ):
        return values
    return values.index_select(axis, sentences)
