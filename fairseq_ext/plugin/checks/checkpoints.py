"""Check that a checkpoint fits the architecture, scheduler and dictionaries of a run.

:mod:`fairseq_ext.checkpoints.safe_load` checks that checkpoint files are complete, and
:mod:`fairseq_ext.checkpoints.dictionaries` says how a checkpoint stores its dictionaries.
"""

import inspect
import logging
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from torch import Tensor

from fairseq_ext.checkpoints import bundle, dictionaries, layout, published, safe_load, storage
from fairseq_ext.checkpoints.dictionaries import SIDES
from fairseq_ext.checkpoints.layout import DICTIONARIES, before_training
from fairseq_ext.plugin.patching import around
from fairseq_ext.text import pipeline
from fairseq_ext.utils.errors import CheckpointError, ConfigError, DataError
from fairseq_ext.utils.option_fields import flag

logger = logging.getLogger(__name__)


@around("fairseq.checkpoint_utils:_upgrade_state_dict", patch="weights alone")
def _upgrade_state_dict(original: Callable, state: dict[str, Any]) -> dict[str, Any]:
    """Upgrade a checkpoint; if it has only weights, add the state of a training at update 0.

    Problem: Training cannot start from a checkpoint that has only weights (`{'model': …}`): it
    ends in `KeyError: 'best_loss'`.
    """
    if "optimizer_history" not in state and "best_loss" not in state:
        state = {**before_training(), **state}
    return original(state)


def _starting_checkpoint(cfg: Any, trainer: Any) -> tuple[str, str | None]:
    """Return the checkpoint from which fairseq would start training, and the option that names it.

    If no option names a checkpoint, return ``checkpoint_last.pt`` in ``--save-dir``, even if there
    is no such file, and None for the option. ``--continue-once`` and ``--finetune-from-model``
    count only if there is no such file.
    """
    from fairseq.file_io import PathManager

    suffix = f"{trainer.checkpoint_suffix or ''}.pt"
    if cfg.restore_file != "checkpoint_last.pt":  # fairseq's default
        return cfg.restore_file.replace(".pt", suffix), "restore_file"
    last = str(Path(cfg.save_dir, f"checkpoint_last{suffix}"))
    for option in ("continue_once", "finetune_from_model"):  # both only for a run's first start
        path = getattr(cfg, option, None)
        if path is not None and not PathManager.exists(last):
            return path, option
    return last, None


@around("fairseq.checkpoint_utils:load_checkpoint", patch="checkpoints that do not fit")
def _load_checkpoint(original: Callable, cfg: Any, trainer: Any, **options: Any) -> Any:
    """Load a checkpoint, report faults in one line, and copy ``text.json`` to `--save-dir`.

    Problem: A checkpoint of another architecture or scheduler ends in a traceback. A model that was
    trained with another dictionary prints wrong words. If the file of `--restore-file` is missing,
    training starts from random weights. fairseq does not copy text.json from the data folder to
    `--save-dir`, so a trained model would not know how to turn text into tokens.
    """
    from fairseq.file_io import PathManager

    path, option = _starting_checkpoint(cfg, trainer)
    if option is not None:
        if bundle.is_bundle(path):  # fairseq requires a file
            cfg[option] = path = str(bundle.as_file(path))
        if not PathManager.isfile(path):
            # fairseq would silently start from random weights
            fault = "is not a file" if PathManager.exists(path) else "does not exist"
            raise ConfigError(
                f"`{flag(option)}` names {path}, which {fault}; name a checkpoint "
                "file, or leave the option out."
            )
    with safe_load.about(path) if Path(path).exists() else nullcontext():
        try:
            loaded = original(cfg, trainer, **options)
        except ValueError as error:
            if not str(error).startswith("--finetune-from-model"):
                raise
            # Two options exclude each other; leave out the whole configuration after the colon.
            raise ConfigError(f"{str(error).partition(': ')[0]}.") from error
        except RuntimeError as error:
            if not str(error).startswith("Cannot resume training due to dataloader mismatch"):
                raise
            raise DataError(
                f"the corpus has fewer batches than the run in {cfg.save_dir} has read. Give the "
                "data and batch size of that run, or `--reset-dataloader` to start a new epoch "
                "of this corpus."
            ) from error
    data = str(getattr(trainer.cfg.task, "data", None) or "").split(":")[0]
    if data and trainer.is_data_parallel_master and not cfg.no_save:
        pipeline.copy(data, cfg.save_dir)  # translation needs the text.json
    return loaded


