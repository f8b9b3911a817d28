"""Recurrences over all time steps as single functions, their backward passes written out.

Torch only. Letters as in :mod:`fairseq_ext.gru.attention`, ``T`` steps and ``D`` independent
GRUs; time comes first. Under autograd a loop of GRU steps adds up T small gradients for each
weight; here each weight's gradient is one product over all steps.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fairseq_ext.gru.attention import exponentials, masked_softmax, tanh_of_sum


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


def gru_recurrence(input_gates: Tensor, state: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """D independent GRUs over T steps: :func:`gru_update` in a loop, and its gradient.

    A step whose update gate is open (``i_z = ∞``) leaves the state as it is, which is how a pad
    is passed over.

    Args:
        input_gates: ``[T, D, B, 3H]``, ``W x_t + b`` for every step.
        state: ``[D, B, H]``, before the first step.
        weight, bias: ``U [D, 3H, H]``, ``b' [D, 3H]``.

    Returns:
        states ``[T, D, B, H]``.
    """
    return _apply(_GRURecurrence, None, input_gates, state, weight, bias)


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

    The tanh layer is computed again in the backward pass instead of kept, so that memory grows
    with T + S instead of T · S · A.

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
    tensors = (input_gates, state, keys, annotations, query_weight, score_weight, score_bias)
    weights = (context_weight, hidden_weight, hidden_bias)
    return _apply(_AdditiveRecurrence, padding_mask, *tensors, *weights)


def _apply(function: type[torch.autograd.Function], *inputs: Tensor | None) -> Any:
    """Apply a function in one precision: autocast's, where that is on."""
    device = next(tensor for tensor in inputs if tensor is not None).device.type
    if not torch.is_autocast_enabled(device):
        return function.apply(*inputs)
    half = torch.get_autocast_dtype(device)
    cast = [t.to(half) if t is not None and t.is_floating_point() else t for t in inputs]
    with torch.autocast(device, enabled=False):
        return function.apply(*cast)


def _update_into(
    input_gates: Tensor, hidden_gates: Tensor, state: Tensor, kept: Tensor, out: Tensor
) -> None:
    """:func:`gru_update` into ``out``; r, z, n, ``U_n s + b'_n`` into ``kept`` ``[4, ..., H]``."""
    i_r, i_z, i_n = input_gates.chunk(3, -1)
    h_r, h_z, h_n = hidden_gates.chunk(3, -1)
    reset, update, candidate, kept_h_n = kept
    torch.add(i_r, h_r, out=reset).sigmoid_()
    torch.add(i_z, h_z, out=update).sigmoid_()
    torch.addcmul(i_n, reset, h_n, out=candidate).tanh_()
    kept_h_n.copy_(h_n)
    torch.lerp(candidate, state, update, out=out)


def _update_gradients(
    grad: Tensor, state: Tensor, kept: Tensor, grad_input: Tensor, grad_hidden: Tensor
) -> None:
    """Gradients of both halves of the gates, from that of the new state ``[..., H]``."""
    reset, update, candidate, h_n = kept
    grad_n = grad * (1 - update) * (1 - candidate * candidate)
    grad_z = grad * (state - candidate) * update * (1 - update)
    grad_r = grad_n * h_n * reset * (1 - reset)
    torch.cat([grad_r, grad_z, grad_n], dim=-1, out=grad_input)
    torch.cat([grad_r, grad_z, grad_n * reset], dim=-1, out=grad_hidden)


