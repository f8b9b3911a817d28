"""The second half of the feed-forward network (section 3.4), called by fairseq's layers."""

from __future__ import annotations

from torch import Tensor, nn

from fairseq_ext.binary.linear import BinaryLinear


class FeedForwardOutput(nn.Module):
    """``LN(LN(h)_b W_2b + b_2)`` of the hidden layer ``h = max(0, A_b W_1b + b_1)``.

    ``h`` is never negative. The inner norm centres it, so that both signs occur.

    Args:
        linear: ``W_2`` and ``b_2``.
        dropout: applied to the hidden layer.
        norms: use the two layer norms.
        dropout_first: apply dropout before binarization, as the paper's code does, so that a
            dropped number becomes ``+B/2``. Otherwise it counts as 0.
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
