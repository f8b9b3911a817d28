"""Add options to fairseq's own groups of options."""

import dataclasses
from collections.abc import Mapping
from typing import Any


def add(group: Any, options: Mapping[str, tuple[Any, Any, str]]) -> None:
    """Add options to one of fairseq's groups of options, and so to commands and configurations.

    fairseq-hydra-train checks a YAML file before it loads the plugin, so it accepts such an option
    only on the command line, after a plus sign (``+optimization.bf16_products=True``). The
    constructor of ``group`` does not take the new fields; set the attribute of an object instead.

    Args:
        group: the dataclass of fairseq's options that gets the fields, such as
            ``GenerationConfig``.
        options: the type, default and help text of each new field, by the field's name. The
            command-line option has the same name, with hyphens instead of underscores.
    """
    from fairseq.dataclass.initialize import hydra_init

    for name, (kind, default, text) in options.items():
        field = dataclasses.field(default=default, metadata={"help": text})
        holder: Any = dataclasses.make_dataclass("Holder", [(name, kind, field)])
        group.__dataclass_fields__ |= holder.__dataclass_fields__
        group.__annotations__ |= holder.__annotations__
        setattr(group, name, default)
    hydra_init()
