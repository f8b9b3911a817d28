#!/usr/bin/env python
"""Print the flags, one per line, that make fairseq-train build the model of a bundle.

    python recipes/finetune_flags.py BUNDLE

A bundle is a shipped model. The flags are its options of architecture and task, as far as they
differ from the defaults. Use them with ``fairseq-train … --finetune-from-model BUNDLE``.
"""

import argparse
import sys
from collections.abc import Iterator
from typing import Any

from fairseq_ext import register
from fairseq_ext.checkpoints import bundle
from fairseq_ext.utils.errors import ConfigError, FairseqExtError

OF_THE_DATA = {"data", "source_lang", "target_lang"}


def flags(path: str) -> Iterator[str]:
    """Yield the flags that make fairseq-train build the model of the bundle ``path``.

    Raise ConfigError if an option is off in the bundle, but no flag can switch it off.
    """
    register()
    from fairseq import options
    from fairseq.models import ARCH_MODEL_REGISTRY
    from fairseq.tasks import TASK_REGISTRY

    cfg = bundle.configuration(bundle.read(path))["cfg"]
    arch = cfg["model"].get("arch") or cfg["model"]["_name"]
    task = cfg["task"]["_name"]
    names = ["--arch", arch, "--task", task]
    yield from names
    parser = options.get_training_parser()
    defaults = options.parse_args_and_arch(parser, [".", *names])
    for kind, values in (
        (ARCH_MODEL_REGISTRY[arch], cfg["model"]),
        (TASK_REGISTRY[task], cfg["task"]),
    ):
        part = argparse.ArgumentParser(argument_default=argparse.SUPPRESS, allow_abbrev=False)
        kind.add_args(part)
        for action in part._actions:
            name = action.dest
            if name in values and name not in OF_THE_DATA and action.option_strings:
                yield from _flag(action, values[name], getattr(defaults, name, None))


def _flag(action: argparse.Action, value: Any, default: Any) -> Iterator[str]:
    flag = action.option_strings[-1]
    if value is None or str(value) == str(default):
        return
    if action.nargs == 0:
        if value is action.const:
            yield flag
        elif default is not None:  # a default that the architecture sets
            raise ConfigError(f"`{flag}` is the default, but the model was trained without it.")
    elif isinstance(value, list) and action.nargs in ("*", "+"):
        yield from (flag, *map(str, value))
    else:
        text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
        yield f"{flag}={f'[{text}]' if isinstance(default, list) else text}"


if __name__ == "__main__":
    try:
        print("\n".join(flags(sys.argv[1])))
    except FairseqExtError as error:
        sys.exit(f"finetune_flags.py: error: {error}")
