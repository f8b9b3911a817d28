"""Probes: find out whether a repair of fairseq is needed.

Several versions of fairseq are in use, and a later one may have fixed a problem. So each repair has
a probe, which says whether the installed fairseq, torch and numpy have the problem. A probe tries
it out if that takes a few milliseconds. Otherwise it searches fairseq's source for the code that
causes the problem; if there is no source, the problem is assumed to exist.

Probes import fairseq, but train nothing and leave nothing behind. They must be called before the
repair is applied.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import linecache
import os
import re
from collections.abc import Iterable
from functools import reduce
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch


def source(target: str) -> str | None:
    """The source of ``module`` or ``module:Class.function``, without wrappers around it.

    It is empty if the installed fairseq has no such module or function, and None if there is no
    source. (``inspect.getsource`` would search all loaded modules first, which takes ten times as
    long as all probes together.)
    """
    module, _, path = target.partition(":")
    try:
        found = reduce(getattr, filter(None, path.split(".")), importlib.import_module(module))
    except (ImportError, AttributeError):
        return ""
    code = getattr(inspect.unwrap(found), "__code__", None)
    lines = linecache.getlines(code.co_filename if code else found.__file__)
    if code and lines:
        lines = inspect.getblock(lines[code.co_firstlineno - 1 :])
    return "".join(lines) or None


def has(target: str, pattern: str) -> bool:
    """Whether ``target`` exists and its source matches a pattern (or there is no source)."""
    text = source(target)
    return text is None or re.search(pattern, text) is not None


def lacks(target: str, pattern: str) -> bool:
    """Whether ``target`` exists and its source does not match (or there is no source)."""
    text = source(target)
    return text is None or (text != "" and not re.search(pattern, text))


# Noise


def gives_advice() -> bool:
    """Without tensorboardX, fairseq's speech tasks ask for it."""
    return importlib.util.find_spec("tensorboardX") is None


def reopens_log_file() -> bool:
    """Whether a second progress bar opens the log file again."""
    from fairseq.logging import progress_bar

    before = list(progress_bar.logger.handlers)
    for _ in range(2):
        progress_bar.progress_bar([], log_format="none", log_file=os.devnull)
    added = [handler for handler in progress_bar.logger.handlers if handler not in before]
    for handler in added:
        progress_bar.logger.removeHandler(handler)
        handler.close()
    return len(added) > 1


def uses_old_interfaces() -> bool:
    """Whether fairseq uses deprecated functions of torch, whose warnings are to be filtered."""
    return has("fairseq.tasks.fairseq_task", r"torch\.cuda\.amp")


# Loading


def refused(classes: Iterable[Any]) -> bool:
    """Whether ``torch.load`` refuses one of the classes in a checkpoint."""
    return not set(classes) <= set(torch.serialization.get_safe_globals())


def sends_by_torch_load() -> bool:
    """Whether ranks load objects by ``torch.load``, which refuses their classes."""
    target = "fairseq.distributed.utils:_broadcast_object_slow"
    return has(target, r"torch\.load\((?!.*weights_only=False)")


# Search


def numbers_groups_by_sentence() -> bool:
    """Whether diverse beam search fails on a sentence that is not the first of its data."""
    from fairseq.data import Dictionary
    from fairseq.search import DiverseBeamSearch

    words = Dictionary()
    groups = DiverseBeamSearch(words, num_groups=2, diversity_strength=0.5, diversity_discount=1)
    lprobs, sentence = torch.zeros(1, 2, len(words)), torch.tensor([7])
    try:
        for number in range(2):
            scores = torch.zeros(1, 2, number)
            groups.step(number, lprobs, scores, None, sentence)
    except IndexError:
        return True
    return False


# Batches


def loses_tail() -> bool:
    """Whether a last batch of another size is dropped."""
    from fairseq.data import data_utils

    batches = data_utils.batch_by_size(
        np.arange(3),
        None,
        num_tokens_vec=np.ones(3, dtype=np.int64),
        max_tokens=9,
        required_batch_size_multiple=2,
    )
    return sum(map(len, batches)) < 3


