"""Files from elsewhere: checked before anything is built from them, refused in one line.

A checkpoint names its architecture, its task, its criterion and hundreds of options. Each must be
what the command needs before fairseq builds from it, and whatever a made-up configuration leads to
afterwards becomes one message that names the file. What fairseq does with a saved ``user_dir``
(nothing) and with other paths (it reads them) stays as it is.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fairseq_ext.checkpoints import layout, storage, untrusted
from fairseq_ext.errors import CheckpointError, ConfigError, FairseqExtError
from fairseq_ext.plugin.patches.literals import LiteralError, shown
from fairseq_ext.plugin.patches.table import Layer, Patch

ADVICE = "Do not use this file unless you know who made it."


def check(path: str | Path, state: Mapping[str, Any]) -> None:
    """Refuse a checkpoint whose configuration would be resolved, or names what fairseq lacks.

    Args:
        path: for the message.
        state: from :func:`fairseq_ext.checkpoints.storage.load`, so plain data.

    Raises:
        CheckpointError: see above.
    """
    with about(path):
        for part in ("cfg", "args"):
            untrusted.require_inert(state.get(part))
        position = layout.position(state)
        for name in ("epoch", "iterations_in_epoch"):
            if not isinstance(position.get(name, 0), int):
                raise CheckpointError(f"has no number as its `{name}`")
    args = state.get("args")
    if args is not None:
        _check_names(path, args)


def _check_names(path: str | Path, args: Any) -> None:
    """The old form of a configuration: fairseq takes names in it for files of its own."""
    from fairseq.models import ARCH_MODEL_REGISTRY
    from fairseq.registry import REGISTRIES
    from fairseq.tasks import TASK_REGISTRY

    if not isinstance(args, Namespace):
        raise CheckpointError(f"{path} has no options in its `args`. {ADVICE}")
    known = {"arch": ARCH_MODEL_REGISTRY, "task": TASK_REGISTRY}
    known |= {kind: registry["registry"] for kind, registry in REGISTRIES.items()}
    for kind, registry in known.items():
        name = getattr(args, kind, None)
        if name is not None and not (isinstance(name, str) and name in registry):
            raise _unknown(path, kind, name)


def _unknown(path: str | Path, kind: str, name: Any) -> CheckpointError:
    return CheckpointError(
        f"{path} names the {kind} {name!r:.60}, which is not registered here; `--user-dir` must "
        "be the folder of the code that it was trained with."
    )


@contextmanager
def about(path: str | Path) -> Iterator[None]:
    """Errors of the block as one message about a file; ours, and the system's, as they are."""
    try:
        yield
    except LiteralError as error:
        name = "" if str(path) in str(error) else f"{path}: "
        raise CheckpointError(f"{name}{error}") from error
    except CheckpointError as error:
        if str(path) in str(error):
            raise
        raise CheckpointError(f"{path} {str(error).rstrip('.')}. {ADVICE}") from error
    except (FairseqExtError, OSError):
        raise
    except Exception as error:  # whatever a made-up configuration leads to
        reason = (str(error).strip() or "no reason given").splitlines()[0]
        raise CheckpointError(
            f"{path} cannot be used here ({type(error).__name__}: {reason:.200}). Check that it "
            "fits the command, its options and the data."
        ) from error


def fitting(cfg: Any, task: Any, path: str | Path) -> None:
    """Check the architecture and the task of a configuration against what is to be done.

    Args:
        cfg: the checkpoint's configuration.
        task: the task that the command has set up, its class, or None for the checkpoint's own.
        path: for the message.

    Raises:
        CheckpointError: one is not registered, or they do not go together.
    """
    from fairseq.models import FairseqEncoderDecoderModel, FairseqLanguageModel
    from fairseq.tasks.language_modeling import LanguageModelingTask
    from fairseq.tasks.translation import TranslationTask

    name, model = _registered_model(cfg, path)
    kind = task if isinstance(task, type) else type(task)
    if task is None:
        kind = _registered_task(cfg, path)
    elsewhere = model.__module__.startswith("fairseq.model_parallel.")  # built of other pieces
    for family, needed, described in (
        (TranslationTask, FairseqEncoderDecoderModel, "an encoder and a decoder"),
        (LanguageModelingTask, FairseqLanguageModel, "a decoder alone"),
    ):
        if issubclass(kind, family) and not issubclass(model, needed) and not elsewhere:
            raise CheckpointError(
                f"{path} holds the architecture `{name}`, but this command needs one that has "
                f"{described}."
            )


def _registered_model(cfg: Any, path: str | Path) -> tuple[str, type]:
    from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_REGISTRY

    options = layout.section(cfg, "model")
    name = options.get("_name") or options.get("arch")
    if name is None and len(options) == 1:  # fairseq takes a section's only key for its name
        name = next(iter(options))
    found = ARCH_MODEL_REGISTRY | MODEL_REGISTRY
    if not isinstance(name, str) or name not in found:
        raise _unknown(path, "architecture", name)
    with about(path):
        untrusted.require_sizes(options.items())
    return name, ARCH_MODEL_REGISTRY.get(name) or MODEL_REGISTRY[name]


def _registered_task(cfg: Any, path: str | Path) -> type:
    from fairseq.tasks import TASK_REGISTRY

    options = layout.section(cfg, "task")
    name = options.get("task") or options.get("_name")
    if not isinstance(name, str) or name not in TASK_REGISTRY:
        raise _unknown(path, "task", name)
    return TASK_REGISTRY[name]


