"""Report missing, misspelt or unsuitable options, and options that have no effect.

fairseq's parsers share groups of options, so a command also accepts options that it never reads,
such as `--fp16` in fairseq-preprocess. Other options have an effect only with a certain option,
only without a certain option, or only in some tasks. ``options.ini`` lists all these options.
"""

import configparser
import logging
import os
import re
import sys
import types
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fairseq_ext.checkpoints.registry_checks import misfit
from fairseq_ext.plugin.patching import acting, around
from fairseq_ext.utils.errors import ConfigError
from fairseq_ext.utils.option_fields import flag
from fairseq_ext.utils.parsing import Parser

COMMANDS = ("train", "generate", "interactive", "preprocess")
OFF = (None, False, 0, -1, "")  # values that leave an option switched off
TABLES = configparser.ConfigParser()
TABLES.read(Path(__file__).with_name("options.ini"), encoding="utf-8")


def names_before(section: str) -> dict[str, tuple[str, ...]]:
    """Read a section of ``options.ini`` as ``{option: names}``.

    The file has entries ``NAMES = OPTIONS``. The names are commands, tasks or other options, as the
    comment on the section says.
    """
    names: dict[str, tuple[str, ...]] = {}
    for before, options in TABLES.items(section):
        for option in options.split():
            names[option] = (*names.get(option, ()), *before.split())
    return names


IGNORED, REFUSED = names_before("ignored"), names_before("refused")
ONLY_WITH, NOT_WITH = names_before("only with"), names_before("not with")
ONLY_IN_TASK, NOT_IN_TASK = names_before("only in task"), names_before("not in task")


@acting("command lines")
def _keep_options_out_of_the_log() -> None:
    """Keep fairseq from logging several hundred options before :func:`_compose` reports an error.

    Problem: If options are missing or conflict, fairseq logs all options and prints a traceback. If
    an option is misspelt, fairseq prints a page that lists all options.
    """
    logging.getLogger("fairseq.dataclass.utils").addFilter(
        lambda record: not str(record.msg).startswith("Error when composing")
    )


@around("fairseq.options:parse_args_and_arch", patch="command lines")
def _parse_args_and_arch(
    original: Callable, parser: ArgumentParser, *rest: Any, **options: Any
) -> Any:
    from fairseq.models import ARCH_MODEL_REGISTRY
    from fairseq.tasks import TASK_REGISTRY

    parser.error = types.MethodType(Parser.error, parser)  # type: ignore[method-assign]
    try:
        parsed = original(parser, *rest, **options)
    except KeyError as error:
        if error.args != (None,):
            raise
        # fairseq-validate has no default task
        raise ConfigError("`--task` is missing; give `--task translation`.") from error
    except RuntimeError as error:
        if error.args:
            raise
        raise ConfigError("`--arch` is missing; give one that `--help` lists.") from error
    args = parsed[0] if isinstance(parsed, tuple) else parsed
    if not rest and "input_args" not in options:
        name_ignored(parser, args)
    arch, name = getattr(args, "arch", None), getattr(args, "task", None)
    model, task = ARCH_MODEL_REGISTRY.get(arch), TASK_REGISTRY.get(name)
    is_default = arch == parser.get_default("arch")  # wav2vec2 in fairseq-generate
    if model and task and not is_default and misfit(task, model):
        raise ConfigError(
            f"`--task {name}` does not go with `--arch {arch}`; give another task or architecture."
        )
    return parsed


@around("fairseq.options:add_preprocess_args", patch="command lines")
def _add_preprocess_args(original: Callable, parser: ArgumentParser) -> Any:
    """Add fairseq-preprocess's options to ``parser``; make it report a wrong option in one line."""
    parser.error = types.MethodType(Parser.error, parser)  # type: ignore[method-assign]
    return original(parser)


@around("fairseq.dataclass.utils:compose", patch="command lines")
def _compose(original: Callable, *arguments: Any, overrides: list[str], **options: Any) -> Any:
    """Compose fairseq's configuration; raise ConfigError for a missing option or a wrong type.

    ``overrides`` are the options as Hydra writes them, such as ``dataset.max_tokens=4000``.
    """
    from hydra.errors import ConfigCompositionException

    try:
        return original(*arguments, overrides=overrides, **options)
    except ConfigCompositionException as error:
        override = re.search(r"override \w+\.(\w+)=(.*)", str(error))
        if override is None:
            raise
        option, value = override[1].replace("_", "-"), override[2]
        if value == "null":
            raise ConfigError(f"`--{option}` is missing, but the other options need it.") from error
        reason = str(error.__cause__ or "").partition("\n")[0]
        raise ConfigError(f"`--{option}` cannot be `{value}`: {reason}.") from error


def name_ignored(parser: ArgumentParser, args: Namespace) -> None:
    """Print one line for each option of this process's command line that has no effect.

    ``args`` is what ``parser`` has read. Raise :class:`ConfigError` for an option with which the
    command cannot work (:data:`REFUSED`).
    """
    from fairseq_ext.base import models

    command = Path(sys.argv[0]).name.removeprefix("fairseq-")
    if command not in COMMANDS or os.environ.get("RANK", "0") != "0":
        return
    task = getattr(args, "task", None) or ""
    missing = models.options_without_effect(args)
    dests = {action.dest for action in parser._actions}
    used = {name for name, value in vars(args).items() if value not in OFF}
    for name, option in _options_given(parser, sys.argv[1:]).items():
        prerequisites, tasks = ONLY_WITH.get(name, ()), ONLY_IN_TASK.get(name, (task,))
        conflicts = [other for other in NOT_WITH.get(name, ()) if other in used]
        if command in REFUSED.get(name, ()) and (name not in ONLY_IN_TASK or task not in tasks):
            raise ConfigError(f"`{option}` does not work with fairseq-{command}; leave it out.")
        reason = f"without {missing[name]}" if name in missing else ""
        if command in IGNORED.get(name, ()):
            reason = "here"
        elif task in NOT_IN_TASK.get(name, ()) or (
            task.startswith("translation") and task not in tasks
        ):
            reason = "in this task"
        elif conflicts:
            reason = f"with `{flag(conflicts[0])}`"
        elif dests & {*prerequisites} and not used & {*prerequisites}:
            reason = f"without {' or '.join(f'`{flag(other)}`' for other in prerequisites)}"
        if reason:
            print(f"fairseq-{command}: `{option}` has no effect {reason}.", file=sys.stderr)


def _options_given(parser: ArgumentParser, command_line: Sequence[str]) -> dict[str, str]:
    """Map each option's ``dest`` to its flag as it was written: ``{"max_tokens": "--max-tok"}``."""
    options: dict[str, str] = {}
    actions = parser._option_string_actions
    for word in (word.partition("=")[0] for word in command_line if word.startswith("--")):
        names = [word] if word in actions else [name for name in actions if name.startswith(word)]
        stored = {actions[name].dest for name in names}
        if len(stored) == 1:
            options[stored.pop()] = word
    return options
