"""Report missing, misspelt or unsuitable options before anything is loaded."""

from __future__ import annotations

import logging
import re
import types
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from typing import Any, NoReturn

from fairseq_ext.plugin.checks.ignored_options import name_ignored
from fairseq_ext.plugin.table import Patch, around
from fairseq_ext.utils.errors import ConfigError
from fairseq_ext.utils.parsing import Parser


def _keep_options_out_of_the_log() -> None:
    """Keep fairseq from logging several hundred options before our message of one line."""
    logging.getLogger("fairseq.dataclass.utils").addFilter(
        lambda record: not str(record.msg).startswith("Error when composing")
    )


@around("fairseq.options:parse_args_and_arch")
def _parse_args_and_arch(
    original: Callable, parser: ArgumentParser, *rest: Any, **options: Any
) -> Any:
    parser.error = types.MethodType(_error, parser)
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
        raise ConfigError(
            "`--arch` is missing; give for example `--arch gru_attention`, or one of those "
            "that `--help` lists."
        ) from error
    args = parsed[0] if isinstance(parsed, tuple) else parsed
    if not rest and "input_args" not in options:
        name_ignored(parser, args)
    refuse_misfit(args)
    return parsed


@around("fairseq.options:add_preprocess_args")
def _add_preprocess_args(original: Callable, parser: ArgumentParser) -> Any:
    """Print our messages in `fairseq-preprocess` too, which has a parser of its own."""
    parser.error = types.MethodType(Parser.error, parser)
    return original(parser)


def _error(parser: ArgumentParser, message: str) -> NoReturn:
    """Print our message; if an option belongs to other architectures, name them."""
    from fairseq_ext.base import models

    if message.startswith("unrecognized arguments: "):
        options = re.findall(r"--([\w-]+)", message)
        owners = {name: models.models_with(name.replace("-", "_")) for name in options}
        name = next((name for name in options if owners[name]), None)
        if name is not None:
            architectures = ", ".join(owners[name])
            message = (
                f"`--{name}` is an option of {architectures} alone; leave it out, or give their "
                "`--arch`."
            )
    Parser.error(parser, message)


def refuse_misfit(args: Namespace) -> None:
    """Refuse an architecture that is not made for the task."""
    from fairseq import models
    from fairseq.tasks import TASK_REGISTRY
    from fairseq.tasks.language_modeling import LanguageModelingTask
    from fairseq.tasks.multilingual_translation import MultilingualTranslationTask
    from fairseq.tasks.translation import TranslationTask

    arch, name = getattr(args, "arch", None), getattr(args, "task", None)
    model, task = models.ARCH_MODEL_REGISTRY.get(arch), TASK_REGISTRY.get(name)
    if model is None or task is None:
        return
    for kind, fits, plural in (
        (LanguageModelingTask, models.FairseqLanguageModel, "language models"),
        (MultilingualTranslationTask, models.FairseqMultiModel, "models of several languages"),
    ):
        if issubclass(task, kind) and not issubclass(model, fits):
            raise ConfigError(
                f"`--task {name}` is for {plural}, but `--arch {arch}` is none. Give `--task "
                "translation` if it translates, or another architecture."
            )
    untranslating = (models.FairseqLanguageModel, models.FairseqEncoderModel)
    if issubclass(task, TranslationTask) and issubclass(model, untranslating):
        raise ConfigError(
            f"`--task {name}` is for models that translate, but `--arch {arch}` does not. Give "
            "another task or architecture."
        )


@around("fairseq.dataclass.utils:compose")
def _compose(original: Callable, *arguments: Any, overrides: list[str], **options: Any) -> Any:
    """Report an option that has no value, or one of a wrong type."""
    from hydra.errors import ConfigCompositionException

    try:
        return original(*arguments, overrides=overrides, **options)
    except ConfigCompositionException as error:
        override = re.search(r"override (\w+)\.(\w+)=(.*)", str(error))
        if override is None:
            raise
        group, field, value = override.groups()
        option = f"`--{field.replace('_', '-')}`"
        choices = [
            override for override in overrides if re.match(rf"{group}=|{group}\._name=", override)
        ]
        name = f"`--{group} {choices[-1].partition('=')[2]}`" if choices else f"`{group}`"
        name = name.replace("--model", "--arch").replace("_", "-", name.count("--lr_"))
        if value == "null":
            raise ConfigError(f"{option} is missing, but {name} needs it.") from error
        reason = str(error.__cause__ or "").partition("\n")[0]
        raise ConfigError(f"{option} cannot be `{value}` with {name}: {reason}.") from error


PATCHES = (
    Patch(
        name="command lines",
        reason="what is missing or does not go together ends in a traceback, and what is misspelt "
        "in a page of names",
        layers=(_parse_args_and_arch, _add_preprocess_args, _compose),
        act=_keep_options_out_of_the_log,
    ),
)
