"""Linear layers of K inputs and N outputs; weights are binary or ternary, inputs may be binary."""

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from fairseq_ext.base.dropout import active_rate, draw
from fairseq_ext.binary.binarize import TERNARY, Binarizer, Levels, signs_of

BINARIZER = Binarizer()
GRANULARITIES: dict[str, int | tuple[int, ...]] = {"channel": 1, "tensor": (0, 1)}


class _Product(torch.autograd.Function):
    """The autograd function ``A W_b + b`` (float inputs) or ``A_b W_b / s + b`` (binary inputs).

    With binary inputs, the sum over signs is an exact integer (rounded once in half precision).
    ``levels`` are those of the weights, ``inputs`` those of the inputs (None if they are float).
    ``mask``, shaped like ``x``, is the dropout mask of binary inputs: its zeros make signs 0.
    ``scale`` is s. To save memory, the backward pass computes ``W_b`` and ``A_b`` again.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        levels: Levels,
        inputs: Levels | None,
        mask: Tensor | None,
        scale: float,
    ) -> Tensor:
        signs = levels.signs(weight)  # [N, K]
        if inputs is None:
            y = F.linear(x, signs.mul_(levels.level), bias)  # [..., N]
        else:
            x_signs = _signs(x, inputs, mask)
            y = _binary_product(x_signs, inputs.level / scale, signs, levels.level, bias)
        ctx.save_for_backward(x, weight, mask)
        ctx.levels, ctx.inputs, ctx.scale, ctx.dtype = levels, inputs, scale, y.dtype
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mask = ctx.saved_tensors  # [..., K], [N, K], [..., K]
        levels, inputs = ctx.levels, ctx.inputs
        of_x = of_weight = of_bias = None
        if ctx.needs_input_grad[0]:
            matrix = levels.signs(weight).mul_(levels.level / ctx.scale)  # W_b / s: [N, K]
            of_x = (grad @ matrix.to(ctx.dtype)).to(x.dtype)  # [..., K]
            of_x = of_x if inputs is None else inputs.mask_(of_x, x)
            of_x = of_x if mask is None else of_x.mul_(mask)
        if ctx.needs_input_grad[1]:
            if inputs is not None:
                x = _signs(x, inputs, mask).mul_(inputs.level / ctx.scale)  # A_b / s
            of_weight = _rows(grad).t() @ _rows(x.to(ctx.dtype))  # [N, M] [M, K]
            of_weight = levels.mask_(of_weight.to(weight.dtype), weight)
        if ctx.needs_input_grad[2]:
            of_bias = _rows(grad).sum(0)
        return of_x, of_weight, of_bias, None, None, None, None


def _signs(x: Tensor, levels: Levels, mask: Tensor | None) -> Tensor:
    signs = levels.signs(x)
    return signs if mask is None else signs.mul_(mask)


def _binary_product(
    x: Tensor, x_level: Tensor, weight: Tensor, level: Tensor, bias: Tensor | None
) -> Tensor:
    """Multiply binary inputs by a binary weight and add ``bias`` ``[N]``; return ``[..., N]``.

    ``x`` ``[..., K]`` and ``weight`` ``[N, K]`` are signs; ``x_level`` ``[..., 1]`` and ``level``
    ``[N, 1]`` are their levels.
    """
    y = F.linear(x, weight).mul_(x_level).mul_(level.squeeze(1))
    return y if bias is None else y.add_(bias)


def _rows(x: Tensor) -> Tensor:
    return x.reshape(-1, x.size(-1))  # [M, K]; a vector becomes a single row


class BinaryLinear(nn.Linear):
    """A linear layer with ``A_b W_b / s + b`` instead of ``A W + b`` (sections 3.1 and 3.3).

    ``weight`` ``[N, K]`` holds the latent (float) weights, which are trained. By default, the bound
    ``B`` is the largest magnitude of a row of weights, or of the ``K`` inputs of a token.
    :meth:`make_generation_fast_` keeps only binary weights; the stage is then fixed until weights
    are loaded again.

    Args:
        in_features, out_features, bias: arguments of ``nn.Linear``.
        weights: whether weights are binary from stage 1 of training on (:meth:`set_stage`).
        inputs: whether inputs are binary from stage 2 on. A new layer is in stage 2.
        scale: ``s``, which divides the product while the inputs are binary.
        granularity: ``channel`` (each row of weights has its bound) or ``tensor`` (all share one).
        weight_binarizer, input_binarizer: how weights and inputs are binarized.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        weights: bool = True,
        inputs: bool = False,
        scale: float = 1.0,
        granularity: str = "channel",
        weight_binarizer: Binarizer = BINARIZER,
        input_binarizer: Binarizer = BINARIZER,
    ) -> None:
        super().__init__(in_features, out_features, bias)
        self.weights, self.inputs, self.scale = weights, inputs, scale
        self.granularity = granularity
        self.weight_binarizer, self.input_binarizer = weight_binarizer, input_binarizer
        self.frozen_level: Tensor | None
        self.register_buffer("frozen_level", None, persistent=False)
        self.set_stage(2)

    @classmethod
    def of(cls, linear: nn.Linear, **options: Any) -> "BinaryLinear":
        """Make a layer with the parameters of ``linear`` and further arguments ``options``."""
        with torch.device("meta"):  # uses no memory and no random numbers; all is replaced
            binary = cls(linear.in_features, linear.out_features, **options)
        binary.weight, binary.bias = linear.weight, linear.bias
        return binary.train(linear.training)

    def set_stage(self, stage: int) -> None:
        """Enter a stage of training: 0 (float), 1 (binary weights) or 2 (binary inputs, too).

        In a layer with ``weights=False``, weights always stay float; with ``inputs=False``, inputs
        do.
        """
        self.stage = stage
        if self.frozen_level is None:
            self.binary_weights = self.weights and stage >= 1
            self.binary_inputs = self.inputs and stage >= 2

    def forward(self, x: Tensor, dropout: nn.Module | None = None) -> Tensor:
        """Map K inputs ``x`` ``[..., K]`` to N outputs; apply ``dropout`` after binarization."""
        if self.binary_weights and self.binary_inputs:
            return self._binary_forward(x, dropout)
        if self.binary_inputs:
            x = self.input_binarizer(x) / self.scale
        if dropout is not None:
            x = dropout(x)
        if not self.binary_weights or self.frozen_level is not None:
            return F.linear(x, self.weight, self.bias)
        return _Product.apply(x, self.weight, self.bias, self._levels(), None, None, 1.0)

    def _binary_forward(self, x: Tensor, dropout: nn.Module | None) -> Tensor:
        inputs, scale, mask = self.input_binarizer.levels(x), self.scale, None
        if dropout is not None and (p := active_rate(dropout)):
            mask, scale_up = draw(x, p)
            scale = scale / scale_up if scale_up else math.inf  # inf: all is dropped
        if self.frozen_level is not None:  # `weight` has only signs
            with torch.no_grad():
                signs, level = _signs(x, inputs, mask), inputs.level / scale
                return _binary_product(signs, level, self.weight, self.frozen_level, self.bias)
        return _Product.apply(x, self.weight, self.bias, self._levels(), inputs, mask, scale)

    def binarized_weight(self) -> Tensor:
        """Return the weights ``[N outputs, K inputs]``: binarized, or latent in a float stage."""
        if not self.binary_weights:
            return self.weight
        if self.frozen_level is not None:
            return self.weight * self.frozen_level
        return self.weight_binarizer(self.weight, GRANULARITIES[self.granularity])

    @torch.no_grad()
    def signs(self) -> tuple[Tensor, Tensor]:
        """Binarize the weights: return signs ``[N, K]`` (int8, ±1 or 0), levels ``[N]`` (fp32)."""
        weight = self.binarized_weight().float()
        ternary = self.weight_binarizer.kind == TERNARY
        signs = weight.sign() if ternary else signs_of(weight)  # `sign` would be 0 at level 0
        return signs.to(torch.int8), weight.abs().amax(1)

    def _levels(self) -> Levels:
        return self.weight_binarizer.levels(self.weight, GRANULARITIES[self.granularity])

    @torch.no_grad()
    def make_generation_fast_(self, **unused: Any) -> None:
        """Replace the latent weights by binary ones; fairseq calls this before generation."""
        if not self.binary_weights or self.frozen_level is not None:
            return
        levels = self._levels()
        level, weight = levels.level, levels.signs(self.weight)
        if not self.binary_inputs:  # a product with floats reads W_b itself
            weight, level = weight.mul_(level), torch.ones_like(level)
        self.weight.data, self.frozen_level = weight, level

    def _load_from_state_dict(
        self, state_dict: Mapping[str, Tensor], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        if f"{prefix}weight" in state_dict:  # a saved `weight` is latent
            self.frozen_level = None
            self.set_stage(self.stage)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def extra_repr(self) -> str:
        ternary = self.weight_binarizer.kind == TERNARY
        size = ("1.58" if ternary else "1") if self.binary_weights else "32"
        bits = f"weight_bits={size}"
        return f"{super().extra_repr()}, {bits}, input_bits={1 if self.binary_inputs else 32}"


class FeedForwardOutput(nn.Module):
    """The second layer of a binary feed-forward network: ``LN(LN(h)_b W_2b + b_2)`` (section 3.4).

    An index b means binarized. ``h = max(0, A_b W_1b + b_1)`` is the output of the first layer for
    the input ``A``. It is never negative; the inner norm centres it, so that both signs occur.

    Args:
        linear: the layer with ``W_2`` and ``b_2``.
        dropout: dropout for the normalized ``h``.
        norms: whether to apply both norms; False applies neither.
        dropout_first: whether dropout precedes binarization, as in the paper's code. If so, a
            dropped number becomes ``+B/2`` (``B`` is the bound of :class:`BinaryLinear`); if not,
            it counts as 0.
    """

    def __init__(
        self,
        linear: BinaryLinear,
        dropout: nn.Module,
        norms: bool = True,
        dropout_first: bool = False,
    ) -> None:
        super().__init__()
        self.linear, self.dropout, self.dropout_first = linear, dropout, dropout_first
        self.input_norm = nn.LayerNorm(linear.in_features) if norms else nn.Identity()
        self.output_norm = nn.LayerNorm(linear.out_features) if norms else nn.Identity()

    def forward(self, hidden: Tensor) -> Tensor:
        """Compute the C outputs ``[..., C]`` from the F hidden units ``[..., F]``."""
        x = self.input_norm(hidden)
        if self.dropout_first:
            return self.output_norm(self.linear(self.dropout(x)))
        return self.output_norm(self.linear(x, self.dropout))