def loses_group() -> bool:
    """Whether fairseq has grouped shuffling and it drops an incomplete group."""
    from fairseq.data.iterators import EpochBatchIterator

    if "grouped_shuffling" not in inspect.signature(EpochBatchIterator.__init__).parameters:
        return False
    dataset = torch.utils.data.TensorDataset(torch.zeros(1))
    iterator = EpochBatchIterator(
        dataset, list, [[0]], num_shards=2, shard_id=0, grouped_shuffling=True
    )
    return not iterator.ordered_batches(epoch=1, fix_batches_to_gpus=False, shuffle=True)


def buckets_fail() -> bool:
    """Whether length buckets use a removed argument of numpy."""
    from fairseq.data import data_utils

    try:
        data_utils.get_buckets([1, 2], 1)
    except TypeError:
        return True
    return False


def uses_removed_names(modules: Iterable[str]) -> bool:
    """Whether fairseq's ``modules`` use names that numpy has removed."""
    removed = [name for name in ("compat", "int", "float") if not hasattr(np, name)]
    pattern = rf"\bnp\.({'|'.join(removed)})\b"
    return bool(removed) and any(has(f"fairseq.{module}", pattern) for module in modules)


def wraps_pointers() -> bool:
    """Whether the index of a file above 2 GiB is computed in int32."""
    from fairseq.data.indexed_dataset import MMapIndexedDataset

    writer = MMapIndexedDataset.Index.writer(os.devnull, np.uint16)
    with np.errstate(over="ignore"):
        pointers = writer._get_pointers([np.int32(2**30)] * 3)
    return int(pointers[-1]) != 2**32


def asks_a_shell() -> bool:
    """Whether the index of a FASTA file is made by a shell."""
    return has("fairseq.data.fasta_dataset:FastaDataset._build_index", "shell=True")


def caches_the_old_layout() -> bool:
    """Whether data of the old layout are read through a cache."""
    return has("fairseq.data.indexed_dataset:infer_dataset_impl", r'return "cached"')


# Subsets


def takes_files_for_subsets() -> bool:
    """Whether names of files are compared with those of validation sets."""
    return has("fairseq.data.data_utils:_find_extra_valid_paths", r"splitext\(p\)\[0\]")


def repeats_a_negative_number_of_times() -> bool:
    """Whether the first part of a set is repeated as often as the default says, -1 times."""
    from fairseq.tasks.translation import TranslationConfig

    return TranslationConfig().upsample_primary < 0


# Encoders


def keeps_weights_twice() -> bool:
    """Whether encoder layers have copies of their weights for torch's fused layer."""
    return has(
        "fairseq.modules.transformer_layer:TransformerEncoderLayerBase.__init__", "load_to_BT"
    )


# Machine


def counts_cuda_devices() -> bool:
    """Whether jobs of several processes assume CUDA."""
    utils = "fairseq.distributed.utils"
    return has(f"{utils}:call_main", r"cuda\.device_count") or has(
        f"{utils}:all_gather_list", r"torch\.cuda\.ByteTensor"
    )


def takes_bf16_for_tpu() -> bool:
    """Whether bf16 implies a TPU although the library for TPUs is missing."""
    implied = has("fairseq.options", r"if args\.bf16:\s+args\.tpu = True")
    return implied and importlib.util.find_spec("torch_xla") is None


def scales_on_cuda_alone() -> bool:
    """Whether half precision assumes CUDA."""
    return has("fairseq.optim.fp16_optimizer", r"torch\.cuda") or has(
        "fairseq.optim.amp_optimizer", r"torch\.cuda"
    )


def shards_by_fairscale() -> bool:
    """Whether an optimizer's state is shared out by fairscale."""
    return has("fairseq.optim.shard", "fairscale")


