"""Whether a model is what its classes say: no code of its own, nothing hooked on, finite weights.

A program is made of a model's weights and options alone. What else changes its results, such as an
adapter in a subclass of ``nn.Linear``, would be left out without a word.
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
"""Methods that compute, of a model and of its parts. Its own ``forward`` is the training's."""

OURS = "fairseq_ext"
LIBRARIES = ("torch", "fairseq", "apex", OURS)
"""Packages whose methods an entry of the compilers' tables may stand for."""

QUANT_NOISE = "fairseq.modules.quant_noise"  # its hook does nothing outside training


def require(condition: bool, what: str) -> None:
    """Refuse a model that uses something the engine does not support.

    Raises:
        ConfigError: the condition does not hold.
    """
    if not condition:
        raise ConfigError(f"the engine has no {what}.")


def require_methods(module: nn.Module, base: type, names: Sequence[str]) -> None:
    """Refuse a module with methods that are neither those of ``base`` nor this package's.

    Raises:
        ConfigError: it has one.
    """
    for name in names:
        method = _method(module, name)
        same = method is getattr(base, name, None) or _package(method) == OURS
        require(same, type(module).__name__)


def require_no_additions(model: nn.Module) -> None:
    """Refuse a model that others than its libraries have added something to.

    Raises:
        ConfigError: a part with code of its own, a hook or a parametrization.
    """
    for module in model.modules():
        name = type(module).__name__
        require(not parametrize.is_parametrized(module), f"parametrization, as of {name}")
        hooks = [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]
        for hook in hooks:
            require(getattr(hook, "__module__", "") == QUANT_NOISE, f"hook, as on {name}")
        for method in MODEL if module is model else {*ENCODER, *DECODER, *LAYER}:
            require(_package(_method(module, method)) in (None, *LIBRARIES), name)


def _method(module: nn.Module, name: str) -> Any:
    """The function that a call ends in; activation checkpoints only wrap it."""
    if name == "forward" and hasattr(module, "precheckpoint_forward"):
        name = "precheckpoint_forward"
    method = getattr(module, name, None)
    return getattr(method, "__func__", method)


def _package(method: Any) -> str | None:
    """That it was written in; None without a method."""
    return None if method is None else str(method.__module__).partition(".")[0]


def require_finite(matrices: Iterable[Matrix | Signs], model: nn.Module) -> None:
    """Refuse weights that are NaN or infinite: they would give plausible translations.

    Args:
        matrices: the weights of a program.
        model: that it was made of, whose parameters the message names.

    Raises:
        CheckpointError: there is one.
    """
    if all(_finite(one.levels if isinstance(one, Signs) else one.values) for one in matrices):
        return
    broken = [name for name, one in model.named_parameters() if not one.isfinite().all()]
    where = f" ({broken[0]})" if broken else ""
    raise CheckpointError(
        f"weights of the model{where} are not finite; the training has diverged. Take an earlier "
        "checkpoint."
    )


def _finite(values: np.ndarray) -> bool:
    """Whether all numbers are; their sum, which is quick, may overflow without need."""
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(values.sum()) or np.isfinite(values).all())
