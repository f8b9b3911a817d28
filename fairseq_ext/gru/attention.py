"""Scores of a recurrent decoder's attention over the annotations of a source sentence.

An annotation is the encoder's output for a source word. Each class computes keys from annotations,
once per sentence instead of per hypothesis, and then scores from queries (decoder states) and keys.

Letters: ``B`` sentences, ``G`` decoder rows per sentence (1 in training, the beam size in beam
search), ``S`` source length, ``H`` query size, ``C`` annotation size, ``A`` size of the hidden
layer of additive attention.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_ext.utils.errors import ConfigError


def masked_softmax(scores: Tensor, padding_mask: Tensor) -> Tensor:
    """Compute the softmax of scores ``[..., S]``; pads, where the mask is true, get exactly 0.

    The softmax is computed at least in fp32, and the result has the type of ``scores``.
    """
    precise = torch.promote_types(scores.dtype, torch.float32)
    masked_scores = scores.to(precise).masked_fill(padding_mask, torch.finfo(precise).min)
    weights = torch.softmax(masked_scores, dim=-1)
    return weights.masked_fill(padding_mask, 0.0).type_as(scores)


def exponentials(keys: Tensor) -> Tensor | None:
    """Return ``e^{2k}`` of keys ``k``, with which :func:`tanh_of_sum` is faster on a CPU.

    A tanh takes ten times as long as the multiplication that replaces it. Return None if keys are
    on another device or in half precision, or if a ``|k|`` is 30 or more. Below 30, ``e^{2k}`` is
    neither 0 nor infinite in fp32, so its product with ``e^{2q}`` is never NaN. If ``e^{2q}``
    overflows or underflows, ``|q|`` is above 40. Then :func:`tanh_of_sum` returns ±1, to which
    ``tanh(k + q)`` also rounds.
    """
    exact = keys.dtype in (torch.float32, torch.float64)
    if keys.device.type != "cpu" or not exact or not keys.numel() or keys.abs().max() >= 30:
        return None
    return (2 * keys).exp_()


def tanh_of_sum(
    keys: Tensor, keys_exponentials: Tensor | None, query: Tensor, out: Tensor | None = None
) -> Tensor:
    """Compute ``tanh(k + q)`` ``[B, G, S, A]``, without gradient.

    Args:
        keys: ``k``, ``[B, 1, S, A]``.
        keys_exponentials: the result of :func:`exponentials` for ``keys``. If it is not None, the
            tanh is computed as ``1 - 2 / (e^{2k} e^{2q} + 1)``.
        query: ``q``, ``[B, G, 1, A]``.
        out: a tensor ``[B, G, S, A]`` for the result; None for a new tensor.
    """
    if keys_exponentials is None:
        return torch.add(keys, query, out=out).tanh_()
    unit = keys.new_ones(1)
    out = torch.addcmul(unit, keys_exponentials, (2 * query).exp_(), out=out)
    return torch.add(unit, out.reciprocal_(), alpha=-2, out=out)


class MLPAttention(nn.Module):
    """Additive attention: ``e_j = v^T tanh(W [s; h_j] + b) + b_v`` (Bahdanau et al. 2015, A.1.2).

    ``W [s; h_j]`` is split into ``W_s s + W_h h_j``, so that ``keys_j = W_h h_j + b`` is computed
    once per sentence. ``b_v`` adds the same number to every score, so its gradient is 0; the
    paper's number of parameters includes it.

    Args:
        query_dim, key_dim, attention_dim: H, C and A.
    """

    def __init__(self, query_dim: int, key_dim: int, attention_dim: int) -> None:
        super().__init__()
        self.query_dim = query_dim
        self.hidden = nn.Linear(query_dim + key_dim, attention_dim)  # W, b
        self.score = nn.Linear(attention_dim, 1)  # v, b_v

    @property
    def query_weight(self) -> Tensor:
        """The columns ``W_s`` ``[A, H]`` of ``W``, which multiply the query."""
        return self.hidden.weight[:, : self.query_dim]

    def keys(self, annotations: Tensor) -> Tensor:
        """Compute the keys ``W_h h_j + b`` ``[B, S, A]`` of annotations ``[B, S, C]``."""
        return F.linear(annotations, self.hidden.weight[:, self.query_dim :], self.hidden.bias)

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        """Score queries ``[B, G, H]`` against keys ``[B, S, A]``; return ``[B, G, S]``."""
        queries = F.linear(query, self.query_weight).unsqueeze(2)  # [B, G, 1, A]
        return self.score(torch.tanh(queries + keys.unsqueeze(1))).squeeze(-1)


class GeneralAttention(nn.Module):
    """General attention (Luong et al. 2015): ``e_j = s^T W h_j``; ``attention_dim`` is ignored."""

    def __init__(self, query_dim: int, key_dim: int, attention_dim: int = 0) -> None:
        super().__init__()
        self.hidden = nn.Linear(key_dim, query_dim, bias=False)  # W

    def keys(self, annotations: Tensor) -> Tensor:
        """Compute the keys ``W h_j`` ``[B, S, H]`` of annotations ``[B, S, C]``."""
        return self.hidden(annotations)

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        """Score queries ``[B, G, H]`` against keys ``[B, S, H]``; return ``[B, G, S]``."""
        return torch.bmm(query, keys.transpose(1, 2))


class DotAttention(GeneralAttention):
    """Dot attention as the paper prints it: ``e_j = s^T h_j``, for ``s`` and ``h_j`` of equal size.

    Other sizes, such as the paper's 256 and 512, raise ConfigError.
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
        """Return the annotations ``[B, S, C]`` themselves as keys."""
        return annotations


ATTENTION_TYPES = {"mlp": MLPAttention, "general": GeneralAttention, "dot": DotAttention}