@around("fairseq.trainer:Trainer.load_checkpoint", patch="checkpoints that do not fit")
def _trainer_load_checkpoint(
    original: Callable,
    self: Any,
    filename: str,
    reset_optimizer: bool = False,
    reset_lr_scheduler: bool = False,
    *rest: Any,
    **options: Any,
) -> Any:
    if not (reset_optimizer or reset_lr_scheduler):
        _require_scheduler(self.cfg, filename)
    try:
        extra = original(self, filename, reset_optimizer, reset_lr_scheduler, *rest, **options)
    except AssertionError as error:  # the file has another criterion or optimizer
        raise CheckpointError(f"{filename}: {error}") from error
    except Exception as error:
        if str(error).startswith("Cannot load model parameters"):
            require_dictionaries(self.task, storage.peek(filename), filename, warn=False)
        raise
    counters = (self.get_num_updates(), self._previous_training_time)
    if not all(isinstance(value, int | float | Tensor) for value in counters):
        raise CheckpointError(f"{filename} has no number of updates, or no training time.")
    if extra is not None:
        state = {"extra_state": extra}
        require_dictionaries(self.task, state, filename, warn=self.data_parallel_rank == 0)
    return extra


def _require_scheduler(cfg: Any, filename: str) -> None:
    """Raise ConfigError if the run that saved ``filename`` had another ``--lr-scheduler``.

    fairseq would load the old scheduler's state into the new scheduler.
    """
    if not Path(filename).is_file():
        return
    state = storage.peek(filename)
    if state.get("last_optimizer_state") is None:  # fairseq loads only its weights
        return
    former, now = (layout.options(source, "lr_scheduler") for source in (state, {"cfg": cfg}))
    theirs, ours = former.get("_name") or former.get("lr_scheduler"), now.get("_name")
    if theirs and ours and theirs != ours:
        raise ConfigError(
            f"{filename} was trained with `--lr-scheduler {theirs}`, but `{ours}` was asked for. "
            f"Give the old one again, or `--reset-lr-scheduler` to use `{ours}` without its state."
        )


@around(
    "fairseq.checkpoint_utils:load_checkpoint",
    "fairseq.checkpoint_utils:save_checkpoint",
    patch="trainers of other programs",
)
def _only_for_trainers(
    original: Callable, cfg: Any, trainer: Any, *rest: Any, **options: Any
) -> Any:
    """Load or save with the plugin's patches for fairseq's own trainer, without them for others.

    Problem: Patches of loading and saving checkpoints read attributes of fairseq's trainer that the
    trainers of other programs lack.
    """
    from fairseq.trainer import Trainer

    call = original if isinstance(trainer, Trainer) else inspect.unwrap(original)
    return call(cfg, trainer, *rest, **options)


@around("fairseq.trainer:Trainer.save_checkpoint", patch="dictionaries of a model")
def _save_dictionaries(
    original: Callable, self: Any, filename: str, extra_state: dict[str, Any]
) -> Any:
    """Save a checkpoint with the dictionaries of its task (translation or language modelling).

    Problem: Checkpoints do not store dictionaries. So fairseq accepts a dictionary of the same size
    in another order, and prints wrong words.
    """
    if words := _task_symbols(self.task):
        extra_state = {**extra_state, DICTIONARIES: dictionaries.record(*words)}
    return original(self, filename, extra_state)


def require_dictionaries(
    task: Any, state: Mapping[str, Any], path: str, *, warn: bool = True
) -> None:
    """Raise CheckpointError if the dictionaries of a task differ from those in a checkpoint.

    ``state`` is the content of the checkpoint ``path``. If the checkpoint has no dictionaries, only
    log a warning, or nothing if ``warn`` is False. Other tasks than translation and language
    modelling are not checked.
    """
    record = dictionaries.recorded(state, path)
    pair = _task_symbols(task)
    if not pair:
        return
    if record is None:
        if warn and not published.is_prepared(path):  # prepared models have dictionaries
            logger.warning(
                f"{path} does not say with which dictionaries it was trained, so the dictionaries "
                "of the data cannot be compared with them"
            )
        return
    for side, symbols in zip(SIDES, pair, strict=True):
        if differing := dictionaries.difference(symbols, record[side].split("\n")):
            language = getattr(task.cfg, f"{side}_lang", None)
            name = f"dict.{language}.txt" if language else "dict.txt"
            raise CheckpointError(
                f"{path} was trained with another {side} dictionary: in {name} of the data, "
                f"{differing}. Use the dictionaries it was trained with."
            )


def _task_symbols(task: Any) -> tuple[list[str], list[str]] | None:
    """Return source and target symbols of a translation or language modelling task, or None."""
    from fairseq.tasks.language_modeling import LanguageModelingTask
    from fairseq.tasks.translation import TranslationTask

    if isinstance(task, LanguageModelingTask) and task.dictionary is not None:
        return task.dictionary.symbols, task.dictionary.symbols
    if not isinstance(task, TranslationTask):
        return None
    return task.source_dictionary.symbols, task.target_dictionary.symbols
