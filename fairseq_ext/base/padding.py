"""Reorder the columns of padded batches, and the rows of beam search.

fairseq pads sources on the left by default, and always in interactive use. Beam search turns each
sentence into several rows, one for each hypothesis.

Letters: ``B`` sentences, ``S`` columns, ``R`` rows.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

AXES = {
    "encoder_out": 1,
    "encoder_padding_mask": 0,
    "encoder_embedding": 0,
    "encoder_states": 1,
    "src_lengths": 0,
}
"""The axis of the sentences in each entry of fairseq's ``encoder_out``."""


def real_first(padding_mask: Tensor) -> Tensor:
    """Return column indices ``[B, S]`` that move each sentence's words to the left of its pads.

    The mask ``[B, S]`` is true on pads. :func:`gather_columns` moves columns by these indices; with
    the ``argsort`` of the indices, it moves the columns back.
    """
    return padding_mask.to(torch.uint8).argsort(dim=1, stable=True)


def gather_columns(values: Tensor, columns: Tensor) -> Tensor:
    """Select columns of each sentence in ``values`` ``[B, S, ...]`` by indices ``[B, S]``."""
    index = columns.view(*columns.shape, *[1] * (values.dim() - 2)).expand_as(values)
    return values.gather(1, index)


def select_sentences(order: Tensor, rows_per_sentence: int) -> Tensor:
    """Find the sentences ``[B']`` that remain when beam search reorders its rows.

    Tensors that are equal for all rows of a sentence (such as its keys) can be stored once per
    sentence, which takes ``beam`` times less memory. They need no copying while beam search
    reorders rows only within sentences, as it nearly always does. If sentences keep different
    numbers of rows, the result is the sentence of each row, ``[R']``: the tensors are then stored
    once per row.

    Args:
        order: ``[R']``, the rows to take.
        rows_per_sentence: number of neighbouring rows that belong to each sentence.
    """
    sentences = order.div(rows_per_sentence, rounding_mode="floor")
    sentence_order, counts = torch.unique_consecutive(sentences, return_counts=True)
    return sentence_order if bool((counts == counts[0]).all()) else sentences


def keep_sentences(values: Tensor, axis: int, sentences: Tensor) -> Tensor:
    """Return the items of ``values`` along ``axis`` that the indices ``sentences`` ``[B']`` select.

    If these are all sentences in order, ``values`` itself is returned, without a copy.
    """
    count = values.size(axis)
    if sentences.numel() == count and bool(
        (sentences == torch.arange(count, device=sentences.device)).all()
    ):
        return values
    return values.index_select(axis, sentences)


def reorder_rows(
    encoder_out: Mapping[str, list[Tensor]], order: Tensor, by_row: str
) -> dict[str, list[Tensor]]:
    """Return an encoder's output for the rows ``order`` ``[R']`` of beam search.

    ``by_row`` names the entry of ``encoder_out`` that has an item for each row. All other entries
    have an item for each sentence, and keep one for each sentence that remains.
    """
    rows, count = encoder_out[by_row][0], encoder_out["encoder_out"][0].size(1)
    reordered = {**encoder_out, by_row: [rows.index_select(0, order)]}
    if count == 1:
        return reordered
    sentences = select_sentences(order, rows.size(0) // count)
    for name in (AXES.keys() & encoder_out.keys()) - {by_row}:
        reordered[name] = [keep_sentences(v, AXES[name], sentences) for v in encoder_out[name]]
    return reordered
