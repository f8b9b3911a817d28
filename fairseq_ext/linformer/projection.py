"""The matrices E and F, which mix the tokens of a source into K slots (torch only).

Letters: ``M`` matrices (E and F, or one for both), ``K`` slots, ``N`` columns (the longest
source), ``S`` columns of a batch of sources.
"""

from __future__ import annotations

from math import ceil

import torch
from torch import Tensor, nn
from torch.nn import functional

from fairseq_ext.utils.errors import CheckpointError, ConfigError, DataError

KINDS = ("learned", "mean-pool", "convolution")
INITS = ("identity", "normal")


class LengthProjection(nn.Module):
    """The matrices E and F of an attention, ``[K, N]`` each (Wang et al. 2020, section 4).

    Column ``j`` belongs to the token at position ``j``, so sources must be padded on the right.

    - ``learned``: all entries are parameters.
    - ``mean-pool``: slot ``i`` is the mean over tokens ``i w … i w + w - 1`` with ``w = N / K``
      (rounded up); no parameters.
    - ``convolution``: the same windows with ``w`` learned weights, which all slots share. This is a
      convolution over time with kernel and stride ``w``.

    If ``K`` does not divide ``N``, windows of ``w`` tokens may need fewer than ``K`` slots: the
    last slots are then empty for every source, and only add ``e^0`` to the softmax.

    ``learned`` has two initializations, which keep slots and scores bounded for every length:

    - ``identity``: ``E_ij = 1 / (1 + ⌊j / K⌋)`` where ``j mod K = i``, else 0. The first ``K``
      tokens fill one slot each, which is exact attention. The next ``K`` tokens are added with
      weight 1/2, those after them with 1/3, and so on. The norm of a slot is at most ``√(π²/6)``
      times that of a token if tokens are independent, and ``ln(N / K) + 1`` times if all are equal.
    - ``normal``: independent ``N(0, 1 / N)``. A slot is a random mixture with at most the norm of a
      token. (Wang et al.'s analysis uses ``N(0, 1 / K)``; its scores grow with the root of n.)

    Args:
        slots: ``K``.
        max_len: ``N``.
        shared: whether keys and values share one matrix (E = F).
        kind: one of :data:`KINDS`.
        init: one of :data:`INITS`, for ``learned``.

    Raises:
        ConfigError: ``K`` below 1 or above ``N``.
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
            raise ConfigError(
                f"`linformer_k` must be from 1 to `linformer_max_len` ({max_len}), "
                f"but is {slots} instead."
            )
        self.slots, self.max_len = slots, max_len
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
        """Initialize as the class describes; a convolution starts as the mean over its window."""
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
        """Return E and F for sources of ``length`` tokens: ``[M, K, S]``."""
        if length > self.max_len:
            raise DataError(
                f"a source of {length} tokens is longer than `--linformer-max-len` "
                f"({self.max_len}), the number of columns of the model's projections. Cut the "
                "source, leave it out, or train the model on with a larger `linformer_max_len`."
            )
        if self.kind == "learned":
            return self.weight[:, :, :length]
        slot = torch.eye(self.slots, device=self.weight.device, dtype=self.weight.dtype)
        matrix = slot[:, :, None] * self.weight[:, None, None, :]  # [M, K, K, w], by window
        return matrix.flatten(2)[:, :, :length]

    def extra_repr(self) -> str:
        shared = ", E = F" if self.matrices == 1 else ""
        return f"k={self.slots}, max_len={self.max_len}, {self.kind}{shared}"


def fit_checkpoint(
    module: LengthProjection, state_dict: dict[str, Tensor], prefix: str, *unused: object
) -> None:
    """Fit the E and F of a checkpoint to another ``N``, before torch compares the shapes.

    A smaller ``N`` cuts columns off. A larger ``N`` adds columns of zeros: sources that the old
    model could read give the same result, and later tokens are ignored until the new columns are
    trained. The window of a convolution is stretched or shrunk without changing its sum.
    """
    name = f"{prefix}weight"
    if name not in state_dict or module.kind == "mean-pool":
        return
    saved, expected = state_dict[name], module.weight.shape
    if saved.dim() != len(expected) or saved.shape[:-1] != expected[:-1]:
        raise CheckpointError(
            f"`{name}` has the shape {tuple(saved.shape)} in the checkpoint, but "
            f"`--linformer-k`, `--linformer-sharing` and `--linformer-projection` make it "
            f"{tuple(expected)}; only `--linformer-max-len` may differ."
        )
    old, new = saved.size(-1), expected[-1]
    if old == new:
        return
    if module.kind == "learned":
        state_dict[name] = functional.pad(saved, (0, new - old))  # a negative number cuts columns
    else:
        stretched = functional.interpolate(
            saved.float().unsqueeze(1), size=new, mode="linear", align_corners=False
        ).squeeze(1)
        # The steps are closer or wider, and the loss by rounding at the edges is spread equally. A
        # factor that restores the sum would have no bound, because a window may sum to 0.
        stretched *= old / new
        missing = saved.float().sum(-1, keepdim=True) - stretched.sum(-1, keepdim=True)
        state_dict[name] = (stretched + missing / new).to(saved.dtype)
