"""Check the classes and sizes that a checkpoint names, before fairseq builds its model.

A checkpoint names its architecture, its task, its criterion and hundreds of options. The classes
that it names must be in fairseq's registries, and of the kind that the command needs. The options
must not ask for a far larger model than the file holds. Only functions that need fairseq's
registries import fairseq.
"""

import functools
from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from fairseq_ext.checkpoints import layout, safe_load
from fairseq_ext.checkpoints.safe_load import ADVICE, about
from fairseq_ext.utils.errors import CheckpointError

MOST_POSITIONS = 1_000_000
MOST_TABLE_BYTES = 512 << 20  # of a table of sines and cosines, which has a row for each position
SPARE_PARAMETERS = 10_000_000  # parameters allowed beyond eight times the file's numbers


def require_registered(path: str | Path, args: Any) -> None:
    """Raise CheckpointError if an old checkpoint's ``args`` name something unknown to fairseq.

    This may be an architecture, a task, a criterion or the like. In new checkpoints ``args`` is
    None, and nothing is refused.
    """
    from fairseq.models import ARCH_MODEL_REGISTRY
    from fairseq.registry import REGISTRIES
    from fairseq.tasks import TASK_REGISTRY

    if args is None:
        return
    if not isinstance(args, Namespace):
        raise CheckpointError(f"{path} has no options in its `args`. {ADVICE}")
    registries = {"arch": ARCH_MODEL_REGISTRY, "task": TASK_REGISTRY}
    registries |= {kind: registry["registry"] for kind, registry in REGISTRIES.items()}
    for kind, registry in registries.items():
        name = getattr(args, kind, None)
        if name is not None:
            registered(path, kind, name, registry)


def registered(path: str | Path, kind: str, name: Any, registry: Mapping[str, Any]) -> Any:
    """Return the entry ``name`` of one of fairseq's registries, or raise CheckpointError.

    ``path`` (the checkpoint) and ``kind`` (such as ``architecture``) are for the message.
    """
    if not isinstance(name, str) or name not in registry:
        raise CheckpointError(
            f"{path} names the {kind} {name!r:.60}, which is not registered here; `--user-dir` "
            "of fairseq's commands must be the folder of the code that it was trained with. The "
            "commands of fairseq-ext have no such option; `fairseq_ext.load` works in Python once "
            "this code is imported."
        )
    return registry[name]


def require_fitting(cfg: Any, task: Any, path: str | Path) -> None:
    """Refuse a checkpoint whose architecture does not fit the task.

    ``task`` is a ``FairseqTask``; None stands for the task that the configuration ``cfg`` names.
    Raise CheckpointError if the task needs another kind of model, or ``cfg`` names an unknown
    architecture or asks for a huge table of position embeddings.
    """
    from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_REGISTRY

    options = layout.section(cfg, "model")
    name = options.get("_name") or options.get("arch")
    if name is None and len(options) == 1:  # fairseq then uses the section's only key as its name
        name = next(iter(options))
    model = registered(path, "architecture", name, MODEL_REGISTRY | ARCH_MODEL_REGISTRY)
    with about(path):
        require_sizes({part: layout.section(cfg, part) for part in ("model", "task")})
    kind = task_class(layout.section(cfg, "task"), path) if task is None else type(task)
    if needed := misfit(kind, model):
        raise CheckpointError(
            f"{path} holds the architecture `{name}`, but this command needs {needed}."
        )


def misfit(task: type, model: type) -> str | None:
    """Say what kind of model a task needs, such as "a language model"; None if ``model`` fits."""
    from fairseq.models import FairseqEncoderModel, FairseqLanguageModel, FairseqMultiModel
    from fairseq.models.nat import FairseqNATModel
    from fairseq.tasks.language_modeling import LanguageModelingTask
    from fairseq.tasks.masked_lm import MaskedLMTask
    from fairseq.tasks.multilingual_translation import MultilingualTranslationTask
    from fairseq.tasks.sentence_prediction import SentencePredictionTask
    from fairseq.tasks.translation import TranslationTask
    from fairseq.tasks.translation_lev import TranslationLevenshteinTask

    is_a = functools.partial(issubclass, model)
    has_one_side = is_a((FairseqLanguageModel, FairseqEncoderModel))
    classifies = hasattr(model, "register_classification_head")
    families = {
        TranslationTask: (not has_one_side, "a model with an encoder and a decoder"),
        LanguageModelingTask: (is_a(FairseqLanguageModel), "a language model"),
        MaskedLMTask: (is_a(FairseqEncoderModel), "an encoder"),
        SentencePredictionTask: (classifies, "a model that classifies sentences"),
        MultilingualTranslationTask: (is_a(FairseqMultiModel), "a multilingual model"),
        TranslationLevenshteinTask: (is_a(FairseqNATModel), "a non-autoregressive model"),
    }
    for family, (fits, needed) in families.items():
        if issubclass(task, family) and not fits:
            return needed
    return None


def task_class(options: Mapping[str, Any], path: str | Path) -> type:
    """Return the class of the task that ``options`` name; ``path`` is for the error message."""
    from fairseq.tasks import TASK_REGISTRY

    name = options.get("task") or options.get("_name") or "translation"  # unnamed until 2018
    return registered(path, "task", name, TASK_REGISTRY)


# Sizes of a model to be built


@contextmanager
def no_larger_than(state: Mapping[str, Any]) -> Iterator[None]:
    """Raise CheckpointError if the block builds a far larger model than the state dict ``state``.

    A configuration of a few bytes may ask for a billion layers. So this function counts each
    parameter when a module registers it, before the parameter fills memory.
    """
    sizes = [value.numel() for value in state.values() if isinstance(value, Tensor)]
    modules, numbers = 8 * len(sizes) + 1000, 8 * sum(sizes) + SPARE_PARAMETERS

    def count(module: nn.Module, name: str, parameter: Any) -> None:
        nonlocal modules, numbers
        modules -= 1
        numbers -= 0 if parameter is None else parameter.numel()
        if modules < 0 or numbers < 0:
            raise CheckpointError("describes a far larger model than the one it holds")

    handle = register_module_parameter_registration_hook(count)
    try:
        yield
    finally:
        handle.remove()


def require_sizes(settings: Mapping[str, Any]) -> None:
    """Refuse options that would make fairseq fill a huge table of position embeddings.

    Raise CheckpointError for more than :data:`MOST_POSITIONS` positions, a table of more than
    :data:`MOST_TABLE_BYTES`, or a size that is not a whole number.
    """
    largest = {"positions": (0, ""), "embed_dim": (0, "")}
    for name, value in safe_load.entries(settings):
        end = next((end for end in largest if name.endswith(end)), None)
        refers = isinstance(value, str) and "${" in value  # to an option checked elsewhere
        if end is None or name.endswith("ffn_embed_dim") or value is None or refers:
            continue
        if not isinstance(value, int):
            raise CheckpointError(f"has `{name}` {value!r:.40}, which is not a whole number")
        largest[end] = max(largest[end], (value, name))
    (positions, name), (channels, width) = largest.values()
    if positions > MOST_POSITIONS:
        raise CheckpointError(f"has `{name}` {positions:,}; at most {MOST_POSITIONS:,} are allowed")
    if 4 * positions * channels > MOST_TABLE_BYTES:
        raise CheckpointError(
            f"has `{name}` {positions:,} and `{width}` {channels:,}, whose table of positions "
            f"would take more than {MOST_TABLE_BYTES >> 20} MiB"
        )
