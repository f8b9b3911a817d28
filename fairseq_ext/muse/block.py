"""The MUSE block: all branches read the same input, and their outputs are added to the residual.

Letters: ``T`` positions, ``S`` source positions, ``B`` sentences, ``C`` channels, ``H`` heads.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_ext.base.dropout import active_rate
from fairseq_ext.muse import projections
from fairseq_ext.muse.attention import MultiScaleAttention, Source, SourceAttention
from fairseq_ext.muse.convolution import DynamicConvolution, OrdinaryConvolution, Past


class ParallelBlock(nn.Module):
    """The block ``x ← LN(x + D(SAConv(x)) + D(Cross(x, source)) + D(FFN(x)))`` (equations 1, 8).

    ``SAConv(x) = Att W_O + Conv W_out + bias`` joins self-attention and convolution. ``Cross``, the
    attention over the source, exists only in a decoder, and reads the block's input.
    ``FFN(x) = W_2 relu(W_1 x + b_1) + b_2``. D is dropout, drawn for each branch.

    Args:
        dim, ffn_dim, heads: number of channels, of hidden units of FFN, and of heads.
        kernel_sizes: kernel sizes of the convolution; empty for MUSE-simple.
        causal: True (decoder) if the convolution must not read later positions.
        source_dim: channels of the source to attend to, or None (encoder).
        ordinary: whether to use an :class:`OrdinaryConvolution`, with a single kernel size, instead
            of a :class:`DynamicConvolution`.
        separate: whether the convolution has a value projection of its own.
        normalize_before: whether LN is applied to the branches' input instead of the sum.
        fused: whether generation joins all branches' matrices to ``W_Enc`` and ``W_Dec`` (section
            3.5). The results are the same.
        activation: activation function of the hidden layer.
        dropout, input_dropout, attention_dropout, activation_dropout, kernel_dropout: probabilities
            of dropout, in this order: of the outputs of branches, of the input of self-attention
            and convolution, of attention weights, of the hidden layer, of kernels.
        make_dropout: function that returns a dropout module for a probability.
    """

    def __init__(
        self,
        dim: int,
        ffn_dim: int,
        heads: int,
        kernel_sizes: tuple[int, ...] = (),
        *,
        causal: bool = False,
        source_dim: int | None = None,
        ordinary: bool = False,
        separate: bool = False,
        normalize_before: bool = False,
        fused: bool = False,
        activation: Callable[[Tensor], Tensor] = F.relu,
        dropout: float = 0.0,
        input_dropout: float = 0.0,
        attention_dropout: float = 0.0,
        activation_dropout: float = 0.0,
        kernel_dropout: float = 0.0,
        make_dropout: Callable[[float], nn.Module] = nn.Dropout,
    ) -> None:
        super().__init__()
        self.normalize_before, self.activation = normalize_before, activation
        self.dropout = make_dropout(dropout)
        self.input_dropout = make_dropout(input_dropout)
        self.activation_dropout = make_dropout(activation_dropout)
        dynamic = ordinary_convolution = None
        if kernel_sizes and ordinary:
            (kernel_size,) = kernel_sizes
            ordinary_convolution = OrdinaryConvolution(dim, kernel_size, causal)
        elif kernel_sizes:
            dynamic = DynamicConvolution(
                dim, heads, kernel_sizes, causal, make_dropout(kernel_dropout)
            )
        self.ordinary_convolution = ordinary_convolution
        separate = separate and dynamic is not None
        self.attention = MultiScaleAttention(
            heads, dynamic, separate, make_dropout(attention_dropout)
        )
        inward = {"in_proj": self.attention.parts_in * dim, "cross_query": dim, "fc1": ffn_dim}
        outward = {"out_proj": self.attention.parts_out * dim, "cross_out": dim, "fc2": ffn_dim}
        if source_dim is None:
            del inward["cross_query"], outward["cross_out"]
        self.projections = projections.Projections(dim, inward, outward, fused)
        self.cross: Any = None
        self.cross_key_value: Any = None
        if source_dim is not None:
            self.cross = SourceAttention(heads, make_dropout(attention_dropout))
            self.cross_key_value = nn.Linear(source_dim, 2 * dim)
            projections.init_in_(self.cross_key_value.weight)
            nn.init.zeros_(self.cross_key_value.bias)
        self.layer_norm = nn.LayerNorm(dim)

    def source(self, encoded: Tensor, padding_mask: Tensor | None) -> Source:
        """Compute keys and values of the encoder's output ``[S, B, source_dim]``.

        ``padding_mask`` ``[B, S]`` is true on pads.
        """
        return self.cross.source(self.cross_key_value(encoded), padding_mask)

    def forward(
        self,
        x: Tensor,
        padding_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        source: Source | None = None,
        past: Past | None = None,
    ) -> tuple[Tensor, Any]:
        """Compute the block for ``x`` ``[T, B, C]``; return the output ``[T, B, C]`` and weights.

        The weights ``[B, H, T, S]`` are those of the attention over the source, or None without a
        source. ``padding_mask`` ``[B, T]`` is true on pads; ``attention_mask`` ``[T, T]`` is added
        to the scores of self-attention. In incremental decoding, ``x`` is the newest position, and
        ``past`` keeps tensors of the earlier ones.
        """
        before, x = x, self.layer_norm(x) if self.normalize_before else x
        x_self = self.input_dropout(x)
        projected, *query, hidden = self.projections.read(x, x_self)
        parts, weights = [self.attention(projected, padding_mask, attention_mask, past)], None
        if source is not None:
            context, weights = self.cross(*query, source)
            parts.append(context)
        parts.append(self.activation_dropout(self.activation(hidden)))
        local = None
        if self.ordinary_convolution is not None:
            local = self.ordinary_convolution(x_self, padding_mask, past)
        return self._sum(before, parts, local), weights

    def _sum(self, x: Tensor, parts: Sequence[Tensor], local: Tensor | None) -> Tensor:
        """Apply the branches' last matrices to ``parts``; add the results to the residual ``x``.

        ``parts`` has each last matrix's input, as :meth:`Projections.write` takes it. ``local`` is
        the output of an ordinary convolution, or None; it is added before dropout. If
        ``normalize_before`` is false, the sum is normalized.
        """
        contributions = self.projections.write(parts, joined=not active_rate(self.dropout))
        if local is not None:
            contributions[0] = contributions[0] + local
        for contribution in contributions:
            x = x + self.dropout(contribution)
        return x if self.normalize_before else self.layer_norm(x)
