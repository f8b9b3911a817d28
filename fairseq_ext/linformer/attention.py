"""Linformer attention: Wang et al. 2020, equation (7); Pampaloni, section 1.

``head = softmax(Q (E K)^T / √D) F V`` with ``Q = x W_q + b_q``, ``K = y W_k + b_k``,
``V = y W_v + b_v``, for queries from ``x`` and a source ``y``. Each row of ``E K`` and ``F V`` is a
*slot*, a mixture of the source tokens.

In formulas ``K`` are the keys, but in shapes it is the number of slots. Other letters: ``T``
queries, ``S`` tokens of the source, ``B`` sentences, ``C`` channels, ``H`` heads of ``D`` channels,
``N`` tokens of the longest possible source, ``M`` matrices (2 for E and F, 1 if E = F), ``R`` rows
of queries (one per sentence, or one per hypothesis).
"""

from math import ceil, sqrt

import torch
from torch import Tensor, nn
from torch.nn import functional

from fairseq_ext.base.dropout import active_rate
from fairseq_ext.utils.errors import CheckpointError, DataError, wrong_value


class LinformerAttention(nn.Module):
    """Multi-head attention over ``K`` mixtures of the source tokens.

    All slots take part in the softmax. A short source may leave slots empty: their keys are 0, so
    each adds ``e^0`` to the softmax's denominator. Attention weights are not returned, because the
    weight of a slot cannot be divided among the tokens that it mixes.

    Args:
        embed_dim, num_heads: ``C`` and ``H``.
        projection: E and F; several layers may share one projection.
        scale: ``head-dim`` divides scores by ``√D``, ``model-dim`` by ``√C`` as the paper prints.
        compress_first: True mixes the tokens before ``W_k`` and ``W_v``, False after them, with
            equal results; None chooses the cheaper order. Must be False if a layer that is not
            linear replaces ``k_proj`` or ``v_proj``.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        projection: "LengthProjection",
        *,
        scale: str = "head-dim",
        compress_first: bool | None = None,
    ) -> None:
        super().__init__()
        self.embed_dim, self.num_heads = embed_dim, num_heads
        self.head_dim = embed_dim // num_heads
        self.scaling = 1 / sqrt(self.head_dim if scale == "head-dim" else embed_dim)
        self.dropout: nn.Module = nn.Identity()  # in a model, replaced by fairseq's dropout
        self.compress_first = compress_first
        self.projection = projection
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.k_proj = nn.Linear(embed_dim, embed_dim)
        self.v_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize the four linear layers as in fairseq's attention; leave E and F unchanged."""
        for linear in (self.q_proj, self.k_proj, self.v_proj):
            nn.init.xavier_uniform_(linear.weight, gain=1 / sqrt(2))
        nn.init.xavier_uniform_(self.out_proj.weight)
        nn.init.zeros_(self.out_proj.bias)

    def compress(self, source: Tensor, padding_mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Compress a source ``[S, B, C]`` to keys and values of slots, ``[B, H, K, D]`` each.

        The source must be padded on the right; ``padding_mask`` ``[B, S]`` is true on pads. Raise
        DataError if the source has more tokens than E and F have columns (``N``).
        """
        matrices = self.projection(source.size(0))  # [M, K, S]
        if padding_mask is not None:
            source = source.masked_fill(padding_mask.t().unsqueeze(-1), 0)
        first = self.compress_first
        if first is None:
            first = source.size(0) > self.projection.slots
        project = self._compress_then_project if first else self._project_then_compress
        keys, values = project(source, padding_mask, matrices)
        return self._heads(keys), self._heads(values)

    def _compress_then_project(
        self, source: Tensor, padding_mask: Tensor | None, matrices: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Mix first, then project: ``E K = E (y W + 1 b^T) = (E y) W + (E 1) b^T``; F V likewise.

        The vector ``1`` has a 1 for each token, a 0 for each pad. ``matrices`` are E and F; the
        source y, its mask and the result are as in :meth:`compress`.
        """
        mixed = mix(matrices.flatten(0, 1), source).unflatten(0, matrices.shape[:2])  # [M, K, B, C]
        if padding_mask is None:
            mass = matrices.sum(-1, keepdim=True)  # E 1: [M, K, 1]
        else:
            mass = matrices @ (~padding_mask).t().to(matrices.dtype)  # [M, K, B]
        rest = (mass - 1).unsqueeze(-1)  # the layers below add the bias once
        keys = torch.addcmul(self.k_proj(mixed[0]), rest[0], self.k_proj.bias)
        values = torch.addcmul(self.v_proj(mixed[-1]), rest[-1], self.v_proj.bias)
        return keys, values

    def _project_then_compress(
        self, source: Tensor, padding_mask: Tensor | None, matrices: Tensor
    ) -> tuple[Tensor, Tensor]:
        keys, values = self.k_proj(source), self.v_proj(source)
        if padding_mask is not None:  # pads now have the bias instead of 0
            pads = padding_mask.t().unsqueeze(-1)
            keys, values = keys.masked_fill(pads, 0), values.masked_fill(pads, 0)
        return mix(matrices[0], keys), mix(matrices[-1], values)

    def attend(self, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Attend to compressed keys and values; return the outputs ``[T, R, C]``.

        Args:
            query: ``[T, R, C]``. In beam search, ``R`` is a multiple of ``B``: neighbouring rows
                are hypotheses of one sentence, which share the sentence's keys and values.
            keys, values: keys and values of the ``K`` slots for each head, ``[B, H, K, D]``.
        """
        length, rows, _ = query.shape
        sentences = keys.size(0)
        q = self.q_proj(query).view(length, sentences, -1, self.num_heads, self.head_dim)
        q = q.permute(1, 3, 2, 0, 4).flatten(2, 3)  # [B, H, R/B · T, D]
        dropout = active_rate(self.dropout)
        heads = functional.scaled_dot_product_attention(
            q, keys, values, dropout_p=dropout, scale=self.scaling
        )
        heads = heads.unflatten(2, (-1, length)).permute(3, 0, 2, 1, 4)  # [T, B, R/B, H, D]
        return self.out_proj(heads.reshape(length, rows, self.embed_dim))

    def forward(self, query: Tensor, source: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        """Attend from ``query`` ``[T, B, C]`` to ``source`` ``[S, B, C]``; return ``[T, B, C]``.

        The source must be padded on the right; ``padding_mask`` ``[B, S]`` is true on pads.
        """
        return self.attend(query, *self.compress(source, padding_mask))

    def _heads(self, slots: Tensor) -> Tensor:
        return slots.unflatten(2, (self.num_heads, self.head_dim)).permute(1, 2, 0, 3)


def mix(matrix: Tensor, source: Tensor) -> Tensor:
    """Mix each sentence's tokens: ``matrix`` ``[K, S]`` times ``[S, B, C]`` gives ``[K, B, C]``."""
    return (matrix @ source.flatten(1)).unflatten(1, source.shape[1:])


class LengthProjection(nn.Module):
    """The matrices E and F of an attention, ``[K, N]`` each (Wang et al. 2020, section 4).

    Column ``j`` belongs to the token at position ``j``, so sources must be padded on the right.
    There are three kinds of matrices:

    - ``learned``: all entries are parameters.
    - ``mean-pool``: each slot is the mean of a window of ``w = N / K`` tokens (rounded up). No
      parameters.
    - ``convolution``: each slot is the sum of such a window with ``w`` learned weights, which all
      slots share (a convolution over time with kernel and stride ``w``).

    If fewer than ``K`` windows cover ``N`` tokens, the last slots are always empty.

    Learned matrices have two initializations. Both limit the norm of slots for any source length:

    - ``identity``: ``E_ij = 1 / (1 + ⌊j / K⌋)`` where ``j mod K = i``, else 0. The first ``K``
      tokens fill one slot each, which is exact attention. The second ``K`` tokens are added to the
      slots with weight 1/2, the third with 1/3, and so on. If tokens are independent, a slot's norm
      is on average at most ``√(π²/6)`` times a token's norm. If all tokens are equal, it is at most
      ``ln(N / K) + 1`` times a token's norm.
    - ``normal``: entries are drawn with mean 0 and variance ``1 / N``, so on average a slot's norm
      is at most a token's. With the variance ``1 / K`` of Wang et al., scores would grow with
      ``√S``.

    Args:
        slots, max_len: ``K`` and ``N``.
        shared: whether E and F are the same matrix.
        kind: ``learned``, ``mean-pool`` or ``convolution``.
        init: initialization of learned matrices, ``identity`` or ``normal``.

    ``K`` below 1 or above ``N`` raises ConfigError.
    """

    def __init__(
        self,
        slots: int,
        max_len: int,
        *,
        shared: bool = False,
        kind: str = "learned",
        init: str = "identity",
    ) -> None:
        super().__init__()
        if not 1 <= slots <= max_len:
            wish = f"from 1 to `--linformer-max-len` ({max_len})"
            raise wrong_value("--linformer-k", wish, slots)
        self.slots, self.max_len = slots, max_len  # K, N
        self.kind, self.init = kind, init
        self.matrices = 1 if shared else 2
        self.window = ceil(max_len / slots)
        shape = (slots, max_len) if kind == "learned" else (self.window,)
        weight = torch.empty(self.matrices, *shape)  # E, F, or their windows
        if kind == "mean-pool":
            self.register_buffer("weight", weight, persistent=False)
        else:
            self.weight = nn.Parameter(weight)
        self.register_load_state_dict_pre_hook(fit_checkpoint)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Initialize E and F as the class's ``init`` says; a convolution starts as a mean."""
        if self.kind != "learned":
            self.weight.fill_(1 / self.window)
        elif self.init == "normal":
            self.weight.normal_(std=self.max_len**-0.5)
        else:
            self.weight.zero_()
            token = torch.arange(self.max_len, device=self.weight.device)
            lap = 1 + token // self.slots
            self.weight[:, token % self.slots, token] = 1 / lap.to(self.weight.dtype)

    def forward(self, length: int) -> Tensor:
        """Return E and F for sources of ``length`` tokens, that is their first ``length`` columns.

        The result is ``[2, K, length]`` for K slots, first E, then F. If both are one matrix
        (``shared``), it is ``[1, K, length]``. Raise DataError if ``length`` is above ``max_len``,
        the number of columns.
        """
        if length > self.max_len:
            raise DataError(
                f"a source of {length} tokens is longer than `--linformer-max-len` "
                f"({self.max_len}), the number of columns of the model's projections. Cut the "
                "source, leave it out, or continue the training with a larger `linformer_max_len`."
            )
        if self.kind == "learned":
            return self.weight[:, :, :length]
        slot = torch.eye(self.slots, device=self.weight.device, dtype=self.weight.dtype)
        matrix = slot[:, :, None] * self.weight[:, None, None, :]  # [M, slot, window, w]
        return matrix.flatten(2)[:, :, :length]


def fit_checkpoint(
    module: LengthProjection, state_dict: dict[str, Tensor], prefix: str, *unused: object
) -> None:
    """Fit the saved E and F in ``state_dict`` to the module's ``N``; torch calls this hook.

    The module's names in ``state_dict`` begin with ``prefix``. If the module's ``N`` is smaller
    than the saved one, columns are cut off. If it is larger, columns of zeros are added: results
    for sources up to the saved ``N`` do not change, and later tokens are ignored until the new
    columns are trained. Raise CheckpointError if the number of matrices or slots, or a
    convolution's window, differs.
    """
    name = f"{prefix}weight"
    if name not in state_dict or module.kind == "mean-pool":
        return
    saved, expected = state_dict[name], module.weight.shape
    fixed = slice(-1) if module.kind == "learned" else slice(None)
    if saved.dim() != len(expected) or saved.shape[fixed] != expected[fixed]:
        raise CheckpointError(
            f"`{name}` has the shape {tuple(saved.shape)} in the checkpoint, but `--linformer-k`, "
            f"`--linformer-sharing` and `--linformer-projection` need the shape {tuple(expected)}. "
            "Set them as in the training; only `--linformer-max-len` may change, and only with "
            "learned matrices."
        )
    # `pad` cuts columns if the number is negative.
    state_dict[name] = functional.pad(saved, (0, expected[-1] - saved.size(-1)))
