"""Move pads to the right of padded batches, and reorder tensors as beam search reorders its rows.

fairseq pads sources on the left by default, and always in interactive use. Beam search turns each
sentence into several rows, one for each hypothesis.

Letters: ``B`` sentences, ``S`` columns (positions, with pads), ``R`` rows before a reordering and
``R'`` rows after it, ``B'`` sentences after it.
"""

import torch
from torch import Tensor

EncoderOut = dict[str, list[Tensor]]
AXES = {
    "encoder_out": 1,
    "encoder_padding_mask": 0,
    "encoder_embedding": 0,
    "encoder_states": 1,
    "src_lengths": 0,
}
"""The axis of the sentences in each entry of fairseq's ``encoder_out``."""


def real_first(padding_mask: Tensor) -> Tensor:
    """Return column indices ``[B, S]`` that move each sentence's tokens to the left of its pads.

    ``padding_mask`` ``[B, S]`` is true on pads. :func:`gather_columns` moves columns by these
    indices, and moves them back by the indices' ``argsort``.
    """
    return padding_mask.to(torch.uint8).argsort(dim=1, stable=True)


def gather_columns(values: Tensor, columns: Tensor) -> Tensor:
    """Return ``values`` ``[B, S, ...]`` with their columns in the order ``columns``, ``[B, S]``."""
    index = columns.view(*columns.shape, *[1] * (values.dim() - 2)).expand_as(values)
    return values.gather(1, index)


def select_sentences(order: Tensor, rows_per_sentence: int) -> Tensor:
    """Return the indices ``[B']`` of the sentences that remain when beam search reorders its rows.

    Some tensors, such as keys, are equal for all hypotheses of a sentence. To save memory, they
    have one item per sentence instead of one per row. :func:`keep_sentences` reorders them by these
    indices.

    If some sentences have more rows left than others, return the sentence of each row instead,
    ``[R']``. From then on the tensors have one item per row, as if each row were a sentence.

    Args:
        order: ``[R']``, the indices of the rows that beam search keeps.
        rows_per_sentence: number of neighbouring rows that belong to each sentence.
    """
    sentences = order.div(rows_per_sentence, rounding_mode="floor")
    sentence_order, counts = torch.unique_consecutive(sentences, return_counts=True)
    return sentence_order if bool((counts == counts[0]).all()) else sentences


def keep_sentences(values: Tensor, axis: int, sentences: Tensor) -> Tensor:
    """Select the items of ``values`` along ``axis`` whose indices are ``sentences`` ``[B']``.

    If all items stay in order, return ``values`` itself instead of a copy. This is nearly always so
    in beam search, which mostly reorders rows within sentences.
    """
    count = values.size(axis)
    if sentences.numel() == count and bool(
        (sentences == torch.arange(count, device=sentences.device)).all()
    ):
        return values
    return values.index_select(axis, sentences)


class BeamSearchEncoder:
    """A base for encoders of fairseq whose output the hypotheses of a sentence share.

    The class attribute ``by_row`` names the only entry of the output that has an item for each row
    (hypothesis) of beam search. All other entries have an item for each sentence.
    """

    by_row = "src_lengths"

    def reorder_encoder_out(self, encoder_out: EncoderOut, new_order: Tensor) -> EncoderOut:
        """Return the output of the encoder for the rows ``new_order`` ``[R']`` of beam search.

        ``new_order`` has the indices of the rows to keep, in their new order.
        """
        rows, count = encoder_out[self.by_row][0], encoder_out["encoder_out"][0].size(1)
        reordered = {**encoder_out, self.by_row: [rows.index_select(0, new_order)]}
        if count == 1:
            return reordered
        sentences = select_sentences(new_order, rows.size(0) // count)
        for name in (AXES.keys() & encoder_out.keys()) - {self.by_row}:
            reordered[name] = [keep_sentences(v, AXES[name], sentences) for v in encoder_out[name]]
        return reordered
