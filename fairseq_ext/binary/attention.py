"""Multi-head attention of section 3.5, in which every matrix product can be binarized.

:class:`BinaryAttention` is a subclass of fairseq's attention and uses its incremental state. It has
its own ``forward``, because in training fairseq's ``forward`` reads the weights of the projections
directly, and would skip their binarization.

In rows BMT-7 and BMT-8 of Table 1 the paper also binarizes two products of activations: queries
times keys (QK), and attention weights times values (Score-V). Neither the paper nor its code says
how. A binarized product needs one bound ``B`` (the largest magnitude, as in section 3.1) for all
terms of a sum, and here no result may depend on masked positions.

*QK*: ``q_b · k_b`` is a sum over the channels of a head. Each query and each key of a head has its
own bound, so positions do not influence each other.

*Score-V*: ``Σ_j p_ij v_j`` is a sum over positions ``j``, with attention weights ``p_ij`` and
values ``v_j``. A bound that all positions share would depend on masked positions. So each ``v_j``
has its own bound ``B_j``. The sum is computed as ``Σ_j (p_ij B_j) (v_jb / B_j)``. In it,
``v_jb / B_j`` is ±1/2, and ``p_ij B_j`` is binarized with one bound for all ``j`` of a query.

There are two ways to binarize attention weights:

- *signed* follows (3.1): every visible weight becomes ``+B/2``, because no weight is negative. So
  all visible positions count equally.
- *unsigned*, as in binarized BERTs, maps weights below ``B/2`` to 0, and all others to ``B``.

Letters: ``N`` sentences, ``H`` heads, ``T`` queries, ``S`` keys, ``D`` channels of a head, ``R``
rows (one per sentence or, in beam search, one per hypothesis), ``C = H · D`` channels.
"""

from collections.abc import Callable
from typing import Any

import torch
from fairseq.modules import MultiheadAttention
from torch import Tensor, nn

from fairseq_ext.base.padding import keep_sentences
from fairseq_ext.binary.binarize import Binarizer, zero_or_one

BINARIZER = Binarizer()
IncrementalState = dict[str, dict[str, Tensor | None]]


