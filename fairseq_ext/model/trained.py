"""Load trained translation models with fairseq, and their dictionaries from a folder."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairseq import checkpoint_utils
from fairseq.models import BaseFairseqModel
from fairseq.tasks.translation import TranslationTask

from fairseq_ext.checkpoints import layout, registry_checks, storage
from fairseq_ext.utils.errors import CheckpointError, ConfigError, DataError


def load(
    data: str | Path, paths: Sequence[str | Path], src: str | None = None, tgt: str | None = None
) -> tuple[list[BaseFairseqModel], Any, TranslationTask]:
    """Load checkpoints or bundles; return the models, the last one's configuration, and the task.

    ``data`` is the folder with the dictionaries. ``src`` and ``tgt`` are the languages in the names
    of the dictionaries; None for those of the training. Other names for these languages, such as
    ``deu`` for ``de``, are allowed.

    Raises:
        CheckpointError: a file cannot be read, does not translate, or does not fit ``data``.
        ConfigError: ``src`` and ``tgt`` are the reverse direction, or only one of them is set.
        DataError: ``data`` is not a folder, or has a colon in its name.
    """
    if not Path(data).is_dir():
        raise DataError(f"{data} is not a folder; give the one that fairseq-preprocess wrote.")
    if ":" in str(data):
        raise DataError(
            f"{data} has a colon, at which fairseq ends the name of a folder; rename the folder, "
            "or make a link to it whose name has no colon."
        )
    if (src is None) != (tgt is None):
        raise ConfigError("`--src` and `--tgt` go together; give both, or neither.")
    languages = {"source_lang": src, "target_lang": tgt} if src else {}
    for path in paths:
        task = layout.options(storage.peek(path), "task")
        kind = registry_checks.task_class(task, path)
        if not issubclass(kind, TranslationTask):
            raise CheckpointError(
                f"{path} holds no translation model, but a model for the task `{kind.__name__}`."
            )
        if (tgt, src) == (task.get("source_lang"), task.get("target_lang")) and src != tgt:
            raise ConfigError(
                f"`--src` and `--tgt` must be {tgt} and {src} for {path}, but are {src} and {tgt}."
            )
    return checkpoint_utils.load_model_ensemble_and_task(
        [str(path) for path in paths],
        arg_overrides={"data": str(data), "eval_bleu": False, **languages},
    )
