"""Register models and architectures, and refuse names that are already taken."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from typing import Any, TypeVar

from fairseq.dataclass import FairseqDataclass
from fairseq.models import (
    ARCH_MODEL_REGISTRY,
    MODEL_DATACLASS_REGISTRY,
    MODEL_REGISTRY,
    register_model_architecture,
)
from fairseq.models import register_model as fairseq_register_model

from fairseq_ext.utils.errors import EnvironmentProblem

Model = TypeVar("Model", bound=type)


def register_model(name: str, dataclass: type[FairseqDataclass]) -> Callable[[Model], Model]:
    """Register a model with fairseq, but refuse a name that is already taken.

    Raises:
        EnvironmentProblem: another class has the name. fairseq would silently keep that class.
    """

    def register(cls: Model) -> Model:
        refuse_taken(name, cls)
        return fairseq_register_model(name, dataclass=dataclass)(cls)

    return register


def register_architecture(model_name: str, name: str, **defaults: Any) -> None:
    """Register a named architecture: a model with its own defaults.

    Raises:
        EnvironmentProblem: the name is taken.
        TypeError: a default is not an option of the model.
    """
    unknown = defaults.keys() - MODEL_DATACLASS_REGISTRY[model_name].__dataclass_fields__
    if unknown:
        raise TypeError(f"{name}: {sorted(unknown)} are not options of {model_name}")
    refuse_taken(name, MODEL_REGISTRY[model_name])

    def set_defaults(args: Namespace) -> None:
        for option, value in defaults.items():
            if not hasattr(args, option):
                setattr(args, option, value)

    register_model_architecture(model_name, name)(set_defaults)


def refuse_taken(name: str, cls: type) -> None:
    """Raise :class:`EnvironmentProblem` if a model or architecture already has this name."""
    registered = MODEL_REGISTRY.get(name) or ARCH_MODEL_REGISTRY.get(name)
    if registered is not None:
        raise EnvironmentProblem(
            f"the model name `{name}` of {cls.__module__} is already taken by "
            f"{registered.__module__}.{registered.__qualname__}. Load only one of the two plugins "
            "(look at --user-dir), or rename the other one's model."
        )


def models_with(option: str) -> list[str]:
    """Return our models that have an option such as ``binary_weights``, in alphabetical order."""
    return sorted(
        name
        for name, config in MODEL_DATACLASS_REGISTRY.items()
        if MODEL_REGISTRY[name].__module__.startswith("fairseq_ext.")
        and option in config.__dataclass_fields__
    )
