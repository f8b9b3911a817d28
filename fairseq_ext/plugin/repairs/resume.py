"""Resume exactly: a killed run continues to the same weights as an uninterrupted one.

A kill at any moment must not change or lose:

1. the batches (fairseq makes them in the first epoch) and how many have been read, even if
   `--update-freq` or the number of processes changes;
2. the number of validations without improvement (``--patience``, ``reduce_lr_on_plateau``);
3. a complete checkpoint file under each name, the old file or the new one;
4. the fact that a run has finished;
5. the float32 master weights of half precision, see :mod:`fairseq_ext.plugin.repairs.models`;
6. the number of threads, on which the last bits of a matrix product depend.
"""

import io
import logging
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import torch

from fairseq_ext.checkpoints.layout import EARLY_STOPPING, position
from fairseq_ext.plugin.patching import around, replaced, running
from fairseq_ext.utils.errors import ConfigError
from fairseq_ext.utils.files import atomic_write

logger = logging.getLogger(__name__)
PLATEAU = "fairseq.optim.lr_scheduler.reduce_lr_on_plateau:ReduceLROnPlateauLRSchedule"
PLATEAU_COUNTERS = ("num_bad_epochs", "cooldown_counter")
BATCHES = "fairseq.data.iterators:EpochBatchIterator"


# 1. Batches


@around("fairseq.trainer:Trainer.get_train_iterator", patch="batches after resume")
def compose_as_in_first_epoch(
    original: Callable,
    self: Any,
    epoch: int,
    combine: bool = True,
    load_dataset: bool = True,
    **options: Any,
) -> Any:
    """Return an iterator over an epoch's batches; a resumed run reuses those of the first epoch.

    So does an uninterrupted run.

    Problem: A run resumed in its second or a later epoch draws its batches with another seed than
    the uninterrupted run.
    """
    from fairseq.tasks import FairseqTask

    # Tasks with their own iterators, or with new batches in each epoch, do not need this.
    has_iterator = type(self.task).get_batch_iterator is not FairseqTask.get_batch_iterator
    renews = has_iterator or getattr(self.task.cfg, "rebuild_batches", False)
    if load_dataset and epoch > 1 and not renews and not options.get("disable_iterator_cache"):
        iterator = original(self, 1, combine, True, **options)
        if iterator in self.task.dataset_to_epoch_iter.values():
            return iterator  # the caller moves it to the right epoch and batch
    return original(self, epoch, combine, load_dataset, **options)


@around(f"{BATCHES}._get_iterator_for_epoch", patch="batches after resume")
def shuffle_as_asked(
    original: Callable, self: Any, epoch: int, shuffle: bool, *args: Any, **kwargs: Any
) -> Any:
    """Return an iterator over the batches of an epoch, shuffled only if ``shuffle`` is true.

    If all epochs share a data loader, fairseq ignores ``shuffle`` after the first epoch, and
    shuffles the batches of all later epochs if it has shuffled those of the first.
    """
    if hasattr(self, "epoch_batch_sampler"):
        self.epoch_batch_sampler.shuffle = shuffle
    return original(self, epoch, shuffle, *args, **kwargs)


@around(
    "fairseq.data.multilingual.sampled_multi_epoch_dataset:"
    "SampledMultiEpochDataset._next_virtual_epoch",
    patch="batches after resume",
)
def continue_the_pass(original: Callable, self: Any, epoch: int) -> None:
    """Set the epoch; keep the order of a multilingual corpus if a run resumes within a pass.

    With ``--virtual-epoch-size`` a pass takes several epochs. The number of the first of these
    epochs is the seed of the order. A resumed run of fairseq uses the number of its own first
    epoch instead, so it reads some sentences twice and others not at all.
    """
    first = epoch - (epoch - 1) % self.num_virtual_epochs
    if self._random_global_indices is None and first != epoch:
        original(self, first)
    original(self, epoch)