def require_translation(path: str | Path) -> None:
    """Check that a checkpoint is of a translation task and an architecture for it.

    Packed files are left to their own reader, and what cannot be read to the loading that follows.

    Raises:
        CheckpointError: see above, or the file cannot be read.
    """
    from fairseq.tasks.translation import TranslationTask

    if not storage.is_archive(path):
        return
    state = storage.load(path, checksums=False)
    check(path, state)
    cfg = layout.configuration(state)
    kind = _registered_task(cfg, path)
    if not issubclass(kind, TranslationTask):
        raise CheckpointError(f"{path} holds no translation model, but one for `{kind.__name__}`.")
    fitting(cfg, kind, path)


def _checked(original: Callable) -> Callable:
    """`load_checkpoint_to_cpu`, the function that every reader of checkpoints calls."""

    def load_checkpoint_to_cpu(path: str, *rest: Any, **options: Any) -> Any:
        with about(path):
            if storage.is_archive(path):
                check(path, storage.load(path, checksums=False))
            return original(path, *rest, **options)

    return load_checkpoint_to_cpu


def _one_by_one(original: Callable) -> Callable:
    """Each file is checked before it is built, and named in what goes wrong with it."""
    from fairseq import checkpoint_utils as utils

    def load_model_ensemble_and_task(
        filenames: list[str],
        arg_overrides: dict[str, Any] | None = None,
        task: Any = None,
        strict: bool = True,
        suffix: str = "",
        num_shards: int = 1,
        state: dict[str, Any] | None = None,
    ) -> tuple[list[Any], Any, Any]:
        models: list[Any] = []
        cfg = None
        for name in filenames:
            path = utils.get_maybe_sharded_checkpoint_filename(name, suffix, 0, num_shards)
            with about(path):
                loaded = state
                if loaded is None and num_shards == 1 and storage.is_archive(path):
                    loaded = utils.load_checkpoint_to_cpu(path, arg_overrides)
                arguments = ([name], arg_overrides, task, strict, suffix, num_shards)
                if loaded is None or not (loaded.get("cfg") or loaded.get("args")):
                    found, cfg, task = original(*arguments, state)
                else:
                    fitting(loaded["cfg"], task, path)
                    with untrusted.no_larger_than(loaded["model"]), _named(loaded["cfg"]):
                        found, cfg, task = original(*arguments, loaded)
            models += found
        return models, cfg, task

    return load_model_ensemble_and_task


@contextmanager
def _named(cfg: Any) -> Iterator[None]:
    """Refused literals of the block name their option in a configuration."""
    try:
        yield
    except LiteralError as error:
        parts = cfg if isinstance(cfg, Mapping) else {}
        sections = {part: layout.section(cfg, part) for part in parts}
        raise CheckpointError(
            f"has the text `{shown(error.text)}` as `{untrusted.option_of(sections, error.text)}`, "
            f"which is no literal ({error.reason}) and was not evaluated"
        ) from error


def _resumed(original: Callable) -> Callable:
    def load_checkpoint(self: Any, filename: str, *rest: Any, **options: Any) -> Any:
        with about(filename):
            return original(self, filename, *rest, **options)

    return load_checkpoint


def _validated(original: Callable) -> Callable:
    """`fairseq-validate` builds the criterion, too, that the file names."""

    def main(cfg: Any, *rest: Any, **options: Any) -> Any:
        from fairseq.criterions import CRITERION_REGISTRY

        path = cfg.common_eval.path
        with about(path):
            if path is not None and storage.is_archive(path):
                state = storage.load(path, checksums=False)
                check(path, state)
                named = layout.options(state, "criterion")
                name = named.get("criterion") or named.get("_name")
                if not isinstance(name, str) or name not in CRITERION_REGISTRY:
                    raise _unknown(path, "criterion", name)
            return original(cfg, *rest, **options)

    return main


def _meters(original: Callable) -> Callable:
    """fairseq calls any name of its module of meters that the file gives."""

    def load_state_dict(self: Any, state_dict: Any) -> None:
        from fairseq.logging import meters

        for _, _, name, _ in state_dict:
            kind = getattr(meters, name, None) if isinstance(name, str) else None
            if not (isinstance(kind, type) and issubclass(kind, meters.Meter)):
                raise CheckpointError(f"has a meter of the unknown kind {name!r:.40}")
        original(self, state_dict)

    return load_state_dict


def _name_option(original: Callable) -> Callable:
    """A command's own option that is no literal is named in the message."""

    def call_main(cfg: Any, main: Callable, **options: Any) -> Any:
        try:
            return original(cfg, main, **options)
        except LiteralError as error:
            sections = {part: layout.section(cfg, part) for part in cfg}
            name = untrusted.option_of(sections, error.text)
            if name == "an option":
                raise
            raise ConfigError(f"`--{name.replace('_', '-')}`: {error}") from error

    return call_main


PATCHES = (
    Patch(
        name="files are checked before they are built",
        reason="whatever architecture, task, criterion or size a file names is built, and what "
        "goes wrong is a traceback",
        layers=(
            Layer("fairseq.checkpoint_utils:load_checkpoint_to_cpu", _checked),
            Layer("fairseq.checkpoint_utils:load_model_ensemble_and_task", _one_by_one),
            Layer("fairseq.trainer:Trainer.load_checkpoint", _resumed),
            Layer("fairseq.logging.meters:MetersDict.load_state_dict", _meters),
            Layer("fairseq_cli.validate:main", _validated),
            Layer("fairseq.distributed.utils:call_main", _name_option),
        ),
    ),
)