class BinaryAttention(MultiheadAttention):
    """Multi-head attention ``Out(softmax(Q K^T / √D) V)`` whose products can be binarized.

    Args:
        embed_dim, num_heads, **options: arguments of fairseq's attention.
        norm_heads: whether each head of q, k and v is normalized by a layer norm. There are three
            norms, for q, k and v. All heads share the parameters of a norm.
        norm_output: whether the output projection ``A W`` gets a layer norm (3.5).
        shortcut: whether ``A``, the input of the output projection, is added (3.5).
        qk: whether to binarize queries and keys in stage 2 of training (:meth:`set_stage`).
        score_v: how to binarize attention weights and values in stage 2: ``signed``, ``unsigned``,
            or None for not at all.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        norm_heads: bool = False,
        norm_output: bool = False,
        shortcut: bool = False,
        qk: bool = False,
        score_v: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(embed_dim, num_heads, **options)
        self.head_norms = nn.ModuleDict(
            {name: nn.LayerNorm(self.head_dim) for name in "qkv"} if norm_heads else {}
        )
        self.output_norm = nn.LayerNorm(embed_dim) if norm_output else None
        self.shortcut = shortcut
        self.options: dict[str, Any] = {"qk": qk, "score_v": score_v}
        self.set_stage(2)

    @classmethod
    def of(cls, attention: MultiheadAttention, **options: Any) -> "BinaryAttention":
        """Make a binary attention from the layers of ``attention``, with arguments ``options``."""
        with torch.device("meta"):  # uses no memory and no random numbers; all is replaced below
            binary = cls(
                attention.embed_dim,
                attention.num_heads,
                kdim=attention.kdim,
                vdim=attention.vdim,
                self_attention=attention.self_attention,
                encoder_decoder_attention=attention.encoder_decoder_attention,
                **options,
            )
        for name, module in attention.named_children():
            setattr(binary, name, module)
        return binary.train(attention.training)

    def set_stage(self, stage: int) -> None:
        """Enter stage 0, 1 or 2 of training; ``qk`` and ``score_v`` take effect only in stage 2."""
        self.binary_qk: bool = self.options["qk"] and stage >= 2
        self.binary_score_v: str | None = self.options["score_v"] if stage >= 2 else None

    def forward(
        self,
        query: Tensor,
        key: Tensor | None,
        value: Tensor | None,
        key_padding_mask: Tensor | None = None,
        incremental_state: IncrementalState | None = None,
        need_weights: bool = True,
        static_kv: bool = False,
        attn_mask: Tensor | None = None,
        before_softmax: bool = False,
        need_head_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend from ``query`` ``[T, R, C]`` to ``key``; return outputs ``[T, R, C]`` and weights.

        Arguments and results are as in fairseq's attention. ``attn_mask`` ``[T, S]`` is below 0
        where a query must not look. The weights are those before dropout and binarization. If
        ``need_head_weights`` is true, they are ``[H, R, T, S]``. Else, if ``need_weights`` is true,
        they are the mean over heads, ``[R, T, S]``. Else they are None.
        """
        queries = self._heads(self.q_proj(query), "q")
        keys, values, pads = self._keys_values(key, key_padding_mask, incremental_state, static_kv)
        hidden = None if pads is None else pads[:, None, None, :]
        if attn_mask is not None:
            future = attn_mask < 0
            hidden = future if hidden is None else hidden | future
        weights = attention_weights(queries, keys, hidden, self.binary_qk)
        attended = contexts(weights, values, hidden, self.dropout_module, self.binary_score_v)
        attended = attended.permute(2, 0, 1, 3).flatten(2)
        output = self.out_proj(attended)
        if self.output_norm is not None:
            output = self.output_norm(output)
        if self.shortcut:
            output = output + attended
        if not (need_weights or need_head_weights):
            return output, None
        return output, weights.transpose(0, 1) if need_head_weights else weights.mean(1)

    def _heads(self, projected: Tensor, name: str) -> Tensor:
        """Split ``[T, R, C]`` into heads ``[R, H, T, D]``; apply the norm ``name`` (q, k or v)."""
        heads = projected.unflatten(-1, (self.num_heads, self.head_dim)).permute(1, 2, 0, 3)
        return self.head_norms[name](heads) if self.head_norms else heads

    def _keys_values(
        self,
        source: Tensor | None,
        pads: Tensor | None,
        incremental_state: IncrementalState | None,
        static: bool,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return keys and values ``[R, H, S, D]`` of all steps so far, and their padding mask.

        The mask is ``[R, S]``, true on pads, or None. If ``static`` is true, all steps read the
        same ``source``, and keys and values are computed only in the first step.
        """
        saved = {} if incremental_state is None else self._get_input_buffer(incremental_state)
        if static and "prev_key" in saved:
            return saved["prev_key"], saved["prev_value"], saved["prev_key_padding_mask"]
        keys = self._heads(self.k_proj(source), "k")
        values = self._heads(self.v_proj(source), "v")
        if incremental_state is None:
            return keys, values, pads
        if "prev_key" in saved:
            keys = torch.cat([saved["prev_key"], keys], dim=2)
            values = torch.cat([saved["prev_value"], values], dim=2)
        pads = self._append_prev_key_padding_mask(
            pads, saved.get("prev_key_padding_mask"), len(keys), keys.size(2), static
        )
        pads = None if pads is None else pads.bool()
        state = {"prev_key": keys, "prev_value": values, "prev_key_padding_mask": pads}
        self._set_input_buffer(incremental_state, state)
        return keys, values, pads

    def reorder_incremental_state(
        self, incremental_state: IncrementalState, new_order: Tensor
    ) -> IncrementalState:
        """Keep the cached keys and values of the rows with indices ``new_order`` (beam search)."""
        state = {
            name: None if value is None else keep_sentences(value, 0, new_order)
            for name, value in self._get_input_buffer(incremental_state).items()
        }
        return self._set_input_buffer(incremental_state, state)


def attention_weights(
    queries: Tensor, keys: Tensor, hidden: Tensor | None, binary: bool = False
) -> Tensor:
    """Compute the attention weights ``softmax(Q K^T / √D)`` ``[N, H, T, S]``, at least in fp32.

    Queries are ``[N, H, T, D]``, keys ``[N, H, S, D]``. ``hidden`` (``[N, H, T, S]``, or broadcast
    to this shape) is true where a query must not look. If everything is hidden from a query, all
    its weights are equal. ``binary`` binarizes queries and keys (QK in Table 1).
    """
    factor: Tensor | float = queries.size(-1) ** -0.5
    if binary:
        queries, of_queries = BINARIZER.signs(queries)
        keys, of_keys = BINARIZER.signs(keys)
        factor = factor * of_queries * of_keys.transpose(-1, -2)
        scores = (queries @ keys.transpose(-1, -2)) * factor
    else:
        scores = (queries * factor) @ keys.transpose(-1, -2)
    if hidden is not None:
        # With -inf, a query that may not look anywhere would give NaN. If any position is visible,
        # masked positions get the weight 0 anyway.
        scores = scores.masked_fill(hidden, torch.finfo(scores.dtype).min)
    precise = torch.promote_types(scores.dtype, torch.float32)
    return torch.softmax(scores, dim=-1, dtype=precise).to(scores.dtype)


def contexts(
    weights: Tensor,
    values: Tensor,
    hidden: Tensor | None,
    dropout: Callable[[Tensor], Tensor],
    binary: str | None = None,
) -> Tensor:
    """Compute the contexts ``Σ_j p_ij v_j`` ``[N, H, T, D]`` from attention weights p and values v.

    Weights are ``[N, H, T, S]``, values ``[N, H, S, D]``. ``hidden`` is the mask of
    :func:`attention_weights`. ``binary`` says how to binarize weights and values (Score-V in Table
    1): ``signed``, ``unsigned``, or None for not at all. ``dropout`` is applied to the weights,
    after any binarization.
    """
    if binary is None:
        return dropout(weights) @ values
    signs, half = BINARIZER.signs(values)  # half is B_j / 2: [N, H, S, 1]
    weights = weights * (2 * half).transpose(-1, -2)
    picked, level = zero_or_one(weights) if binary == "unsigned" else BINARIZER.signs(weights)
    if hidden is not None:
        picked = picked.masked_fill(hidden, 0)
    return (dropout(picked) @ signs) * (level * 0.5)
