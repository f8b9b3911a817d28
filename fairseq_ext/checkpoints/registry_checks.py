"""Check that what a checkpoint names is registered with fairseq, and fits the command.

A checkpoint names its architecture, its task, its criterion and hundreds of options. Each must be
what the command needs before fairseq builds from it. fairseq is imported by the functions that ask
its registries.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fairseq_ext.checkpoints import layout, storage, untrusted
from fairseq_ext.utils.errors import CheckpointError, ConfigError, FairseqExtError
from fairseq_ext.utils.literals import LiteralError

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
        _check_numbers(state.get("last_optimizer_state"))
    args = state.get("args")
    if args is not None:
        _check_names(path, args)


def _check_numbers(optimizer: Any) -> None:
    """The numbers of an optimizer, which fairseq takes over as they are."""
    groups = optimizer.get("param_groups") if isinstance(optimizer, Mapping) else None
    for group in groups or ():
        for name in ("lr", "betas", "eps", "weight_decay"):
            value = group.get(name, 0)
            numbers = value if isinstance(value, list | tuple) else [value]
            if not all(isinstance(one, int | float) for one in numbers):
                raise CheckpointError(f"has no numbers as `{name}` of its optimizer")


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
            raise unknown(path, kind, name)


def unknown(path: str | Path, kind: str, name: Any) -> CheckpointError:
    """The error for a file that names something that is not registered with fairseq."""
    return CheckpointError(
        f"{path} names the {kind} {name!r:.60}, which is not registered here; `--user-dir` must "
        "be the folder of the code that it was trained with."
    )


@contextmanager
def about(path: str | Path) -> Iterator[None]:
    """Turn unexpected errors in the block into one message that names the file; pass on our own and
    the system's.
    """
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
    except Exception as error:  # anything that a made-up configuration leads to
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
        raise unknown(path, "architecture", name)
    with about(path):
        untrusted.require_sizes({part: layout.section(cfg, part) for part in ("model", "task")})
    return name, ARCH_MODEL_REGISTRY.get(name) or MODEL_REGISTRY[name]


def _registered_task(cfg: Any, path: str | Path) -> type:
    from fairseq.tasks import TASK_REGISTRY

    options = layout.section(cfg, "task")
    name = options.get("task") or options.get("_name")
    if not isinstance(name, str) or name not in TASK_REGISTRY:
        raise unknown(path, "task", name)
    return TASK_REGISTRY[name]


def require_translation(path: str | Path, src: str | None = None, tgt: str | None = None) -> None:
    """Check that a checkpoint is of a translation task and an architecture for it.

    Packed files are left to their own reader, and what cannot be read to the loading that follows.

    Args:
        path: of the checkpoint.
        src, tgt: the languages that it is to translate; None for its own. Data may have other names
            for them, so that only the reverse direction is refused.

    Raises:
        CheckpointError: see above, or the file cannot be read.
        ConfigError: it translates in the other direction.
    """
    from fairseq.tasks.translation import TranslationTask

    if not storage.is_checkpoint(path):
        return
    state = storage.load(path, checksums=False)
    check(path, state)
    cfg = layout.configuration(state)
    kind = _registered_task(cfg, path)
    if not issubclass(kind, TranslationTask):
        raise CheckpointError(f"{path} holds no translation model, but one for `{kind.__name__}`.")
    fitting(cfg, kind, path)
    task = layout.section(cfg, "task")
    own = (task.get("source_lang"), task.get("target_lang"))
    if (tgt, src) == own and src != tgt:
        raise ConfigError(
            f"`--src` and `--tgt` must be {' and '.join(own)} for {path}, but are {src} and {tgt}."
        )
