"""Fast recurrences: the encoder's by torch's GRU, the decoder's with a hand-written gradient.

With autograd, a loop of GRU steps adds up T small gradients for each weight. Here a single product
over all steps gives the gradient of each of the decoder's weights, which is faster.

Letters: ``T`` steps, ``B`` sentences, ``S`` source words; sizes ``E`` of an embedding, ``H`` of a
state, ``C`` of an annotation, ``A`` of the hidden layer of additive attention.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from fairseq_ext.base.padding import gather_columns, real_first
from fairseq_ext.gru.attention import exponentials, tanh_of_sum


def gru_update(input_gates: Tensor, hidden_gates: Tensor, state: Tensor) -> Tensor:
    """Compute a GRU's next state ``s'`` ``[..., H]`` from its ``state`` ``s`` and an input ``x``.

    ``r = σ(W_r x + U_r s)``, ``z = σ(W_z x + U_z s)``, ``n = tanh(W_n x + r ⊙ (U_n s))``,
    ``s' = (1 - z) ⊙ n + z ⊙ s``. ``input_gates`` are ``W x + b`` and ``hidden_gates`` are
    ``U s + b'``, both ``[..., 3H]`` with r, z, n side by side.

    These equations of torch's GRU fit the paper's number of parameters. The paper's section 3.1 has
    the GRU of Chung et al. (2014): ``z`` and ``1 - z`` are swapped, and ``r`` is applied before
    ``U_n``.
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
    gate_table: Tensor,
    padding_mask: Tensor,
    query_weight: Tensor,
    score_weight: Tensor,
    score_bias: Tensor,
    hidden_weight: Tensor,
    hidden_bias: Tensor,
) -> tuple[Tensor, Tensor]:
    """Run all steps of a decoder with additive attention, in Bahdanau's order.

    For t = 1 … T, with ``s = s_{t-1}``::

        e_j = v^T tanh(W_s s + keys_j) + b_v        α_t = softmax(e)
        s_t = GRU(input_gates_t + W_c c_t, U s + b', s)

    where ``W_c c_t = Σ_j α_tj (W_c h_j)`` is a weighted sum of rows of ``gate_table``. The caller
    computes this table by a single product for all steps. The backward pass recomputes the tanh
    layer, because keeping it would take memory for B · T · S · A numbers.

    Args:
        input_gates: ``[T, B, 3H]``, ``W_y E y_{t-1} + b`` for every step.
        state: ``[B, H]``, ``s_0``.
        keys: ``[B, S, A]``, ``W_h h_j + b``.
        gate_table: ``[B, S, 3H]``, ``W_c h_j``.
        padding_mask: ``[B, S]``, true on pads.
        query_weight, score_weight, score_bias: ``W_s [A, H]``, ``v [1, A]``, ``b_v [1]``.
        hidden_weight, hidden_bias: ``U [3H, H]``, ``b' [3H]``.

    Returns:
        states ``[T, B, H]`` and attention weights ``[T, B, S]``.
    """
    tensors = [input_gates, state, keys, gate_table, query_weight, score_weight, score_bias]
    tensors += [hidden_weight, hidden_bias]
    device = state.device.type
    if torch.is_autocast_enabled(device):
        tensors = [tensor.to(torch.get_autocast_dtype(device)) for tensor in tensors]
    with torch.autocast(device, enabled=False):
        states, alphas = _AdditiveRecurrence.apply(padding_mask, *tensors)
    return states, alphas.masked_fill(padding_mask, 0.0)  # not yet 0 in a sentence of only pads


