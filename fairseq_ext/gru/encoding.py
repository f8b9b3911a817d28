"""The bidirectional GRU encoder, whose result does not depend on padding (torch only)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from fairseq_ext.base.padding import gather_columns, real_first
from fairseq_ext.gru.recurrence import gru_recurrence


class BidirectionalGRU(nn.Module):
    """The encoder that makes annotations ``h_j = [h→_j; h←_j]`` (Saleem & Uprety, section 3.1).

    The result for a sentence depends only on its own words, not on its padding or on the other
    sentences of the batch. An annotation has ``C = 2 · hidden_size`` and the column of its word.
    """

    def __init__(self, embed_dim: int, hidden_size: int) -> None:
        super().__init__()
        self.gru = nn.GRU(embed_dim, hidden_size, bidirectional=True)
        xavier_uniform_per_gate_(self.gru)

    def forward(self, embedded: Tensor, padding_mask: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the annotations of a batch of sentences.

        Args:
            embedded: ``[B, S, E]``.
            padding_mask: ``[B, S]``, true on pads. Pads may be anywhere, or everything.

        Returns:
            annotations ``[B, S, C]``, 0 on pads, and ``[h→_S; h←_1]`` ``[B, C]``, the last states.
        """
        run = self._packed if embedded.is_cuda else self._held
        annotations, final = run(embedded, padding_mask)
        final = final.masked_fill(padding_mask.all(1, keepdim=True), 0.0)  # no word was read
        return annotations.masked_fill(padding_mask.unsqueeze(-1), 0.0), final

    def _held(self, embedded: Tensor, padding_mask: Tensor) -> tuple[Tensor, Tensor]:
        """Run both directions in one loop over time, in which a pad leaves the state unchanged."""
        gru, words = self.gru, embedded.transpose(0, 1)
        forward = F.linear(words, gru.weight_ih_l0, gru.bias_ih_l0)
        backward = F.linear(words, gru.weight_ih_l0_reverse, gru.bias_ih_l0_reverse).flip(0)
        gates = torch.stack([forward, backward], dim=1)  # [S, 2, B, 3H]
        if padding_mask.any():
            pads = padding_mask.t().unsqueeze(-1)
            pads = torch.stack([pads, pads.flip(0)], dim=1)  # [S, 2, B, 1]
            reset, update, candidate = gates.chunk(3, -1)
            gates = torch.cat([reset, update.masked_fill(pads, torch.inf), candidate], dim=-1)
        states = gru_recurrence(
            gates,
            embedded.new_zeros(2, embedded.size(0), gru.hidden_size),
            torch.stack([gru.weight_hh_l0, gru.weight_hh_l0_reverse]),
            torch.stack([gru.bias_hh_l0, gru.bias_hh_l0_reverse]),
        )
        annotations = torch.cat([states[:, 0], states[:, 1].flip(0)], dim=-1).transpose(0, 1)
        return annotations, torch.cat([states[-1, 0], states[-1, 1]], dim=-1)

    def _packed(self, embedded: Tensor, padding_mask: Tensor) -> tuple[Tensor, Tensor]:
        """Call cuDNN's GRU once, on packed sentences without pads."""
        columns = real_first(padding_mask)
        lengths = (~padding_mask).sum(1).clamp(min=1).cpu()  # packing needs at least one step
        packed = pack_padded_sequence(
            gather_columns(embedded, columns), lengths, batch_first=True, enforce_sorted=False
        )
        outputs, final = self.gru(packed)
        outputs, _ = pad_packed_sequence(
            outputs, batch_first=True, total_length=padding_mask.size(1)
        )
        return gather_columns(outputs, columns.argsort(1)), torch.cat([final[0], final[1]], dim=-1)


def xavier_uniform_per_gate_(gru: nn.GRU) -> None:
    """Initialize the matrix of each gate with Xavier-uniform (Glorot & Bengio 2010), biases with 0.

    torch keeps the matrices of the three gates in one tensor. Initialized as a whole, it would seem
    to have three times as many outputs, and its weights would be up to 1.6 times too small.
    """
    for name, parameter in gru.named_parameters():
        if "weight" in name:
            for gate in parameter.chunk(3):
                nn.init.xavier_uniform_(gate)
        else:
            nn.init.zeros_(parameter)
