"""The second half of the feed-forward network of section 3.4, as fairseq's layers call it."""

from __future__ import annotations

from torch import Tensor, nn

from fairseq_ext.binary.linear import BinaryLinear


class FeedForwardOutput(nn.Module):
    """``LN(LN(h)_b W_2b + b_2)`` of the hidden layer ``h = max(0, A_b W_1b + b_1)``.

    The inner norm is what gives the binarization both signs.

    Args:
        linear: ``W_2`` and ``b_2``.
        dropout: for the hidden layer.
        norms: put the two layer norms in.
        dropout_first: drop before binarizing, as the paper's code does: a dropped number becomes
            ``+B/2``. Else it counts as 0.
    """

    def __init__(
        self,
        linear: BinaryLinear,
        dropout: nn.Module,
        norms: bool = True,
        dropout_first: bool = False,
    ) -> None:
        super().__init__()
        self.linear, self.dropout, self.dropout_first = linear, dropout, dropout_first
        self.input_norm = nn.LayerNorm(linear.in_features) if norms else nn.Identity()
        self.output_norm = nn.LayerNorm(linear.out_features) if norms else nn.Identity()

    def forward(self, hidden: Tensor) -> Tensor:
        """``[..., F]`` to ``[..., C]``."""
        x, dropout = self.input_norm(hidden), self.dropout
        if self.dropout_first:
            x, dropout = dropout(x), None
        return self.output_norm(self.linear(x, dropout))
