"""The additive-attention recurrence over all target words, as one fast function (torch only).

Letters as in :mod:`fairseq_ext.gru.attention`, and ``T`` target length; time comes first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fairseq_ext.gru.attention import masked_softmax


def gru_update(input_gates: Tensor, hidden_gates: Tensor, state: Tensor) -> Tensor:
    """One GRU step from its two halves, ``W x + b`` and ``U s + b'`` (gates r, z, n; each 3H wide).

    ``r = σ(W_r x + U_r s)``, ``z = σ(W_z x + U_z s)``, ``n = tanh(W_n x + r ⊙ (U_n s))``,
    ``s' = (1 - z) ⊙ n + z ⊙ s``. This is torch's cell, which the paper's parameter count implies:
    against Chung et al. (2014) as printed in section 3.1, ``z`` changes roles with ``1 - z`` and
    the reset gate stands outside ``U_n``.
    """
    i_r, i_z, i_n = input_gates.chunk(3, -1)
    h_r, h_z, h_n = hidden_gates.chunk(3, -1)
    reset = torch.sigmoid(i_r + h_r)
    update = torch.sigmoid(i_z + h_z)
    candidate = torch.tanh(i_n + reset * h_n)
    return torch.lerp(candidate, state, update)


def additive_recurrence(
    input_gates: Tensor,
    state: Tensor,
    keys: Tensor,
    annotations: Tensor,
    padding_mask: Tensor | None,
    query_weight: Tensor,
    score_weight: Tensor,
    score_bias: Tensor,
    context_weight: Tensor,
    hidden_weight: Tensor,
    hidden_bias: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """The whole teacher-forced recurrence with additive attention, Bahdanau order.

    For t = 1 … T, with ``s = s_{t-1}``::

        e_j = v^T tanh(W_s s + keys_j) + b_v        α = softmax(e)        c_t = Σ_j α_j h_j
        s_t = GRU(input_gates_t + W_c c_t, U s + b', s)

    Equal to a loop over :func:`gru_update` under autograd, forward and backward, but the backward
    pass is written out: each weight's gradient is one product over all time steps instead of
    T products that are added up, and the tanh layer is computed again instead of kept, so that
    memory grows with T + S instead of T · S · A.

    Args:
        input_gates: ``[T, B, 3H]``, ``W_y E y_{t-1} + b`` for every step.
        state: ``[B, H]``, ``s_0``.
        keys: ``[B, S, A]``, ``W_h h_j + b``.
        annotations: ``[B, S, C]``, ``h_j``.
        padding_mask: ``[B, S]``, true on pads, or None.
        query_weight, score_weight, score_bias: ``W_s [A, H]``, ``v [1, A]``, ``b_v [1]``.
        context_weight, hidden_weight, hidden_bias: ``W_c [3H, C]``, ``U [3H, H]``, ``b' [3H]``.

    Returns:
        states ``[T, B, H]``, contexts ``[T, B, C]`` and, without gradient, weights ``[T, B, S]``.
    """
    tensors = [input_gates, state, keys, annotations, query_weight, score_weight, score_bias]
    tensors += [context_weight, hidden_weight, hidden_bias]
    device = input_gates.device.type
    if torch.is_autocast_enabled(device):
        half = torch.get_autocast_dtype(device)
        tensors = [tensor.to(half) for tensor in tensors]
    with torch.autocast(device, enabled=False):
        return _AdditiveRecurrence.apply(padding_mask, *tensors)


def _tanh_of_sum(
    keys: Tensor, query_weight: Tensor, state: Tensor
) -> Callable[[Tensor, Tensor], None]:
    """A function that writes ``tanh(keys + query)`` of a query ``[B, A]`` to ``[B, S, A]``.

    On a CPU a tanh costs ten times a product, so it is taken apart:
    ``tanh(k + q) = 1 - 2 / (e^{2k} e^{2q} + 1)``, exponentials of the keys once per sentence. Only
    where no exponential can leave the range of fp32: a GRU's state stays within
    ``max(1, |s_0|)``, which bounds every query.
    """
    if keys.device.type == "cpu" and keys.dtype in (torch.float32, torch.float64):
        largest_state = state.abs().max().clamp(min=1.0)
        bound = keys.abs().max() + query_weight.abs().sum(-1).max() * largest_state
        if bound < 40:
            one, exponentials = keys.new_ones(1), (2 * keys).exp_()

            def taken_apart(query: Tensor, out: Tensor) -> None:
                torch.addcmul(one, exponentials, (2 * query).exp_().unsqueeze(1), out=out)
                torch.add(one, out.reciprocal_(), alpha=-2, out=out)

            return taken_apart

    def plain(query: Tensor, out: Tensor) -> None:
        torch.add(keys, query.unsqueeze(1), out=out).tanh_()

    return plain


class _AdditiveRecurrence(torch.autograd.Function):
    """:func:`additive_recurrence`, with ``u_t = tanh(W_s s + keys)`` as its hidden layer."""

    @staticmethod
    def forward(
        ctx: Any,
        padding_mask: Tensor | None,
        input_gates: Tensor,
        state: Tensor,
        keys: Tensor,
        annotations: Tensor,
        *weights: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        query_weight, score_weight, score_bias, context_weight, hidden_weight, hidden_bias = weights
        (length, batch, _), hidden = input_gates.shape, state.size(-1)
        attention, source = keys.size(-1), keys.size(1)
        both = torch.cat([query_weight, hidden_weight])  # [A + 3H, H]: one product per step
        both_bias = torch.cat([hidden_bias.new_zeros(attention), hidden_bias])
        score = score_weight.view(-1)
        new = input_gates.new_empty
        states = new(length + 1, batch, hidden)
        states[0] = state
        contexts = new(length, batch, annotations.size(-1))
        weights_out = new(length, batch, source)
        gates = new(3, length, batch, hidden)  # r, z, n
        hidden_n = new(length, batch, hidden)  # U_n s + b'_n
        queries = new(length, batch, attention)  # W_s s
        layer = new(batch, source, attention)  # u
        fill_layer = _tanh_of_sum(keys, query_weight, state)

        for t in range(length):
            state = states[t]
            projected = torch.addmm(both_bias, state, both.t())  # [B, A + 3H]
            query, hidden_gates = projected.split([attention, 3 * hidden], dim=-1)
            queries[t] = query
            fill_layer(query, layer)
            energies = torch.mv(layer.view(-1, attention), score).view(batch, source)
            alpha = masked_softmax(energies + score_bias, padding_mask)
            weights_out[t] = alpha
            context = torch.bmm(alpha.unsqueeze(1), annotations).squeeze(1)
            contexts[t] = context
            i_gates = torch.addmm(input_gates[t], context, context_weight.t())
            reset, update, candidate = gates[0, t], gates[1, t], gates[2, t]
            torch.add(i_gates[:, :hidden], hidden_gates[:, :hidden], out=reset).sigmoid_()
            middle = slice(hidden, 2 * hidden)
            torch.add(i_gates[:, middle], hidden_gates[:, middle], out=update).sigmoid_()
            hidden_n[t] = hidden_gates[:, 2 * hidden :]
            torch.addcmul(i_gates[:, 2 * hidden :], reset, hidden_n[t], out=candidate).tanh_()
            torch.lerp(candidate, state, update, out=states[t + 1])

        ctx.save_for_backward(
            states, contexts, weights_out, gates, hidden_n, queries, keys, annotations, *weights
        )
        ctx.mark_non_differentiable(weights_out)
        return states[1:], contexts, weights_out

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_states: Tensor, grad_contexts: Tensor, _: Tensor
    ) -> tuple[Tensor | None, ...]:
        states, contexts, alphas, gates, hidden_n, queries, *inputs = ctx.saved_tensors
        keys, annotations, query_weight, score_weight, score_bias, *weights = inputs
        context_weight, hidden_weight, _ = weights
        (batch, source, attention), (length, _, hidden) = keys.shape, hidden_n.shape
        both = torch.cat([query_weight, hidden_weight])
        score = score_weight.view(-1)
        by_context = annotations.transpose(1, 2)
        new = states.new_empty
        grad_input = new(length, batch, 3 * hidden)
        grad_both = new(length, batch, attention + 3 * hidden)  # of W_s s and of U s + b'
        grad_context = new(length, batch, contexts.size(-1))
        grad_energy = new(length, batch, source)
        grad_score = torch.zeros_like(score)
        layer, squares = new(batch, source, attention), new(batch, source, attention)
        fill_layer = _tanh_of_sum(keys, query_weight, states[0])
        squares_sum = states.new_zeros(batch, source, attention)  # Σ_t de_t u_t²
        grad_state = states.new_zeros(batch, hidden)

        for t in reversed(range(length)):
            reset, update, candidate = gates[:, t]
            grad_state = grad_state + grad_states[t]
            grad_n = grad_state * (1 - update) * (1 - candidate * candidate)
            grad_z = grad_state * (states[t] - candidate) * update * (1 - update)
            grad_r = grad_n * hidden_n[t] * reset * (1 - reset)
            torch.cat([grad_r, grad_z, grad_n], dim=-1, out=grad_input[t])
            torch.addmm(grad_contexts[t], grad_input[t], context_weight, out=grad_context[t])
            # A row times a matrix is ten times as fast as a matrix times a column in batches.
            grad_alpha = torch.bmm(grad_context[t].unsqueeze(1), by_context).squeeze(1)
            inner = (alphas[t] * grad_alpha).sum(-1, keepdim=True)
            energy = torch.mul(alphas[t], grad_alpha - inner, out=grad_energy[t])  # [B, S]
            # du = de v (1 - u²); what the query gets is its sum over j, what a key gets over t.
            fill_layer(queries[t], layer)
            grad_score.addmv_(layer.view(-1, attention).t(), energy.view(-1))
            torch.mul(layer, layer, out=squares)
            squares_sum.addcmul_(squares, energy.unsqueeze(-1))
            squares_of_j = torch.bmm(energy.unsqueeze(1), squares).squeeze(1)
            grad_query = (energy.sum(-1, keepdim=True) - squares_of_j).mul_(score)
            torch.cat([grad_query, grad_r, grad_z, grad_n * reset], dim=-1, out=grad_both[t])
            grad_state = torch.addmm(grad_state * update, grad_both[t], both)

        flat_both = grad_both.view(length * batch, -1)
        grad_weight = flat_both.t() @ states[:-1].reshape(length * batch, hidden)
        flat_input = grad_input.view(length * batch, -1)
        grad_keys = (grad_energy.sum(0).unsqueeze(-1) - squares_sum).mul_(score)
        grad_annotations = torch.bmm(alphas.permute(1, 2, 0), grad_context.transpose(0, 1))
        return (
            None,
            grad_input,
            grad_state,
            grad_keys,
            grad_annotations,
            grad_weight[:attention],
            grad_score.view_as(score_weight),
            grad_energy.sum().view_as(score_bias),
            flat_input.t() @ contexts.view(length * batch, -1),
            grad_weight[attention:],
            flat_both[:, attention:].sum(0),
        )