def knows_no_end() -> bool:
    """Whether the statistics of fairseq-train lack the time that is left."""
    return lacks("fairseq.trainer:Trainer._reduce_and_log_stats", r'"(left|eta)"')


# Resume


def forgets_seed_of_batches() -> bool:
    """Whether the batches of a resumed run depend on the epoch in which it was killed."""
    return lacks("fairseq.data.iterators:EpochBatchIterator.state_dict", "seed")


def forgets_validation() -> bool:
    """Whether a checkpoint lacks the counters of failed validations."""
    plateau = "fairseq.optim.lr_scheduler.reduce_lr_on_plateau:ReduceLROnPlateauLRSchedule"
    return lacks(f"{plateau}.state_dict", "num_bad_epochs") or lacks(
        "fairseq.checkpoint_utils:save_checkpoint", "num_runs"
    )


def copies_in_place() -> bool:
    """Whether a copy overwrites the old file instead of replacing it by renaming."""
    return has("fairseq.file_io:PathManager.copy", r"copyfile\(src_path, dst_path\)")


def trains_when_finished() -> bool:
    """Whether training begins before any stopping condition is checked.

    The command itself is not imported, which would set up its logging.
    """
    spec = importlib.util.find_spec("fairseq_cli.train")
    if spec is None or spec.origin is None or not Path(spec.origin).exists():
        return True
    main = re.search(r"\ndef main\(.*?(?=\n\S|\Z)", Path(spec.origin).read_text("utf-8"), re.DOTALL)
    return main is None or "get_num_updates" not in main[0]


# Precision, averages, ending


def forgets_master_weights() -> bool:
    """Whether the float32 weights, or the state of the scaler, are not stored."""
    from fairseq.optim import fp16_optimizer

    mixin = "fairseq.optim.fp16_optimizer:_FP16OptimizerMixin"
    return lacks(f"{mixin}.state_dict", "fp32_params") and hasattr(fp16_optimizer, "FP16Optimizer")


class _Counting(torch.nn.Module):
    """A module with an integer, a version number of its layout, and tied weights."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(1, dtype=torch.long))
        self.register_buffer("version", torch.tensor([3.0]))
        self.weight = self.tied = torch.nn.Parameter(torch.zeros(1))
        self.seen: set[str] = set()

    def load_state_dict(self, state: dict[str, Any], **options: Any) -> Any:  # type: ignore[override]
        self.seen = set(state)
        return super().load_state_dict(state, **options)


def averages_wrongly() -> bool:
    """Whether a moving average fails for an integer, drops a version, or decays a weight twice."""
    from fairseq.dataclass.configs import EMAConfig
    from fairseq.models.ema.ema import EMA

    model = _Counting()
    average = EMA(model, EMAConfig(ema_decay=0.5))
    torch.nn.init.ones_(model.weight)
    try:
        average.step(model)
    except RuntimeError:
        return True
    found = average.get_model()
    return "version" not in found.seen or found.weight.item() != 0.5


def forgets_averages() -> bool:
    """Whether a resumed run counts updates anew, or needs weights that it has deleted."""
    trainer = "fairseq.trainer:Trainer"
    return lacks(f"{trainer}.state_dict", "update_freq_counter") or has(
        f"{trainer}.load_checkpoint", r'del state\["model"\]'
    )


def abandons_threads() -> bool:
    """Whether a thread may still make batches while Python ends."""
    return lacks("fairseq.data.iterators", r"atexit|_consumer\.join")


def reports_by_old_hooks() -> bool:
    """Whether the report of a NaN fails for layers whose output is not a tensor."""
    return has("fairseq.nan_detector", "register_backward_hook")


def closes_what_is_not_open() -> bool:
    """Whether the destructor of a data set fails where its file could not be opened."""
    from fairseq.data.indexed_dataset import MMapIndexedDataset

    try:
        MMapIndexedDataset.__del__(SimpleNamespace())
    except AttributeError:
        return True
    return False