@around("fairseq.data.iterators:GroupedIterator.__init__", patch="batches left of an epoch")
def group_what_is_left(
    original: Callable,
    self: Any,
    iterable: Any,
    chunk_size: int,
    skip_remainder_batch: bool = False,
) -> None:
    """Group the remaining batches of an epoch by update, also after a change of `--update-freq`.

    Raise ConfigError if `--skip-remainder-batch` would drop all of them.

    Problem: If a run resumes within an epoch, with another --update-freq or number of processes, it
    loses batches, reads some twice, or ends in `UnboundLocalError`.
    """
    from fairseq.data.iterators import CountingIterator, _chunk_iterator

    done = getattr(iterable, "n", 0)
    left = len(iterable) - done
    groups = left // chunk_size if skip_remainder_batch else math.ceil(left / chunk_size)
    if left and not groups:
        raise ConfigError(
            f"`--skip-remainder-batch` drops all {left} batches that are left of this epoch; leave "
            f"it out, or lower `--update-freq` ({chunk_size})."
        )
    chunks = _chunk_iterator(iterable, chunk_size, skip_remainder_batch)
    start = math.ceil(done / chunk_size)
    CountingIterator.__init__(self, chunks, start=start, total=start + groups)
    self.chunk_size = chunk_size
    if skip_remainder_batch:  # or fairseq would consider the epoch unfinished
        iterable.take(done + groups * chunk_size)


@around(f"{BATCHES}.state_dict", patch="batches left of an epoch")
def store_processes(original: Callable, self: Any) -> dict[str, Any]:
    """Return the iterator's state, with the number of processes that share an epoch's batches."""
    return {**original(self), "processes": self.num_shards}


@around(f"{BATCHES}.load_state_dict", patch="batches left of an epoch")
def continue_on_other_processes(original: Callable, self: Any, state_dict: dict[str, Any]) -> None:
    """Continue an epoch where it stopped, even with another number of processes.

    Each of N processes reads every N-th batch. A checkpoint stores how many batches each process
    has read. Raise ConfigError if the number of all batches read is not a multiple of the new N, or
    with `--grouped-shuffling`.
    """
    before, done = state_dict.get("processes"), state_dict.get("iterations_in_epoch", 0)
    if before is not None and before != self.num_shards and done:
        if getattr(self, "grouped_shuffling", False) or before * done % self.num_shards:
            raise ConfigError(
                f"{before} processes have read {before * done} batches of this epoch, which "
                f"{self.num_shards} cannot have read together. Continue on {before}, or give "
                "`--reset-dataloader` to begin the epoch again."
            )
        done = before * done // self.num_shards
        state_dict = {**state_dict, "iterations_in_epoch": done}
    original(self, state_dict)


# 2. Validation


def early_stopping_state() -> dict[str, Any]:
    """Return the state of ``--patience``: the best value, and the number of validations since."""
    command = next(running("fairseq_cli.train"), None)
    counter = getattr(command, "should_stop_early", None)
    return {"best": getattr(counter, "best", None), "num_runs": getattr(counter, "num_runs", 0)}


@around("fairseq.trainer:Trainer.save_checkpoint", patch="validation after resume")
def save_early_stopping(
    original: Callable, self: Any, filename: str, extra_state: dict[str, Any]
) -> str | None:
    """Save a checkpoint with the state of early stopping, and the metric that it watches.

    Problem: --patience and reduce_lr_on_plateau start counting again after a resume. If
    --best-checkpoint-metric has changed, new values are compared with values of the earlier metric.
    """
    stopping = {**early_stopping_state(), "aim": aim(self.cfg.checkpoint)}
    return original(self, filename, {**extra_state, EARLY_STOPPING: stopping})


def aim(checkpoint: Any) -> str:
    """Say which value of ``--best-checkpoint-metric`` is the best, such as ``lowest loss``.

    ``checkpoint`` is ``cfg.checkpoint``, the options about checkpoints.
    """
    extreme = "highest" if checkpoint.maximize_best_checkpoint_metric else "lowest"
    return f"{extreme} {checkpoint.best_checkpoint_metric}"


