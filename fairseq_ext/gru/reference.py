"""The GRU with attention, written from the paper's equations.

The functions take one sentence, one word at a time, without padding. They are slow and meant to be
read; the tests compare the fast layers' values and gradients with theirs. Comments name the paper's
sections, because its equations have no numbers. Parameters have the names that they have in
:class:`~fairseq_ext.gru.decoder.AttentiveGRU`.

Letters: ``T`` words, ``S`` source tokens, ``E`` embedding, ``H`` state, ``C`` annotation size.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

Parameters = Mapping[str, Tensor]


def gru(p: Parameters, x: Tensor, s: Tensor, layer: str = "gru.{}_l0") -> Tensor:
    """Compute a GRU's next state ``[H]`` from its state ``s`` ``[H]`` and the input ``x``.

    The equations are torch's variant of those in section 3.1. ``p`` has parameters by name;
    ``layer`` is the pattern of their names, with ``{}`` in the place of ``weight_ih``,
    ``weight_hh``, ``bias_ih`` or ``bias_hh``.
    """
    of_x = p[layer.format("weight_ih")] @ x + p[layer.format("bias_ih")]
    of_s = p[layer.format("weight_hh")] @ s + p[layer.format("bias_hh")]
    (x_r, x_z, x_n), (s_r, s_z, s_n) = of_x.chunk(3), of_s.chunk(3)  # [H] each
    r = 1 / (1 + torch.exp(-(x_r + s_r)))  # r = σ(W_r x + U_r s)
    z = 1 / (1 + torch.exp(-(x_z + s_z)))  # z = σ(W_z x + U_z s)
    n = torch.tanh(x_n + r * s_n)  # n = tanh(W_n x + r ⊙ U_n s)
    return (1 - z) * n + z * s  # s' = (1 - z) ⊙ n + z ⊙ s


def score(p: Parameters, s: Tensor, h: Tensor) -> Tensor:
    """Score a state ``[H]`` and an annotation ``[C]`` (3.2).

    The names of the parameters ``p`` tell the kind of attention.
    """
    if "attention.score.weight" in p:  # v^T tanh(W [s; h] + b) + b_v, of Bahdanau et al. (2015)
        joined = torch.cat([s, h])
        hidden = torch.tanh(p["attention.hidden.weight"] @ joined + p["attention.hidden.bias"])
        return p["attention.score.weight"][0] @ hidden + p["attention.score.bias"][0]
    if "attention.hidden.weight" in p:  # s^T W h, of Luong et al. (2015)
        return s @ (p["attention.hidden.weight"] @ h)
    return s @ h  # s^T h, as the paper prints it


def attend(p: Parameters, s: Tensor, annotations: Tensor) -> tuple[Tensor, Tensor]:
    """Attend from ``s`` ``[H]``; return the context ``[C]`` and weights ``[S]`` (section 3.2)."""
    e = torch.exp(torch.stack([score(p, s, h) for h in annotations]))
    alpha = e / e.sum()  # α^t = softmax(e^t)
    return sum(a * h for a, h in zip(alpha, annotations, strict=True)), alpha  # Σ_i α_i^t h_i


def decode(
    p: Parameters, words: Tensor, s: Tensor, annotations: Tensor, input_feeding: bool = True
) -> tuple[Tensor, Tensor]:
    """Run the decoder on all target words; return features ``[T, O]`` and attention ``[T, S]``.

    Features are the input of the output layer, of size ``O``.

    Args:
        p: parameters by name. If ``combine.weight`` is among them, the decoder is Luong's, which
            attends after the GRU's step; otherwise it is Bahdanau's, which attends before.
        words: ``[T, E]``, for each step the embedding of the previous target word.
        s: the first state, ``[H]``.
        annotations: ``[S, C]``.
        input_feeding: whether the GRU also reads the context (Luong: the attentional vector).
    """
    luong = "combine.weight" in p
    fed, features, alphas = torch.zeros_like(s), [], []
    for word in words:
        if luong:
            s = gru(p, torch.cat([word, fed]) if input_feeding else word, s)
            context, alpha = attend(p, s, annotations)
            fed = torch.tanh(p["combine.weight"] @ torch.cat([context, s]) + p["combine.bias"])
        else:  # Bahdanau et al. (2015): attend with the state before the step
            context, alpha = attend(p, s, annotations)
            s = gru(p, torch.cat([word, context]) if input_feeding else word, s)
        features.append(fed if luong else torch.cat([s, context, word]))
        alphas.append(alpha)
    return torch.stack(features), torch.stack(alphas)
