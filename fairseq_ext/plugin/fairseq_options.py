"""Add options to fairseq's own groups of options."""

import dataclasses
from typing import Any


def add(group: Any, name: str, kind: Any, default: Any, text: str) -> None:
    """Add an option to fairseq's commands and YAML files, unless it has been added before.

    Args:
        group: the dataclass of fairseq's options that gets the field, such as ``GenerationConfig``.
        name: name of the field; with hyphens, the name of the option.
        kind, default: type and default of the field.
        text: help text.
    """
    from fairseq.dataclass.initialize import hydra_init

    if name in group.__dataclass_fields__:
        return
    field = dataclasses.field(default=default, metadata={"help": text})
    holder = dataclasses.make_dataclass("Holder", [(name, kind, field)])
    (group.__dataclass_fields__[name],) = dataclasses.fields(holder)
    group.__annotations__[name] = kind
    setattr(group, name, default)
    hydra_init()