class _GRURecurrence(torch.autograd.Function):
    """:func:`gru_recurrence`."""

    @staticmethod
    def forward(
        ctx: Any, _: None, input_gates: Tensor, state: Tensor, weight: Tensor, bias: Tensor
    ) -> Tensor:
        length, (count, batch, hidden) = input_gates.size(0), state.shape
        states = state.new_empty(count, length + 1, batch, hidden)
        states[:, 0] = state
        kept = state.new_empty(length, 4, count, batch, hidden)
        transposed, row = weight.transpose(1, 2), bias.unsqueeze(1)
        for t in range(length):
            hidden_gates = torch.baddbmm(row, states[:, t], transposed)  # [D, B, 3H]
            _update_into(input_gates[t], hidden_gates, states[:, t], kept[t], states[:, t + 1])
        ctx.save_for_backward(states, kept, weight)
        return states[:, 1:].transpose(0, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_states: Tensor) -> tuple[Tensor | None, ...]:
        states, kept, weight = ctx.saved_tensors
        length, count, batch, hidden = grad_states.shape
        grad_input = states.new_empty(length, count, batch, 3 * hidden)
        grad_hidden = states.new_empty(count, length, batch, 3 * hidden)
        grad_state = states.new_zeros(count, batch, hidden)
        for t in reversed(range(length)):
            grad_state = grad_state + grad_states[t]
            _update_gradients(grad_state, states[:, t], kept[t], grad_input[t], grad_hidden[:, t])
            grad_state = torch.baddbmm(grad_state * kept[t, 1], grad_hidden[:, t], weight)
        flat = grad_hidden.flatten(1, 2)  # [D, T·B, 3H]
        grad_weight = torch.bmm(flat.transpose(1, 2), states[:, :-1].flatten(1, 2))
        return None, grad_input, grad_state, grad_weight, flat.sum(1)


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
        source, attention = keys.shape[1:]
        both = torch.cat([query_weight, hidden_weight])  # [A + 3H, H]: one product per step
        both_bias = torch.cat([hidden_bias.new_zeros(attention), hidden_bias])
        score, keys_exponentials = score_weight.view(-1), exponentials(keys)
        new = input_gates.new_empty
        states = new(length + 1, batch, hidden)
        states[0] = state
        contexts = new(length, batch, annotations.size(-1))
        alphas = new(length, batch, source)
        kept = new(length, 4, batch, hidden)
        queries = new(length, batch, attention)  # W_s s
        layer = new(batch, 1, source, attention)  # u

        for t in range(length):
            projected = torch.addmm(both_bias, states[t], both.t())  # [B, A + 3H]
            query, hidden_gates = projected.split([attention, 3 * hidden], dim=-1)
            queries[t] = query
            tanh_of_sum(
                keys.unsqueeze(1),
                None if keys_exponentials is None else keys_exponentials.unsqueeze(1),
                query[:, None, None],
                out=layer,
            )
            energies = torch.mv(layer.view(-1, attention), score).view(batch, source)
            alphas[t] = masked_softmax(energies + score_bias, padding_mask)
            contexts[t] = torch.bmm(alphas[t].unsqueeze(1), annotations).squeeze(1)
            gates = torch.addmm(input_gates[t], contexts[t], context_weight.t())
            _update_into(gates, hidden_gates, states[t], kept[t], states[t + 1])

        ctx.save_for_backward(states, contexts, alphas, kept, queries, keys, annotations, *weights)
        ctx.mark_non_differentiable(alphas)
        return states[1:], contexts, alphas

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_states: Tensor, grad_contexts: Tensor, _: Tensor
    ) -> tuple[Tensor | None, ...]:
        states, contexts, alphas, kept, queries, keys, annotations, *weights = ctx.saved_tensors
        query_weight, score_weight, score_bias, context_weight, hidden_weight, _ = weights
        (length, batch, attention), (source, hidden) = (
            queries.shape,
            (keys.size(1), states.size(-1)),
        )
        both = torch.cat([query_weight, hidden_weight])
        score, keys_exponentials = score_weight.view(-1), exponentials(keys)
        by_context = annotations.transpose(1, 2)
        new = states.new_empty
        grad_input = new(length, batch, 3 * hidden)
        grad_both = new(length, batch, attention + 3 * hidden)  # of W_s s and of U s + b'
        grad_context = new(length, batch, contexts.size(-1))
        grad_energy = new(length, batch, source)
        layer, squares = new(batch, 1, source, attention), new(batch, source, attention)
        grad_score = torch.zeros_like(score)
        squares_sum = states.new_zeros(batch, source, attention)  # Σ_t de_t u_t²
        grad_state = states.new_zeros(batch, hidden)

        for t in reversed(range(length)):
            grad_query, grad_hidden = grad_both[t].split([attention, 3 * hidden], dim=-1)
            grad_state = grad_state + grad_states[t]
            _update_gradients(grad_state, states[t], kept[t], grad_input[t], grad_hidden)
            torch.addmm(grad_contexts[t], grad_input[t], context_weight, out=grad_context[t])
            # A row times a matrix is ten times as fast as a matrix times a column in batches.
            grad_alpha = torch.bmm(grad_context[t].unsqueeze(1), by_context).squeeze(1)
            inner = (alphas[t] * grad_alpha).sum(-1, keepdim=True)
            energy = torch.mul(alphas[t], grad_alpha - inner, out=grad_energy[t])  # [B, S]
            tanh_of_sum(
                keys.unsqueeze(1),
                None if keys_exponentials is None else keys_exponentials.unsqueeze(1),
                queries[t][:, None, None],
                out=layer,
            )
            grad_score.addmv_(layer.view(-1, attention).t(), energy.view(-1))
            # du = de v (1 - u²); what the query gets is its sum over j, what a key gets over t.
            torch.mul(layer.squeeze(1), layer.squeeze(1), out=squares)
            squares_sum.addcmul_(squares, energy.unsqueeze(-1))
            squares_of_j = torch.bmm(energy.unsqueeze(1), squares).squeeze(1)
            torch.mul(energy.sum(-1, keepdim=True) - squares_of_j, score, out=grad_query)
            grad_state = torch.addmm(grad_state * kept[t, 1], grad_both[t], both)

        flat_both = grad_both.view(length * batch, -1)
        flat_input = grad_input.view(length * batch, -1)
        grad_weight = flat_both.t() @ states[:-1].reshape(length * batch, hidden)
        return (
            None,
            grad_input,
            grad_state,
            (grad_energy.sum(0).unsqueeze(-1) - squares_sum).mul_(score),
            torch.bmm(alphas.permute(1, 2, 0), grad_context.transpose(0, 1)),
            grad_weight[:attention],
            grad_score.view_as(score_weight),
            grad_energy.sum().view_as(score_bias),
            flat_input.t() @ contexts.view(length * batch, -1),
            grad_weight[attention:],
            flat_both[:, attention:].sum(0),
        )
