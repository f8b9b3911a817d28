"""Dynamic and ordinary convolution over time (MUSE, section 2.2).

Letters: ``T`` time, ``B`` batch, ``C`` channels, ``H`` heads, ``D`` head dimension, ``K`` taps (the
weights of a kernel), ``N`` = B·H: all heads of the first sentence, then all heads of the second,
and so on. Activations are ``[T, B, C]``; inside this module N is the first dimension.

A convolution is linear in its kernel, and all convolutions of a block read the same values. So the
gated sum of the convolutions is a single convolution: its kernel is the gated sum of all kernels,
each padded to the width of the widest.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from fairseq_ext.utils.errors import ConfigError, wrong_value

# Positions up to which a product with a band matrix is fastest. For longer sentences, a loop over
# the taps is faster, but its gradient is slow if there are many taps.
LONGEST_BAND = 64
LONGEST_BAND_IN_TRAINING = 128
MANY_TAPS = 8

Past = dict[str, Tensor]
"""The tensors of the ``t`` earlier positions that decoding keeps, by name: ``[rows, t, …]``."""


def extend(past: Past, name: str, newest: Tensor) -> Tensor:
    """Append the newest position ``[rows, 1, …]`` to ``past[name]``; return the extended tensor.

    ``past`` keeps the earlier positions in incremental decoding. At the first position, it has no
    entry ``name``.
    """
    past[name] = torch.cat([past[name], newest], dim=1) if name in past else newest
    return past[name]


def taps_to_the_left(kernel_size: int, causal: bool) -> int:
    """Return how many taps of a kernel lie to the left of its position, by equation (6)."""
    return kernel_size - 1 if causal else kernel_size // 2


def band(weights: Tensor, left: int) -> Tensor:
    """Return kernels as a band matrix ``[N, T, T]``; its product with values is their convolution.

    ``weights`` ``[N, T, K]`` has a kernel for each position. Row t of the matrix has the taps of
    kernel t in columns t - left … t - left + K - 1, without the taps outside the sentence.
    """
    count, length, taps = weights.shape
    # Reading rows of length T + K as rows of length T + K - 1 shifts each by one column more.
    cells = F.pad(weights, (0, length)).flatten(1)  # [N, T (T + K)]
    rows = cells[:, : length * (length + taps - 1)].view(count, length, -1)
    return rows[..., left : left + length]


def convolve(values: Tensor, weights: Tensor, left: int) -> Tensor:
    """Convolve: ``out_t = Σ_j weights_tj values_{t - left + j}``, with zeros outside the sentence.

    Values and result are ``[N, T, D]``. The weights, a kernel for each position, are ``[N, T, K]``
    and of the same type. ``left`` is the number of taps to the left of a position.
    """
    if values.size(1) <= longest_band(weights.size(-1)):
        return torch.bmm(band(weights, left), values)
    return _TapLoop.apply(values, weights, left)


def longest_band(kernel_size: int) -> int:
    """Return the greatest sentence length for which :func:`convolve` uses a band matrix."""
    slow_loop = torch.is_grad_enabled() and kernel_size >= MANY_TAPS
    return LONGEST_BAND_IN_TRAINING if slow_loop else LONGEST_BAND


class _TapLoop(torch.autograd.Function):
    """The autograd function of :func:`convolve` for long sentences: K multiply-adds, no copies.

    Sums are kept at least in fp32, because in half precision each addition would round.
    """

    @staticmethod
    def forward(ctx: Any, values: Tensor, weights: Tensor, left: int) -> Tensor:
        ctx.save_for_backward(values, weights)
        ctx.left = left
        out = _zeros(values)  # [N, T, D]
        for weight, written, read in _shifts(weights, left):
            out[:, written].addcmul_(weight, values[:, read])  # [N, t, D], by [N, t, 1]
        return out.to(values.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        values, weights = ctx.saved_tensors  # [N, T, D], [N, T, K]
        grad_values, grad_weights = _zeros(values), torch.zeros_like(weights)
        grads = _shifts(grad_weights, ctx.left)
        for (weight, written, read), (of_weight, _, _) in zip(
            _shifts(weights, ctx.left), grads, strict=True
        ):
            grad_values[:, read].addcmul_(weight, grad[:, written])  # [N, t, D], by [N, t, 1]
            of_weight.copy_((grad[:, written] * values[:, read]).sum(-1, keepdim=True))
        return grad_values.to(values.dtype), grad_weights, None


def _zeros(x: Tensor) -> Tensor:
    return torch.zeros_like(x, dtype=torch.promote_types(x.dtype, torch.float32))


def _shifts(weights: Tensor, left: int) -> list[tuple[Tensor, slice, slice]]:
    """Return ``(weight, written, read)`` for each tap of the kernels ``weights`` ``[N, T, K]``.

    With these, ``out[:, written] += weight * values[:, read]`` computes what the tap adds to a
    convolution. ``weight`` ``[N, t, 1]`` is a view of ``weights``; ``written`` and ``read`` are
    slices of t positions. ``left`` is the number of taps to the left of a position. Taps that lie
    outside the sentence at every position are left out.
    """
    length, taps = weights.size(1), []
    for tap in range(weights.size(2)):
        offset = tap - left
        written = slice(max(0, -offset), min(length, length - offset))
        if written.start < written.stop:
            read = slice(written.start + offset, written.stop + offset)
            taps.append((weights[:, written, tap : tap + 1], written, read))
    return taps


class DynamicConvolution(nn.Module):
    """The gated sum of dynamic convolutions, equations (5) to (7), before ``W_out``.

    Each head convolves its own channels. ``v_t`` are the values of position t, and ``left_i`` is
    the number of taps that kernel i has to the left of t::

        w_i = softmax(W_i v_t)                    over all k_i taps, one kernel for each head
        Conv(v)_t = Σ_i softmax(α)_i Σ_j w_ij v_{t - left_i + j}

    The softmax is computed at least in fp32. Kernels are not renormalized at the borders, where
    some of their taps lie outside the sentence.

    Args:
        dim: number of channels.
        heads: number of heads, which are groups of neighbouring channels that share a kernel.
        kernel_sizes: ``k_1 … k_n``. If there are several, each has a gate value.
        causal: True (decoder) if no later position may be read; False (encoder) centres the taps.
        dropout: applied to the kernels after the softmax.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        kernel_sizes: tuple[int, ...],
        causal: bool,
        dropout: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.heads, self.kernel_sizes, self.causal = heads, tuple(kernel_sizes), causal
        self.left = taps_to_the_left(max(kernel_sizes), causal)
        self.predictor = nn.Linear(dim, heads * sum(kernel_sizes), bias=False)  # rows: head, i, tap
        count = len(kernel_sizes)
        self.gate = nn.Parameter(torch.full((count,), 1 / count)) if count > 1 else None  # α
        self.dropout = dropout or nn.Identity()

    def kernels(self, values: Tensor) -> Tensor:
        """Predict the gated sum of kernels at each position: ``[..., C]`` to ``[..., H, K]``."""
        # Taps come before positions, because that makes short softmaxes many times faster.
        logits = F.linear(self.predictor.weight, values.reshape(-1, values.size(-1)))
        logits = logits.view(self.heads, sum(self.kernel_sizes), -1)  # [H, Σk, positions]
        precise = torch.promote_types(logits.dtype, torch.float32)
        parts = [
            self.dropout(torch.softmax(part, dim=1, dtype=precise))
            for part in logits.split(self.kernel_sizes, dim=1)
        ]
        merged = parts[0] if self.gate is None else self._merge(parts)
        return merged.to(logits.dtype).permute(2, 0, 1).unflatten(0, values.shape[:-1])

    def _merge(self, parts: list[Tensor]) -> Tensor:
        """Add up kernels, weighted by the gate, into kernels ``[H, K, positions]``.

        ``parts`` has a tensor ``[H, k_i, positions]`` for each kernel size, which is padded to K
        taps. ``positions`` is the number of positions in the batch.
        """
        taps = max(self.kernel_sizes)
        merged: Any = 0
        for weights, share in zip(parts, self.gate_values(), strict=True):
            before = self.left - taps_to_the_left(weights.size(1), self.causal)
            after = taps - weights.size(1) - before
            merged = merged + F.pad(weights * share, (0, 0, before, after))
        return merged

    def gate_values(self) -> Tensor:
        """Return the share of each kernel (Figure 4): ``softmax(α)`` ``[n]``, at least in fp32."""
        if self.gate is None:
            return self.predictor.weight.new_ones(1)
        return torch.softmax(self.gate, 0, dtype=torch.promote_types(self.gate.dtype, torch.float))

    def forward(self, values: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        """Convolve values ``[T, B, C]``; return ``[T, B, C]``.

        Values count as 0 where ``padding_mask`` ``[B, T]`` is true (on pads).
        """
        length, batch, dim = values.shape
        weights = self.kernels(values).flatten(1, 2).transpose(0, 1)  # [N, T, K]
        if padding_mask is not None:
            values = values.masked_fill(padding_mask.t().unsqueeze(-1), 0.0)
        by_head = values.view(length, batch * self.heads, -1).transpose(0, 1)
        return convolve(by_head, weights, self.left).transpose(0, 1).reshape(length, batch, dim)


class OrdinaryConvolution(nn.Module):
    """The ordinary convolution of Table 3: from all channels to all channels, k taps, a bias.

    It reads the block's input instead of the attention's values. It mixes channels, so it needs no
    ``W_out``. If ``causal`` (decoder), it reads no later positions; else its taps are centred.
    """

    def __init__(self, dim: int, kernel_size: int, causal: bool) -> None:
        super().__init__()
        self.kernel_size, self.left = kernel_size, taps_to_the_left(kernel_size, causal)
        self.convolution = nn.Conv1d(dim, dim, kernel_size)
        nn.init.zeros_(self.convolution.get_parameter("bias"))

    def forward(
        self, x: Tensor, padding_mask: Tensor | None = None, past: Past | None = None
    ) -> Tensor:
        """Convolve ``x`` ``[T, B, C]``; return ``[T, B, C]``.

        Inputs count as 0 where ``padding_mask`` ``[B, T]`` is true (on pads). In incremental
        decoding, ``x`` ``[1, R, C]`` is the newest position of R rows, ``past`` the earlier inputs.
        """
        channels, left = x.permute(1, 2, 0), self.left  # [B, C, T]
        if padding_mask is not None:
            channels = channels.masked_fill(padding_mask.unsqueeze(1), 0.0)
        if past is not None:
            past["inputs"] = extend(past, "inputs", x.transpose(0, 1))[:, -self.kernel_size :]
            channels = past["inputs"].transpose(1, 2)
            left = self.kernel_size - channels.size(2)
        padded = F.pad(channels, (left, self.kernel_size - 1 - self.left))
        return self.convolution(padded).permute(2, 0, 1)


def kernels_of_layers(text: str, layers: int, *, ordinary: bool = False) -> list[tuple[int, ...]]:
    """Parse ``--muse-kernels`` into the kernel sizes of each layer, lowest layer first.

    ``text`` is ``none``, sizes for all layers, such as ``3,15``, or sizes for groups of layers,
    such as ``3/7/15/31``. The groups divide the ``layers`` as evenly as possible. With
    ``ordinary``, a layer must have a single size. A layer without convolution gets ``()``. Raise
    ConfigError if ``text`` breaks these rules, or has more groups than layers.
    """
    if text == "none":
        return [()] * layers
    try:
        groups = [tuple(int(size) for size in group.split(",")) for group in text.split("/")]
    except ValueError:
        groups = [(0,)]
    if min(min(group) for group in groups) < 1:
        raise wrong_value("--muse-kernels", "`none`, or sizes like 3,15 or 3/7/15/31", text)
    if ordinary and any(len(group) > 1 for group in groups):
        raise ConfigError(
            "`--muse-kernels` must have one size for each layer with `--muse-convolution "
            f"ordinary`, but is `{text}` instead."
        )
    if len(groups) > layers:
        raise ConfigError(
            f"`--muse-kernels` must have at most one group for each of {layers} layers, but has "
            f"{len(groups)} groups (`{text}`) instead."
        )
    return [groups[layer * len(groups) // layers] for layer in range(layers)]