@around("fairseq.checkpoint_utils:load_checkpoint", patch="validation after resume")
def restore_validation(
    original: Callable, cfg: Any, trainer: Any, **options: Any
) -> tuple[Any, Any]:
    """Load a checkpoint, and restore the counters of ``--patience`` and the scheduler.

    With ``--reset-meters``, reset them instead. Otherwise raise ConfigError if
    ``--best-checkpoint-metric`` has changed.
    """
    from fairseq import checkpoint_utils
    from fairseq.optim.lr_scheduler.reduce_lr_on_plateau import ReduceLROnPlateauLRSchedule

    counters = [command.should_stop_early for command in running("fairseq_cli.train")]
    for keeper in (checkpoint_utils.save_checkpoint, *counters):
        for name in ("best", "num_runs"):  # which an earlier training in this process may have set
            vars(keeper).pop(name, None)
    extra_state, iterator = original(cfg, trainer, **options)
    begins = trainer.get_num_updates() == 0  # for instance with `--finetune-from-model`
    if cfg.reset_meters and isinstance(trainer.lr_scheduler, ReduceLROnPlateauLRSchedule):
        trainer.lr_scheduler.lr_scheduler._reset()  # forgets the best value, not the learning rate
    if extra_state is None or begins or cfg.reset_optimizer or cfg.reset_meters:
        return extra_state, iterator
    stopping = extra_state.get(EARLY_STOPPING, {})
    scheduler = trainer._optim_history[-1]["lr_scheduler_state"]
    before, now = stopping.get("aim"), aim(cfg)
    if before not in (None, now) and "best" in extra_state:
        raise ConfigError(
            f"`--best-checkpoint-metric` was the {before}, but is now the {now}. To change it, "
            "give `--reset-meters`."
        )
    if stopping.get("best") is not None:
        for counter in counters:
            counter.best, counter.num_runs = stopping["best"], stopping["num_runs"]
    if not cfg.reset_lr_scheduler:
        # fairseq has just told the scheduler that an epoch has ended, which may not be true ...
        trainer.lr_scheduler.load_state_dict(scheduler)
        saved = position({"extra_state": extra_state})
        if saved.get("iterations_in_epoch") == 0:
            # ... and if it is true, the scheduler has not seen the epoch's validation loss yet.
            trainer.lr_step(saved["epoch"] - 1, extra_state.get("val_loss"))
    return extra_state, iterator


@around(f"{PLATEAU}.state_dict", patch="validation after resume")
def save_plateau(original: Callable, self: Any) -> dict[str, Any]:
    return original(self) | {name: getattr(self.lr_scheduler, name) for name in PLATEAU_COUNTERS}


@around(f"{PLATEAU}.load_state_dict", patch="validation after resume")
def restore_plateau(original: Callable, self: Any, state: dict[str, Any]) -> None:
    """Restore the counters of ``reduce_lr_on_plateau``; they are 0 if the checkpoint has none."""
    original(self, state)
    for name in PLATEAU_COUNTERS:
        setattr(self.lr_scheduler, name, state.get(name, 0))


# 3. Files


@around("fairseq.file_io:PathManager.copy", patch="whole checkpoint files")
def copy_whole(original: Callable, src_path: str, dst_path: str, overwrite: bool = False) -> str:
    """Copy a checkpoint so that ``dst_path`` is always a whole file; return ``dst_path``.

    Problem: fairseq copies checkpoint_best.pt and checkpoint_last.pt in place, so that a kill
    leaves a torn file. fairseq never removes temporary files of killed runs. On a full disk, it
    appends to the same torn file three times, and ends in a traceback.
    """
    with atomic_write(dst_path, "wb", through_links=False) as copy:
        shutil.copyfile(src_path, copy.name)
    return dst_path


@around("fairseq.checkpoint_utils:torch_persistent_save", patch="whole checkpoint files")
def save_whole(original: Callable, obj: Any, filename: str, async_write: bool = False) -> None:
    """Save a checkpoint so that ``filename`` is always a whole file, the old one or the new one."""
    with atomic_write(filename, "wb", through_links=False) as file:
        write(obj, file)


def write(state: dict[str, Any] | io.BytesIO, file: IO[bytes]) -> None:
    """Write a checkpoint, or its bytes if it is written asynchronously, to an open file."""
    if isinstance(state, io.BytesIO):
        file.write(state.getbuffer())
    else:
        torch.save(state, file)


@around("fairseq.checkpoint_utils:verify_checkpoint_directory", patch="whole checkpoint files")
def sweep_directory(original: Callable, save_dir: str) -> None:
    """Remove temporary files of killed runs when the master process of ``fairseq-train`` starts."""
    original(save_dir)
    for leftover in Path(save_dir).glob("*.pt*.tmp"):
        logger.info(f"removing {leftover}, left by a killed run")
        leftover.unlink(missing_ok=True)


