"""Half precision: save and restore the master weights and the loss scaler.

The optimizer updates a float32 copy of the weights, but fairseq saves only their half-precision
version.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fairseq_ext.plugin.table import Layer, Patch, around

SCALER_COUNTERS = ("_iter", "_last_overflow_iter", "_last_rescale_iter", "_overflows_since_rescale")


def _master_weights(optimizer: Any) -> list[torch.Tensor]:
    weights = getattr(optimizer, "fp32_params", [])
    return list(weights.values()) if isinstance(weights, dict) else list(weights)


@around
def save_half_precision(original: Callable, self: Any) -> dict[str, Any]:
    state = original(self)
    if weights := _master_weights(self):
        state["fp32_params"] = [tensor.data for tensor in weights]
    if self.scaler is not None:
        state["scaler"] = {name: getattr(self.scaler, name) for name in SCALER_COUNTERS}
    return state


@around
def restore_half_precision(
    original: Callable, self: Any, state: dict[str, Any], *args: Any, **kwargs: Any
) -> None:
    original(self, state, *args, **kwargs)
    saved = state.get("fp32_params", [])
    weights = _master_weights(self)
    if [tensor.shape for tensor in weights] == [tensor.shape for tensor in saved]:
        for tensor, old in zip(weights, saved, strict=True):
            tensor.data.copy_(old)
    if self.scaler is not None:
        vars(self.scaler).update(state.get("scaler", {}))


@around
def save_loss_scale(original: Callable, self: Any) -> dict[str, Any]:
    return {**original(self), "grad_scaler": self.scaler.state_dict()}


@around
def restore_loss_scale(
    original: Callable, self: Any, state: dict[str, Any], *args: Any, **kwargs: Any
) -> None:
    original(self, state, *args, **kwargs)
    if state.get("grad_scaler"):
        self.scaler.load_state_dict(state["grad_scaler"])


PATCHES = (
    Patch(
        name="half precision after resume",
        kind="repair",
        reason="float32 master weights and the state of the loss scaler are not stored",
        layers=(
            *(
                Layer(f"fairseq.optim:{optimizer}.{method}", wrapper)
                for optimizer in ("FP16Optimizer", "MemoryEfficientFP16Optimizer")
                for method, wrapper in (
                    ("state_dict", save_half_precision),
                    ("load_state_dict", restore_half_precision),
                )
            ),
            Layer("fairseq.optim:AMPOptimizer.state_dict", save_loss_scale),
            Layer("fairseq.optim:AMPOptimizer.load_state_dict", restore_loss_scale),
        ),
    ),
)