class _AdditiveRecurrence(torch.autograd.Function):
    """The autograd function of :func:`additive_recurrence`.

    The backward pass writes the gradients of a step's gates into a row ``[dh_n | dr | dz | dn]``.
    ``dr``, ``dz`` and ``dn`` are the gradients of the gates before σ or tanh; ``dh_n`` is that of
    ``U_n s + b'_n``. The first three parts, in the order n, r, z, are the gradient of the hidden
    gates ``U s + b'``. The last three, in torch's order r, z, n, are the gradient of the input
    gates. So this class keeps ``U`` and ``b'`` in the order n, r, z; ``torch.roll`` converts
    between the orders. In comments u is ``tanh(W_s s + keys)``.
    """

    @staticmethod
    def forward(
        ctx: Any,
        padding_mask: Tensor,
        input_gates: Tensor,
        state: Tensor,
        keys: Tensor,
        gate_table: Tensor,
        *weights: Tensor,
    ) -> tuple[Tensor, Tensor]:
        query_weight, score_weight, score_bias, hidden_weight, hidden_bias = weights
        (length, batch, _), width = input_gates.shape, state.size(-1)
        source, attention = keys.shape[1:]
        # W_s and U as one product, [A + 3H, H], and its bias, [A + 3H].
        joined_weight = torch.cat([query_weight, hidden_weight.roll(width, 0)])
        bias = torch.cat([hidden_bias.new_zeros(attention), hidden_bias.roll(width)])
        keys, score = keys.unsqueeze(1), score_weight.view(-1)  # [B, 1, S, A], [A]
        keys_exponentials = exponentials(keys)
        lowest = torch.finfo(state.dtype).min / 2
        energy_bias = score_bias.masked_fill(padding_mask, lowest).view(-1)  # [B·S]
        new = input_gates.new_empty
        states = new(length + 1, batch, width)  # [T + 1, B, H]
        states[0] = state
        projected = new(length, batch, attention + 3 * width)  # [T, B, A + 3H]
        alphas = new(length, batch, source)  # [T, B, S]
        reset_update = new(length, batch, 2 * width)  # σ of the gates r and z
        candidate = new(length, batch, width)  # n
        layer = new(batch, 1, source, attention)  # u: [B, 1, S, A]

        flat_layer, before = layer.view(-1, attention), states.unbind()  # [B·S, A], [B, H] each
        queries, hiddens = projected.split([attention, 3 * width], dim=-1)
        steps = zip(projected, queries[:, :, None, None], hiddens, alphas, strict=True)
        for t, (both_of_t, query, hidden, alpha) in enumerate(steps):
            torch.addmm(bias, before[t], joined_weight.t(), out=both_of_t)  # [B, A + 3H]
            tanh_of_sum(keys, keys_exponentials, query, out=layer)
            energies = torch.addmv(energy_bias, flat_layer, score).view(batch, source)
            torch.softmax(energies, dim=-1, out=alpha)
            inputs = torch.baddbmm(input_gates[t].unsqueeze(1), alpha.unsqueeze(1), gate_table)
            of_r_z, of_n = inputs.squeeze(1).split([2 * width, width], dim=-1)
            torch.add(of_r_z, hidden[:, width:], out=reset_update[t]).sigmoid_()
            reset, update = reset_update[t].chunk(2, -1)
            torch.addcmul(of_n, reset, hidden[:, :width], out=candidate[t]).tanh_()
            torch.lerp(candidate[t], before[t], update, out=before[t + 1])

        saved = (states, projected, alphas, reset_update, candidate)
        ctx.save_for_backward(*saved, keys, gate_table, joined_weight, score_weight)
        return states[1:], alphas

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_states: Tensor, grad_alphas: Tensor) -> tuple[Tensor | None, ...]:
        states, projected, alphas, reset_update, candidate, *rest = ctx.saved_tensors
        keys, gate_table, joined_weight, score_weight = rest
        (length, batch, width), (source, attention) = candidate.shape, keys.shape[2:]
        score, keys_exponentials = score_weight.view(-1), exponentials(keys)
        queries, hidden_n, _ = projected.split([attention, width, 2 * width], dim=-1)
        reset, update = reset_update.chunk(2, -1)
        of_n = (1 - update) * (1 - candidate * candidate)
        of_z = (states[:-1] - candidate) * update * (1 - update)
        of_r = hidden_n * reset * (1 - reset)
        by_gate = gate_table.transpose(1, 2)  # [B, 3H, S]
        new = states.new_empty
        rows = new(length, batch, attention + 4 * width)  # dq | dh_n | dr | dz | dn: [T, B, A + 4H]
        grad_energy = new(length, batch, source)  # [T, B, S]
        layer, squares = new(batch, 1, source, attention), new(batch, source, attention)
        grad_score = torch.zeros_like(score)  # [A]
        squares_sum = states.new_zeros(batch, source, attention)  # Σ_t de_t u_t²: [B, S, A]
        flat_layer, minus_score = layer.view(-1, attention).t(), -score  # [A, B·S], [A]
        grad_state = grad_states[-1]  # [B, H]

        for t in reversed(range(length)):
            row, alpha, energy = rows[t], alphas[t], grad_energy[t]  # [B, A + 4H], [B, S], [B, S]
            dh_n, dr, dz, dn = row[:, attention:].chunk(4, -1)
            torch.mul(grad_state, of_n[t], out=dn)
            torch.mul(grad_state, of_z[t], out=dz)
            torch.mul(dn, of_r[t], out=dr)
            torch.mul(dn, reset[t], out=dh_n)
            # In batches, a row times a matrix is ten times as fast as a matrix times a column.
            grad_input = row[:, attention + width :].unsqueeze(1)  # [B, 1, 3H]
            grad_alpha = torch.baddbmm(grad_alphas[t].unsqueeze(1), grad_input, by_gate).squeeze(1)
            inner = (alpha * grad_alpha).sum(-1, keepdim=True)  # [B, 1]
            torch.mul(alpha, grad_alpha.sub_(inner), out=energy)  # de: [B, S]
            tanh_of_sum(keys, keys_exponentials, queries[t, :, None, None], out=layer)
            grad_score.addmv_(flat_layer, energy.view(-1))
            # du = de v (1 - u²). Its sum over t is the gradient of a key. Its sum over j is the
            # gradient of the query, where Σ_j de_j v = 0, because de is the gradient of a softmax.
            torch.mul(layer.squeeze(1), layer.squeeze(1), out=squares)
            squares_sum.addcmul_(squares, energy.unsqueeze(-1))
            squares_of_j = torch.bmm(energy.unsqueeze(1), squares).squeeze(1)  # [B, A]
            torch.mul(squares_of_j, minus_score, out=row[:, :attention])
            passed_on = grad_state * update[t]  # [B, H]
            if t > 0:
                passed_on += grad_states[t - 1]
            grad_state = passed_on.addmm_(row[:, : attention + 3 * width], joined_weight)

        flat = rows.view(length * batch, -1)[:, : attention + 3 * width]  # [T·B, A + 3H]
        grad_weight = flat.t() @ states[:-1].view(length * batch, width)  # [A + 3H, H]
        grad_input = rows[..., attention + width :]  # [T, B, 3H]
        return (
            None,
            grad_input,
            grad_state,
            (grad_energy.sum(0).unsqueeze(-1) - squares_sum).mul_(score),
            torch.bmm(alphas.permute(1, 2, 0), grad_input.transpose(0, 1)),
            grad_weight[:attention],
            grad_score.view_as(score_weight),
            grad_energy.sum().view(1),
            grad_weight[attention:].roll(-width, 0),
            flat[:, attention:].sum(0).roll(-width),
        )


