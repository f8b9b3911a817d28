"""Compute the output layer and its cross-entropy together, a chunk of words at a time.

fairseq computes logits, log-probabilities and the gradients of both for all words at once. Each of
these is a matrix of words times vocabulary. This module makes the forward and the backward pass for
one chunk of words at a time, so that no such matrix is larger than the logits of a chunk.

Shapes: ``N`` words, ``R`` words of a chunk, ``C`` features, ``V`` words in the vocabulary.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

CHUNK = 2**22  # logits in a chunk of several words: 16 MiB in fp32, enough for fast products
BLOCK = 2**18  # logits of which the loss is computed at a time: they fit into a core's own cache


class OutputLayer(NamedTuple):
    """The output layer of a model, with its input: the logits are ``h W^T + b``."""

    features: Tensor  # h, [..., C]
    weight: Tensor  # W, [V, C]
    bias: Tensor | None = None  # b, [V]

    def of_words(self, words: Tensor | slice) -> "OutputLayer":
        """Return this layer with the features of some words only, ``[N, C]``.

        All axes of the features before C count as one axis of words, which ``words`` indexes.
        """
        return self._replace(features=self.features.flatten(0, -2)[words])

    def logits(self) -> Tensor:
        """Compute the logits ``[..., V]`` in fp32, or in fp64 if the features are in fp64."""
        z = F.linear(self.features, self.weight, self.bias)
        return z.to(torch.promote_types(z.dtype, torch.float32))


ChunkLoss = Callable[[Tensor, slice, bool], Tensor]
"""A function of logits ``z``, ``[R, V]``, the slice of their words among all words, and whether a
gradient is needed. The function returns the sums of loss and negative log-likelihood, ``[2]``. It
overwrites ``z``, with ``∂L/∂z`` if a gradient is needed."""


def smoothed_nll(
    output: OutputLayer, target: Tensor, epsilon: float = 0.0, padding_idx: int | None = None
) -> tuple[Tensor, Tensor]:
    """Compute label-smoothed cross-entropy, summed over words, as fairseq defines it.

    For one word with logits ``z``, ``p = softmax(z)`` and target ``t``:

        L = (1 - ε - ε') · (-log p_t) + ε' · Σ_v (-log p_v),    ε' = ε / (V - 1)

    In the gradient, ``p`` has the factor ``(1 - ε - ε') + V ε' = 1``, so that

        ∂L/∂z = p - (1 - ε - ε') · onehot(t) - ε'

    Args:
        output: the features of the words ``[..., C]``, and the matrix that yields their logits.
        target: the indices of the correct words in the vocabulary, ``[...]``.
        epsilon: ε, the probability taken from the target and divided among all other words.
        padding_idx: words with this target do not count.

    Returns:
        Two scalars in nats: the loss, and the negative log-likelihood of the targets. The second
        has no gradient. Both are in fp32, or in fp64 if the features are.
    """
    words, target = _counted(target, padding_idx)

    def chunk_loss(z: Tensor, place: slice, backward: bool) -> Tensor:
        t = target[place].unsqueeze(1)
        smoothing = epsilon / (z.size(1) - 1)  # ε'
        z_target, z_sum = z.gather(1, t), z.sum(dim=1, keepdim=True) if epsilon else 0
        p, normalizer = _softmax_(z)
        nll = normalizer - z_target  # -log p_t
        smooth = p.size(1) * normalizer - z_sum  # Σ_v -log p_v
        loss = (1 - epsilon - smoothing) * nll + smoothing * smooth
        if backward:
            p.scatter_add_(1, t, torch.full_like(nll, epsilon + smoothing - 1))
            if epsilon:
                p.sub_(smoothing)
        return torch.stack((loss.sum(), nll.sum()))

    return _summed(output.of_words(words), chunk_loss)


def distilled_nll(
    output: OutputLayer,
    teacher: OutputLayer,
    target: Tensor,
    temperature: float = 1.0,
    teacher_weight: float = 1.0,
    padding_idx: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute the loss of word-level distillation, summed over words.

    For each word, this is a weighted mean of two cross-entropies of the student: one with the
    teacher's probabilities, one with the target. Letters: logits ``z`` of the student and ``y`` of
    the teacher, weight ``w`` of the teacher, ``p = softmax(y/τ)`` and ``q = softmax(z/τ)``:

        L = w · (-τ² Σ_v p_v log q_v) + (1 - w) · (-log softmax(z)_t)
        ∂L/∂z = w τ (q - p) + (1 - w) (softmax(z) - onehot(t))

    ``output`` is the output layer of the student, ``teacher`` that of the teacher, which gets no
    gradient. ``temperature`` is τ, ``teacher_weight`` is w. The other arguments and the two results
    are those of :func:`smoothed_nll`.
    """
    words, target = _counted(target, padding_idx)
    teacher = teacher.of_words(words)

    def chunk_loss(z: Tensor, place: slice, backward: bool) -> Tensor:
        t = target[place].unsqueeze(1)
        p = torch.softmax(teacher.of_words(place).logits().to(z) / temperature, dim=1)
        scaled = z / temperature
        fit = (p * scaled).sum(dim=1, keepdim=True)  # Σ_v p_v z_v / τ
        q, of_scaled = _softmax_(scaled)
        z_target = z.gather(1, t)
        softmax, normalizer = _softmax_(z)
        nll = normalizer - z_target
        distilled = temperature**2 * (of_scaled - fit)  # Σ_v p_v = 1
        loss = torch.lerp(nll, distilled, teacher_weight)
        if backward:
            softmax.scatter_add_(1, t, torch.full_like(nll, -1))
            softmax.mul_(1 - teacher_weight).add_(q.sub_(p), alpha=teacher_weight * temperature)
        return torch.stack((loss.sum(), nll.sum()))

    return _summed(output.of_words(words), chunk_loss)


def _counted(target: Tensor, padding_idx: int | None) -> tuple[Tensor | slice, Tensor]:
    """Return the words that are not pads, and their targets ``[N]``.

    The words are returned as their indices ``[N]``. If none is a pad, they are a slice of all.
    """
    target = target.reshape(-1)
    if padding_idx is None or (counted := target.ne(padding_idx)).all():
        return slice(None), target
    words = counted.nonzero().squeeze(1)
    return words, target[words]


def _blocks(z: Tensor) -> Sequence[slice]:
    rows = max(1, BLOCK // z.size(1)) if z.device.type == "cpu" else len(z)
    return [slice(i, min(i + rows, len(z))) for i in range(0, len(z), rows)]


def _summed(output: OutputLayer, chunk_loss: ChunkLoss) -> tuple[Tensor, Tensor]:
    features, weight, bias = output
    rows = max(1, CHUNK // weight.size(0))
    places = [slice(i, i + rows) for i in range(0, max(1, len(features)), rows)]
    if not torch.is_grad_enabled():  # `requires_grad` would still ask for gradients
        features, weight = features.detach(), weight.detach()
        bias = None if bias is None else bias.detach()
    return _Summed.apply(features, weight, bias, chunk_loss, places)


class _Summed(torch.autograd.Function):
    """The sum of a :data:`ChunkLoss` over all chunks; the forward pass computes the gradients, too.

    The ChunkLoss computes ``∂L/∂z`` for a chunk with features ``h`` and logits ``z``. Gradients:

    - features: ``∂L/∂z W``;
    - W: the sum of ``(∂L/∂z)^T h`` over chunks;
    - b: the sum of ``∂L/∂z`` over words.
    """

    @staticmethod
    def forward(
        ctx: Any,
        features: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        chunk_loss: ChunkLoss,
        places: Sequence[slice],
    ) -> tuple[Tensor, Tensor]:
        output = OutputLayer(features, weight, bias)
        precise = torch.promote_types(features.dtype, torch.float32)
        sums = features.new_zeros(2, dtype=precise)
        needed = ctx.needs_input_grad
        of_features = torch.empty_like(features) if needed[0] else None  # [N, C]
        of_weight: Tensor | None = None  # [V, C]
        of_bias = None  # [V]
        if bias is not None and needed[2]:
            of_bias = torch.zeros_like(bias, dtype=precise)
        for place in places:
            h, z = features[place], output.of_words(place).logits()  # [R, C], [R, V]
            for block in _blocks(z):
                words = slice(place.start + block.start, place.start + block.stop)
                sums += chunk_loss(z[block], words, any(needed))
            rounded = z.to(weight.dtype) if any(needed) else z  # ∂L/∂z
            if of_features is not None:
                of_features[place] = rounded @ weight
            if needed[1]:
                of_weight = _add_product(of_weight, rounded.t(), h, precise)
            if of_bias is not None:
                of_bias += z.sum(dim=0)
        if of_weight is not None:
            of_weight = of_weight.to(weight.dtype)
        if of_bias is not None:
            of_bias = of_bias.to(weight.dtype)
        ctx.save_for_backward(of_features, of_weight, of_bias)
        loss, nll = sums[0].clone(), sums[1].clone()
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        gradients = ctx.saved_tensors
        if grad.device.type != "cpu" or grad != 1:  # usually 1: the graph ends here
            gradients = [g if g is None else g * grad.to(g) for g in gradients]
        return *gradients, None, None


def _add_product(total: Tensor | None, a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """Return ``total + A B``, computed in place in ``total``; if ``total`` is None, ``A B``.

    ``dtype`` is the type of ``total`` and of the result.
    """
    if total is None:
        return (a @ b).to(dtype)
    if dtype == b.dtype:
        return total.addmm_(a, b)
    total += a @ b  # sums of half-precision products are kept in fp32
    return total


def _softmax_(z: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``softmax(z)`` ``[R, V]``, which overwrites ``z``, and ``log Σ e^z`` ``[R, 1]``."""
    highest = z.amax(dim=1, keepdim=True)
    p = torch.softmax(z, dim=1, out=z)
    return p, highest - p.amax(dim=1, keepdim=True).log()  # the largest p is at least 1/V
