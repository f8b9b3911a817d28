"""Add options to fairseq's own groups of options."""

import dataclasses
from collections.abc import Mapping
from typing import Any


def add(group: Any, options: Mapping[str, tuple[Any, Any, str]]) -> None:
    """Add options to fairseq's commands and its configuration, unless they have been added before.

    fairseq-hydra-train checks a YAML file before it loads the plugin, so it accepts such an option
    only on the command line, after a plus sign. The constructor of ``group`` does not take them;
    set the attribute instead.

    Args:
        group: the dataclass of fairseq's options that gets the fields, such as
            ``GenerationConfig``.
        options: by the name of a field, its type, default and help text. With hyphens, the name is
            that of the option.
    """
    from fairseq.dataclass.initialize import hydra_init

    if options.keys() <= group.__dataclass_fields__.keys():
        return
    for name, (kind, default, text) in options.items():
        field = dataclasses.field(default=default, metadata={"help": text})
        holder = dataclasses.make_dataclass("Holder", [(name, kind, field)])
        (group.__dataclass_fields__[name],) = dataclasses.fields(holder)
        group.__annotations__[name] = kind
        setattr(group, name, default)
    hydra_init()
