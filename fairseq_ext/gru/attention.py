"""Attention of a recurrent decoder over the annotations of a source sentence (torch only).

Letters: ``B`` sentences, ``G`` decoder rows per sentence (1 in training, the beam size in beam
search), ``S`` source length, ``H`` query size, ``C`` annotation size, ``A`` attention size.

Keys are computed once per sentence and never repeated over beams; a score needs the query and
the keys only.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_ext.errors import ConfigError


def masked_softmax(scores: Tensor, padding_mask: Tensor | None) -> Tensor:
    """Softmax over the last dimension in fp32, exactly 0 on pads (and on a row of pads only).

    Args:
        scores: ``[..., S]``.
        padding_mask: broadcasts to ``scores``, true on pads; None where there are none.

    Returns:
        weights in the dtype of ``scores``, shaped like it.
    """
    if padding_mask is None:
        return torch.softmax(scores.float(), dim=-1).type_as(scores)
    lowest = torch.finfo(torch.float32).min if scores.dtype != torch.float64 else -1e300
    wide = scores if scores.dtype == torch.float64 else scores.float()
    weights = torch.softmax(wide.masked_fill(padding_mask, lowest), dim=-1)
    return weights.masked_fill(padding_mask, 0.0).type_as(scores)


def exponentials(keys: Tensor) -> Tensor | None:
    """``e^{2k}`` for :func:`tanh_of_sum` where it pays and is safe, else None.

    On a CPU a tanh costs ten times a product. With every ``|k| < 30`` no product of two finite
    exponentials is undefined, and a query whose exponential leaves the range of fp32 saturates
    the tanh to the last bit.
    """
    exact = keys.dtype in (torch.float32, torch.float64)
    if keys.device.type != "cpu" or not exact or not keys.numel() or keys.abs().max() >= 30:
        return None
    return (2 * keys).exp_()


def tanh_of_sum(
    keys: Tensor, keys_exponentials: Tensor | None, query: Tensor, out: Tensor | None = None
) -> Tensor:
    """``tanh(k + q)``, without gradient, as ``1 - 2 / (e^{2k} e^{2q} + 1)`` where that is offered.

    Args:
        keys: ``[B, 1, S, A]``.
        keys_exponentials: of those keys, as :func:`exponentials` gives them.
        query: ``[B, G, 1, A]``.
        out: ``[B, G, S, A]`` to write to, or None.
    """
    if keys_exponentials is None:
        return torch.add(keys, query, out=out).tanh_()
    one = keys.new_ones(1)
    out = torch.addcmul(one, keys_exponentials, (2 * query).exp_(), out=out)
    return torch.add(one, out.reciprocal_(), alpha=-2, out=out)


class MLPAttention(nn.Module):
    """Additive attention (Bahdanau et al. 2015, section A.1.2), as the paper's count implies.

    ``e_j = v^T tanh(W [s; h_j] + b) + b_v``, split as ``W [s; h_j] = W_s s + W_h h_j`` so that
    ``keys_j = W_h h_j + b`` is computed once per sentence. ``b_v`` shifts every score alike and
    its gradient is 0: it is kept for the paper's parameter count.

    Args:
        query_dim: H, size of the decoder state ``s``.
        key_dim: C, size of an annotation ``h_j``.
        attention_dim: A, size of the hidden layer.
    """

    def __init__(self, query_dim: int, key_dim: int, attention_dim: int) -> None:
        super().__init__()
        self.query_dim, self.key_dim = query_dim, key_dim
        self.hidden = nn.Linear(query_dim + key_dim, attention_dim)  # W, b
        self.score = nn.Linear(attention_dim, 1)  # v, b_v

    @property
    def query_weight(self) -> Tensor:
        """``W_s``: ``[A, H]``."""
        return self.hidden.weight[:, : self.query_dim]

    def keys(self, annotations: Tensor) -> Tensor:
        """``W_h h_j + b``: ``[B, S, C]`` to ``[B, S, A]``."""
        return F.linear(annotations, self.hidden.weight[:, self.query_dim :], self.hidden.bias)

    def forward(
        self, query: Tensor, keys: Tensor, keys_exponentials: Tensor | None = None
    ) -> Tensor:
        """Scores ``[B, G, S]`` of queries ``[B, G, H]`` against keys ``[B, S, A]``.

        ``keys_exponentials`` (see :func:`exponentials`) is faster, and without gradient.
        """
        queries = F.linear(query, self.query_weight).unsqueeze(2)  # [B, G, 1, A]
        if keys_exponentials is None:
            layer = torch.tanh(queries + keys.unsqueeze(1))
        else:
            layer = tanh_of_sum(keys.unsqueeze(1), keys_exponentials.unsqueeze(1), queries)
        return self.score(layer).squeeze(-1)


class GeneralAttention(nn.Module):
    """``e_j = s^T W h_j`` (Luong et al. 2015, "general"), with ``keys_j = W h_j``.

    Args: as :class:`MLPAttention`; ``attention_dim`` plays no part, a key has the query's size.
    """

    def __init__(self, query_dim: int, key_dim: int, attention_dim: int = 0) -> None:
        super().__init__()
        self.hidden = nn.Linear(key_dim, query_dim, bias=False)  # W

    def keys(self, annotations: Tensor) -> Tensor:
        """``W h_j``: ``[B, S, C]`` to ``[B, S, H]``."""
        return self.hidden(annotations)

    def forward(
        self, query: Tensor, keys: Tensor, keys_exponentials: Tensor | None = None
    ) -> Tensor:
        """Scores ``[B, G, S]`` of queries ``[B, G, H]`` against keys ``[B, S, H]``."""
        return torch.bmm(query, keys.transpose(1, 2))


class DotAttention(GeneralAttention):
    """``e_j = s^T h_j``, as the paper prints it; state and annotations must have one size.

    Raises:
        ConfigError: the sizes differ, where the product is undefined (the paper's 256 and 512).
    """

    def __init__(self, query_dim: int, key_dim: int, attention_dim: int = 0) -> None:
        nn.Module.__init__(self)
        if query_dim != key_dim:
            raise ConfigError(
                "`--attention-type dot` must have a decoder state as large as an annotation "
                f"(twice `--encoder-hidden-size`: {key_dim}), but `--decoder-hidden-size` is "
                f"{query_dim} instead. Choose {key_dim}, or `--attention-type general` or `mlp`."
            )

    def keys(self, annotations: Tensor) -> Tensor:
        """The annotations themselves: ``[B, S, C]``."""
        return annotations


ATTENTION_TYPES = {"mlp": MLPAttention, "general": GeneralAttention, "dot": DotAttention}
