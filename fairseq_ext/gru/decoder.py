"""Run the decoder's recurrence with attention, over all steps (training) or step by step.

Letters: ``T`` target length, ``B`` sentences, ``G`` rows (hypotheses) per sentence, ``S`` source
length. Sizes: ``E`` embedding, ``H`` state, ``C`` annotation (the encoder's output for a word),
``A`` hidden layer of additive attention, ``O`` features (the output layer's input).
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_ext.gru.attention import ATTENTION_TYPES, MLPAttention, masked_softmax
from fairseq_ext.gru.recurrence import additive_recurrence, gru_update


class Source(NamedTuple):
    """The source as each step reads it: annotations, attention keys, mask (true on pads)."""

    annotations: Tensor  # h_j: [B, S, C]
    keys: Tensor  # what attention compares queries with: [B, S, A]; general and dot: [B, S, H]
    padding_mask: Tensor  # [B, S]


class State(NamedTuple):
    """The state that a decoding step passes to the next step, with one row for each hypothesis.

    ``hidden`` is ``s``, the state of the GRU. In Luong's order with input feeding, ``fed`` is the
    attentional vector ``h̃``, which the next step reads; otherwise ``fed`` is None.
    """

    hidden: Tensor  # [B·G, H]
    fed: Tensor | None  # [B·G, H]


class AttentiveGRU(nn.Module):
    """A GRU decoder that attends over the source, without embeddings and output layer.

    ``y = E y_{t-1}`` is the embedding of the previous target word.

    Bahdanau order (Bahdanau et al. 2015; Saleem & Uprety, section 3.2)::

        c_t = Σ_j softmax_j(score(s_{t-1}, h_j)) h_j
        s_t = GRU([y; c_t], s_{t-1})                    without input feeding: GRU(y, s_{t-1})
        features = [s_t; c_t; y]

    Luong order (Luong et al. 2015, section 3.3)::

        s_t = GRU([y; h̃_{t-1}], s_{t-1})                without input feeding: GRU(y, s_{t-1})
        c_t = Σ_j softmax_j(score(s_t, h_j)) h_j
        features = h̃_t = tanh(W_c [c_t; s_t])

    Without input feeding, no step depends on the previous step's attention. So in training (teacher
    forcing), one call of the GRU and one of the attention compute all steps.

    Args:
        embed_dim, hidden_dim, annotation_dim, attention_dim: E, H, C, A.
        attention_type: ``mlp`` (additive), ``general`` or ``dot``.
        order: ``bahdanau`` or ``luong``.
        input_feeding: whether the GRU also reads the context (Luong: the attentional vector h̃).

    Raises:
        ConfigError: ``attention_type`` is ``dot``, but H and C differ.
    """

    def __init__(
        self,
        embed_dim: int,
        hidden_dim: int,
        annotation_dim: int,
        attention_dim: int,
        *,
        attention_type: str = "mlp",
        order: str = "bahdanau",
        input_feeding: bool = True,
    ) -> None:
        super().__init__()
        self.luong, self.input_feeding = order == "luong", input_feeding
        self.embed_dim = embed_dim
        self.attention = ATTENTION_TYPES[attention_type](hidden_dim, annotation_dim, attention_dim)
        fed_dim = hidden_dim if self.luong else annotation_dim
        self.gru: Any = nn.GRU(embed_dim + (fed_dim if input_feeding else 0), hidden_dim)
        self.combine = nn.Linear(annotation_dim + hidden_dim, hidden_dim) if self.luong else None
        self.output_dim = hidden_dim if self.luong else hidden_dim + annotation_dim + embed_dim

    def source(self, annotations: Tensor, padding_mask: Tensor) -> Source:
        """Compute the keys of annotations ``[B, S, C]``; return keys, annotations and mask."""
        return Source(annotations, self.attention.keys(annotations), padding_mask)

    def initial(self, hidden: Tensor) -> State:
        """Return the state before the first target word; ``hidden`` is ``s_0``, ``[B, H]``."""
        feeds_vector = self.luong and self.input_feeding
        return State(hidden, torch.zeros_like(hidden) if feeds_vector else None)

    def attend(self, query: Tensor, source: Source) -> tuple[Tensor, Tensor]:
        """Attend from queries ``[B, G, H]``, which are decoder states, to the source.

        Return contexts ``[B, G, C]`` and attention weights ``[B, G, S]``.
        """
        scores = self.attention(query, source.keys)
        weights = masked_softmax(scores, source.padding_mask.unsqueeze(1))
        return torch.bmm(weights, source.annotations), weights

    def step(self, embedded: Tensor, state: State, source: Source) -> tuple[Tensor, Tensor, State]:
        """Run one decoding step on the embedding ``[B·G, E]`` of each row's last target word.

        Return features ``[B·G, O]``, attention weights ``[B·G, S]`` and the new state.
        """
        return self._step(self._embedding_gates(embedded), embedded, state, source)

    def forward(self, embedded: Tensor, hidden: Tensor, source: Source) -> tuple[Tensor, Tensor]:
        """Run all decoding steps on embedded target words ``[T, B, E]`` (teacher forcing).

        ``hidden`` is ``s_0`` ``[B, H]``. Return features ``[T, B, O]`` and attention weights
        ``[T, B, S]``.
        """
        if not self.input_feeding:
            return self._parallel(embedded, hidden, source)
        gates = self._embedding_gates(embedded)  # [T, B, 3H], one product for all steps
        if not self.luong and isinstance(self.attention, MLPAttention):
            states, weights = additive_recurrence(
                gates,
                hidden,
                source.keys,
                F.linear(source.annotations, self.gru.weight_ih_l0[:, self.embed_dim :]),  # W_c h_j
                source.padding_mask,
                self.attention.query_weight,
                self.attention.score.weight,
                self.attention.score.bias,
                self.gru.weight_hh_l0,
                self.gru.bias_hh_l0,
            )
            contexts = torch.bmm(weights.transpose(0, 1), source.annotations).transpose(0, 1)
            return self._features(states, contexts, embedded), weights
        state, features, alphas = self.initial(hidden), [], []
        for step_gates, word in zip(gates, embedded, strict=True):
            feature, weight, state = self._step(step_gates, word, state, source)
            features.append(feature)
            alphas.append(weight)
        return torch.stack(features), torch.stack(alphas)

    def _parallel(self, embedded: Tensor, hidden: Tensor, source: Source) -> tuple[Tensor, Tensor]:
        states, _ = self.gru(embedded, hidden.unsqueeze(0).type_as(embedded))  # [T, B, H]
        queries = states if self.luong else torch.cat([hidden.unsqueeze(0), states[:-1]])
        context, weights = self.attend(queries.transpose(0, 1), source)
        features = self._features(states, context.transpose(0, 1), embedded)
        return features, weights.transpose(0, 1)

    def _step(
        self, gates: Tensor, embedded: Tensor, state: State, source: Source
    ) -> tuple[Tensor, Tensor, State]:
        hidden = state.hidden
        if self.luong:
            hidden = self._advance(gates, state.fed, hidden)
        query = hidden.view(source.annotations.size(0), -1, hidden.size(-1))  # [B, G, H]
        context, weights = (x.flatten(0, 1) for x in self.attend(query, source))
        if not self.luong:
            hidden = self._advance(gates, context if self.input_feeding else None, hidden)
        features = self._features(hidden, context, embedded)
        feeds_vector = self.luong and self.input_feeding
        return features, weights, State(hidden, features if feeds_vector else None)

    def _embedding_gates(self, embedded: Tensor) -> Tensor:
        weight = self.gru.weight_ih_l0[:, : self.embed_dim]
        return F.linear(embedded, weight, self.gru.bias_ih_l0)

    def _advance(self, gates: Tensor, fed: Tensor | None, hidden: Tensor) -> Tensor:
        if fed is not None:
            gates = gates + F.linear(fed, self.gru.weight_ih_l0[:, self.embed_dim :])
        hidden_gates = F.linear(hidden, self.gru.weight_hh_l0, self.gru.bias_hh_l0)
        return gru_update(gates, hidden_gates, hidden)

    def _features(self, hidden: Tensor, context: Tensor, embedded: Tensor) -> Tensor:
        if self.combine is not None:
            return torch.tanh(self.combine(torch.cat([context, hidden], dim=-1)))
        return torch.cat([hidden, context, embedded.type_as(hidden)], dim=-1)