# ---- the encoder ---------------------------------------------------------------------------------


class BidirectionalGRU(nn.Module):
    """The encoder that makes annotations ``h_j = [h→_j; h←_j]`` (Saleem & Uprety, section 3.1).

    A sentence's result depends neither on its padding nor on other sentences of the batch. An
    annotation has ``C = 2 · hidden_size`` channels.
    """

    def __init__(self, embed_dim: int, hidden_size: int) -> None:
        super().__init__()
        self.gru = nn.GRU(embed_dim, hidden_size, bidirectional=True)
        xavier_uniform_per_gate_(self.gru)

    def forward(self, embedded: Tensor, padding_mask: Tensor) -> tuple[Tensor, Tensor]:
        """Encode sentences ``[B, S, E]`` with pads anywhere; ``padding_mask`` is true on pads.

        Return annotations ``[B, S, C]``, which are 0 on pads, and the last state of each direction,
        ``[h→_S; h←_1]`` ``[B, C]``.
        """
        columns = real_first(padding_mask)
        lengths = (~padding_mask).sum(1).clamp(min=1).cpu()  # packing needs at least one step
        packed = pack_padded_sequence(
            gather_columns(embedded, columns), lengths, batch_first=True, enforce_sorted=False
        )
        outputs, states = self.gru(packed)
        outputs, _ = pad_packed_sequence(
            outputs, batch_first=True, total_length=padding_mask.size(1)
        )
        annotations = gather_columns(outputs, columns.argsort(1))
        final = torch.cat([states[0], states[1]], dim=-1)
        final = final.masked_fill(padding_mask.all(1, keepdim=True), 0.0)  # no word was read
        return annotations.masked_fill(padding_mask.unsqueeze(-1), 0.0), final


def xavier_uniform_per_gate_(gru: nn.GRU) -> None:
    """Initialize each gate's matrix by Xavier-uniform (Glorot & Bengio 2010), and biases by 0.

    torch keeps the matrices of the three gates in one tensor ``[3H, …]``. If Xavier-uniform were
    applied to this tensor as one matrix, the weights would be too small, by a factor of up to √3.
    """
    for name, parameter in gru.named_parameters():
        if "weight" in name:
            for gate in parameter.chunk(3):
                nn.init.xavier_uniform_(gate)
        else:
            nn.init.zeros_(parameter)
