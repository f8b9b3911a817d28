"""The bidirectional GRU encoder, exact under padding on either side (torch only)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from fairseq_ext.padding import gather_columns, real_first


class BidirectionalGRU(nn.Module):
    """Annotations ``h_j = [h→_j; h←_j]`` (Saleem & Uprety, section 3.1).

    Each sentence is run over its own words only, whatever its padding and its neighbours, and
    each annotation stands in the column its word came from.

    Args:
        embed_dim: E, size of the input.
        hidden_size: size of each direction; an annotation has C = twice that.
    """

    def __init__(self, embed_dim: int, hidden_size: int) -> None:
        super().__init__()
        self.gru = nn.GRU(embed_dim, hidden_size, bidirectional=True)
        xavier_uniform_per_gate_(self.gru)

    def forward(self, embedded: Tensor, padding_mask: Tensor) -> tuple[Tensor, Tensor]:
        """Annotate a batch.

        Args:
            embedded: ``[B, S, E]``.
            padding_mask: ``[B, S]``, true on pads, which may stand anywhere; columns or whole
                sentences may be all pads.

        Returns:
            annotations ``[B, S, C]``, 0 on pads, and ``[h→_S; h←_1]`` ``[B, C]`` of the last and
            first word of each sentence.
        """
        columns = real_first(padding_mask)
        lengths = (~padding_mask).sum(1).clamp(min=1).cpu()  # packing needs one step at least
        packed = pack_padded_sequence(
            gather_columns(embedded, columns), lengths, batch_first=True, enforce_sorted=False
        )
        outputs, final = self.gru(packed)
        outputs, _ = pad_packed_sequence(
            outputs, batch_first=True, total_length=padding_mask.size(1)
        )
        annotations = gather_columns(outputs, columns.argsort(1))
        annotations = annotations.masked_fill(padding_mask.unsqueeze(-1), 0.0)
        return annotations, torch.cat([final[0], final[1]], dim=-1)


def xavier_uniform_per_gate_(gru: nn.GRU) -> None:
    """Xavier-uniform for each gate's matrix by itself, biases 0.

    torch stacks the three gates, so that initialising the stack would count three times the
    outputs and draw weights too small by a factor up to 1.6 (Glorot & Bengio 2010).
    """
    for name, parameter in gru.named_parameters():
        if "weight" in name:
            for gate in parameter.chunk(3):
                nn.init.xavier_uniform_(gate)
        else:
            nn.init.zeros_(parameter)
