"""Declare a command's options as fields of a dataclass: name, type, default and help together."""

import argparse
import dataclasses
import types
import typing
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from fairseq_ext.utils.errors import wrong_value

T = TypeVar("T")
_OPTION = "option"
METAVARS = {int: "N", float: "N", Path: "FILE"}
"""The name of an option's value in the help, by its type."""


class Once(argparse.Action):
    """An action of argparse that stores an option's value, but refuses a second value."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: Any = None) -> None:
        if getattr(namespace, self.dest) is not self.default:
            parser.error(f"`{option_string}` is given twice, but takes one value; leave one out.")
        setattr(namespace, self.dest, values)


def option(default: Any = dataclasses.MISSING, help: str = "", *names: str, **settings: Any) -> Any:
    """Declare a dataclass field that :func:`add_options` turns into a command-line option.

    An option without a default is required. ``names`` replace the flag made from the field's name;
    a name without ``--`` makes a positional argument. Type, action and metavar follow from the
    field's annotation; ``settings`` of ``add_argument`` replace them.
    """
    metadata = {_OPTION: {"names": names, "help": help, **settings}}
    if isinstance(default, list):
        return dataclasses.field(default_factory=default.copy, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def flag(name: str) -> str:
    """Return the flag of the option for a field: ``--max-tokens`` for ``max_tokens``."""
    return f"--{name.replace('_', '-')}"


def specified(args: Any, names: Iterable[str]) -> dict[str, Any]:
    """Return the values of the options ``names`` that are set (not None), by name."""
    return {name: value for name in names if (value := getattr(args, name)) is not None}


def require_at_least(options: Any, **minima: int) -> None:
    """Raise ConfigError if an option in ``options`` is below its minimum, such as ``beam=1``."""
    for name, minimum in minima.items():
        if (value := getattr(options, name)) < minimum:
            raise wrong_value(flag(name), f"at least {minimum}", value)


def add_options(parser: Any, kind: type, names: Collection[str] = ()) -> None:
    """Add options to a parser for all fields of the dataclass ``kind``, or only for ``names``."""
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        if _OPTION not in field.metadata or (names and field.name not in names):
            continue
        settings = dict(field.metadata[_OPTION])
        flags = settings.pop("names") or (flag(field.name),)
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        implied = _of_type(hints[field.name], default)
        if flags[0].startswith("-"):
            settings |= {"dest": field.name, "required": default is dataclasses.MISSING}
            if settings.get("nargs") in ("+", "*"):
                implied["action"] = "extend"  # if given again, argparse would forget earlier values
        else:
            implied.pop("metavar", None)  # a positional argument is shown by its own name
        if default is not dataclasses.MISSING:
            settings["default"] = default
        parser.add_argument(*flags, **{**implied, **settings})


def _of_type(hint: Any, default: Any) -> dict[str, Any]:
    """Return the settings of ``add_argument`` for a field's annotation and default."""
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    kind = kinds[0]
    if kind is bool:
        return {"action": "store_true" if default is False else argparse.BooleanOptionalAction}
    if typing.get_origin(kind) is Sequence:
        (kind,) = typing.get_args(kind)
    return {"type": kind, "metavar": METAVARS[kind]} if kind in METAVARS else {}


def from_args(kind: type[T], args: argparse.Namespace) -> T:
    """Fill a dataclass, and the dataclasses in its fields, with the arguments named like fields."""
    hints = typing.get_type_hints(kind)
    values: dict[str, Any] = {}
    for name in (field.name for field in dataclasses.fields(kind)):  # type: ignore[arg-type]
        if dataclasses.is_dataclass(hints[name]):
            values[name] = from_args(hints[name], args)  # type: ignore[arg-type]
        elif hasattr(args, name):
            values[name] = getattr(args, name)
    return kind(**values)