@around("fairseq.checkpoint_utils:save_checkpoint", patch="number of best checkpoints")
def keep_best_until_full(original: Callable, cfg: Any, *rest: Any) -> str | None:
    """Save a checkpoint; keep all until there are as many as ``--keep-best-checkpoints``.

    fairseq keeps a new checkpoint only if it is better than the worst of those kept. Until there
    are enough, this function presents an infinitely bad checkpoint as the worst.

    Problem: --keep-best-checkpoints 3 keeps only one checkpoint while the loss rises.
    """
    from fairseq import checkpoint_utils

    find = checkpoint_utils.checkpoint_paths
    worst = f"checkpoint.best_{'-inf' if cfg.maximize_best_checkpoint_metric else 'inf'}.pt"

    def checkpoint_paths(path: str, pattern: str, **options: Any) -> list[Any]:
        paths = find(path, pattern, **options)
        is_short = len(paths) < cfg.keep_best_checkpoints
        return [worst] if is_short and pattern.startswith(r"checkpoint\.best_") else paths

    with replaced(checkpoint_utils, "checkpoint_paths", checkpoint_paths):
        return original(cfg, *rest)


@around("fairseq.checkpoint_utils:save_checkpoint", patch="checkpoints of an interval")
def save_interval_at_end(
    original: Callable, cfg: Any, trainer: Any, epoch_itr: Any, val_loss: float | None
) -> Any:
    """Save the checkpoints that are due, also that of `--save-interval-updates` after an epoch.

    The latter is written before `checkpoint_last.pt`. A run that is killed before it has written
    both is resumed within the epoch, and writes both.

    Problem: --save-interval-updates writes no checkpoint at the end of an epoch.
    """
    from fairseq.checkpoint_utils import checkpoint_paths
    from fairseq.file_io import PathManager

    interval, updates = cfg.save_interval_updates, trainer.get_num_updates()
    if interval <= 0 or updates % interval or not epoch_itr.end_of_epoch():
        return original(cfg, trainer, epoch_itr, val_loss)
    suffix = trainer.checkpoint_suffix
    interval_path = str(Path(cfg.save_dir, f"checkpoint_{epoch_itr.epoch}_{updates}{suffix}.pt"))
    save = trainer.save_checkpoint

    def save_interval_first(path: str, extra_state: dict[str, Any]) -> Any:
        save(interval_path, extra_state)
        if cfg.keep_interval_updates > 0 and cfg.keep_interval_updates_pattern == -1:
            pattern = rf"checkpoint_\d+_(\d+){suffix}\.pt"
            for old in checkpoint_paths(cfg.save_dir, pattern)[cfg.keep_interval_updates :]:
                Path(old).unlink(missing_ok=True)
        PathManager.copy(interval_path, path, overwrite=True)
        return path

    with replaced(trainer, "save_checkpoint", save_interval_first):
        return original(cfg, trainer, epoch_itr, val_loss)


# 4. Finished runs


@around("fairseq_cli.train:train", patch="finished runs")
def skip_if_finished(
    original: Callable, cfg: Any, trainer: Any, task: Any, epoch_itr: Any
) -> tuple[list[None], bool]:
    """Train an epoch; if a resumed training has already reached a limit, end it and log why.

    Problem: A finished run, started again, trains an update and overwrites its checkpoints.
    """
    updates, options = trainer.get_num_updates(), cfg.optimization
    hours, failures = trainer._previous_training_time / 3600, early_stopping_state()["num_runs"]
    for is_reached, limit in (
        (updates >= (options.max_update or math.inf), f"--max-update {options.max_update}"),
        (0 < options.stop_time_hours < hours, f"--stop-time-hours {options.stop_time_hours}"),
        (0 < cfg.checkpoint.patience <= failures, f"--patience {cfg.checkpoint.patience}"),
    ):
        if updates and is_reached:
            logger.info(f"nothing to do: this run has finished ({limit})")
            return [None], True
    return original(cfg, trainer, task, epoch_itr)


# 6. Threads


@around("fairseq.trainer:Trainer.__init__", patch="number of threads")
def fix_threads(original: Callable, self: Any, *args: Any, **options: Any) -> None:
    """Build a trainer, and make MKL always use the number of threads that torch has chosen.

    Problem: MKL may use fewer threads than torch for some products. Then Intel does not promise
    equal bits from run to run (oneMKL Developer Guide, Reproducibility Conditions).
    """
    torch.set_num_threads(torch.get_num_threads())  # switches MKL_DYNAMIC off
    original(self, *args, **options)
