"""MUSE, written from the paper's equations.

The functions take one sentence, without padding and dropout, and convolve one position at a time.
They are slow and meant to be read; the tests compare the fast layers' values and gradients with
theirs. Parameters have the names that they have in :class:`~fairseq_ext.muse.block.ParallelBlock`;
their presence decides the variant of the block.

Letters: ``T`` queries, ``S`` keys, ``C`` channels, ``D`` channels of a head, ``k`` taps.
"""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional

Parameters = Mapping[str, Tensor]


def taps(x: Tensor, k: int, causal: bool) -> list[Tensor]:
    """Return, for each position i of ``x`` ``[T, C]``, the k rows ``[k, C]`` that a kernel reads.

    In an encoder, tap j = 1 … k reads row ``i + j - ⌈(k+1)/2⌉``. In a decoder (``causal``), tap j
    reads row ``i + j - k``, so the last tap reads row i. Rows outside ``x`` are 0.
    """
    left = (k if causal else math.ceil((k + 1) / 2)) - 1
    padded = torch.cat([x.new_zeros(left, x.size(1)), x, x.new_zeros(k - 1 - left, x.size(1))])
    return [padded[i : i + k] for i in range(len(x))]


def attention(q: Tensor, k: Tensor, v: Tensor, heads: int, causal: bool = False) -> Tensor:
    """Attend from ``q`` ``[T, C]`` to ``k`` and ``v`` ``[S, C]``, equation (4); return ``[T, C]``.

    With ``causal``, position i attends only to positions up to i.
    """
    outputs = []
    for query, key, value in zip(*(x.chunk(heads, dim=-1) for x in (q, k, v)), strict=True):
        scores = query @ key.t() / math.sqrt(key.size(-1))  # Q K^T / √d_k: [T, S]
        if causal:
            later = torch.ones(scores.shape, dtype=torch.bool).triu(1)
            scores = scores.masked_fill(later, -math.inf)
        outputs.append(torch.softmax(scores, dim=-1) @ value)  # softmax(…) V   (4)
    return torch.cat(outputs, dim=-1)


def convolution(values: Tensor, logits: Tensor, causal: bool) -> Tensor:
    """Convolve the values ``[T, D]`` of one head, equation (6); return ``[T, D]``.

    The kernel at position i is the softmax of row i of ``logits`` ``[T, k]``.
    """
    kernels = torch.softmax(logits, dim=-1)
    read = taps(values, logits.size(-1), causal)
    return torch.stack([kernel @ rows for kernel, rows in zip(kernels, read, strict=True)])  # (6)


def gated_convolutions(
    values: Tensor,
    predictor: Tensor,
    gate: Tensor | None,
    heads: int,
    sizes: Sequence[int],
    causal: bool,
) -> Tensor:
    """Compute the gated sum of dynamic convolutions, equation (7), before ``W_out``.

    ``values`` and the result are ``[T, C]``. ``predictor`` is the matrix that predicts the kernels,
    with rows sorted by head, kernel and tap. ``sizes`` has the number of taps of each kernel.
    ``gate`` is ``α``, or None if there is a single kernel.
    """
    shares = [1.0] if gate is None else torch.exp(gate) / torch.exp(gate).sum()
    by_head = predictor.unflatten(0, (heads, -1))  # [H, Σ k, C]
    outputs = []
    for channels, rows in zip(values.chunk(heads, dim=-1), by_head, strict=True):
        kernels = zip(shares, rows.split(list(sizes)), strict=True)
        outputs.append(
            sum(share * convolution(channels, values @ row.t(), causal) for share, row in kernels)
        )  # Σ_i exp(α_i) / Σ_j exp(α_j) Conv_{k_i}   (7)
    return torch.cat(outputs, dim=-1)


def ordinary_convolution(x: Tensor, weight: Tensor, bias: Tensor, causal: bool) -> Tensor:
    """Convolve ``x`` ``[T, C]`` with a fixed kernel ``weight`` ``[C, C, k]``, and add a bias."""
    read = taps(x, weight.size(-1), causal)
    return torch.stack([bias + torch.einsum("oij,ji->o", weight, rows) for rows in read])


def block(
    p: Parameters,
    x: Tensor,
    heads: int,
    sizes: Sequence[int] = (),
    *,
    causal: bool = False,
    source: Tensor | None = None,
    normalize_before: bool = False,
) -> Tensor:
    """Compute a MUSE block, equations (1) and (2), for ``x`` ``[T, C]``; return ``[T, C]``.

    ``p`` has the block's parameters by name, ``sizes`` the kernel sizes of dynamic convolutions. A
    decoder's block is ``causal`` (it reads no later positions) and attends to ``source``
    ``[S, C']``, the encoder's C' channels. ``normalize_before`` is as in ``ParallelBlock``.
    """

    def linear(name: str, argument: Tensor) -> Tensor:
        return argument @ p[f"{name}.weight"].t() + p[f"{name}.bias"]

    def norm(argument: Tensor) -> Tensor:
        weights = p["layer_norm.weight"], p["layer_norm.bias"]
        return functional.layer_norm(argument, argument.shape[-1:], *weights)

    residual, x = x, norm(x) if normalize_before else x
    q, k, v, *convolution_values = linear("projections.in_proj", x).split(x.size(-1), dim=-1)  # (3)
    parts = [attention(q, k, v, heads, causal)]
    if "attention.convolution.predictor.weight" in p:  # V_1 = V_2: the projection is shared
        weights = p["attention.convolution.predictor.weight"], p.get("attention.convolution.gate")
        (values,) = convolution_values or [v]
        parts.append(gated_convolutions(values, *weights, heads, sizes, causal))
    y = residual + linear("projections.out_proj", torch.cat(parts, dim=-1))  # (3), (5)
    ordinary = "ordinary_convolution.convolution"
    if f"{ordinary}.weight" in p:
        weights = p[f"{ordinary}.weight"], p[f"{ordinary}.bias"]
        y = y + ordinary_convolution(x, *weights, causal)
    if source is not None:
        k, v = linear("cross_key_value", source).chunk(2, dim=-1)
        context = attention(linear("projections.cross_query", x), k, v, heads)
        y = y + linear("projections.cross_out", context)
    y = y + linear("projections.fc2", linear("projections.fc1", x).clamp(min=0))  # (8)
    return y if normalize_before else norm(y)
