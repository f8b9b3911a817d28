"""Refuse models with code of their own, hooks, or weights that are not finite.

A program is made only from a model's weights and options. Anything else that changes its results,
such as an adapter in a subclass of ``nn.Linear``, would be left out silently.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from torch import nn
from torch.nn.utils import parametrize

from fairseq_ext.engine.program import Matrix, Signs
from fairseq_ext.utils.errors import CheckpointError, ConfigError

MODEL = ("get_normalized_probs", "get_normalized_probs_scriptable")
ENCODER = ("forward", "forward_scriptable", "forward_torchscript", "forward_embedding")
DECODER = (
    *("forward", "extract_features", "extract_features_scriptable", "output_layer"),
    *MODEL,
)
LAYER = ("forward", "residual_connection")
"""Methods in which a layer computes, like the tuples above for a model's other parts."""

OURS = "fairseq_ext"
LIBRARIES = ("torch", "fairseq", "apex", OURS)
"""Packages whose methods an entry of the compilers' tables may stand for."""

QUANT_NOISE = "fairseq.modules.quant_noise"  # its hook does nothing outside training


def require(condition: bool, feature: str) -> None:
    """Refuse a model that uses something the engine does not support."""
    if not condition:
        raise ConfigError(f"the engine has no {feature}.")


def require_methods(module: nn.Module, base: type, names: Sequence[str]) -> None:
    """Refuse a module that overrides methods of ``base``, unless this package does so."""
    for name in names:
        method = _method(module, name)
        unchanged = method is getattr(base, name, None) or _package(method) == OURS
        require(unchanged, type(module).__name__)


def require_no_additions(model: nn.Module) -> None:
    """Refuse a model with code, hooks or parametrizations from outside its libraries."""
    for module in model.modules():
        name = type(module).__name__
        require(not parametrize.is_parametrized(module), f"parametrization, as of {name}")
        hooks = [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]
        for hook in hooks:
            require(getattr(hook, "__module__", "") == QUANT_NOISE, f"hook, as on {name}")
        for method in MODEL if module is model else {*ENCODER, *DECODER, *LAYER}:
            require(_package(_method(module, method)) in (None, *LIBRARIES), name)


def _method(module: nn.Module, name: str) -> Any:
    """Return the function that a method runs, without a wrapper for activation checkpointing."""
    if name == "forward" and hasattr(module, "precheckpoint_forward"):
        name = "precheckpoint_forward"
    method = getattr(module, name, None)
    return getattr(method, "__func__", method)


def _package(method: Any) -> str | None:
    """Return the top-level package that defines a method; None without a method."""
    return None if method is None else str(method.__module__).partition(".")[0]


def require_finite(matrices: Iterable[Matrix | Signs], model: nn.Module) -> None:
    """Refuse weights that are NaN or infinite, because translations could look plausible."""
    arrays = (matrix.levels if isinstance(matrix, Signs) else matrix.values for matrix in matrices)
    if all(np.isfinite(array).all() for array in arrays):
        return
    broken = [
        name for name, parameter in model.named_parameters() if not parameter.isfinite().all()
    ]
    where = f" ({broken[0]})" if broken else ""
    raise CheckpointError(
        f"weights of the model{where} are not finite; the training has diverged. Take an earlier "
        "checkpoint."
    )
