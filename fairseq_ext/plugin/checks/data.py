"""Check data folders, dictionaries, datasets and lengths when tasks read them."""

import logging
from collections.abc import Callable
from typing import Any

import numpy as np

from fairseq_ext import text
from fairseq_ext.data_folder import indexed, manifest
from fairseq_ext.plugin.checks.commands import refuse_colon
from fairseq_ext.plugin.table import Patch, around
from fairseq_ext.utils import files
from fairseq_ext.utils.errors import ConfigError, DataError

logger = logging.getLogger(__name__)

TASK = "fairseq.tasks.fairseq_task:FairseqTask"


@around("fairseq.tasks:setup_task")
def _setup_task(original: Callable, cfg: Any, **options: Any) -> Any:
    refuse_colon("data", str(getattr(cfg, "data", None) or ""))
    requested = {name: getattr(cfg, name, None) for name in ("source_lang", "target_lang")}
    try:
        task = original(cfg, **options)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise DataError(
            f"{error.filename or error} does not exist; give the folder that "
            "fairseq-preprocess wrote (`--destdir`)."
        ) from error
    except Exception as error:
        if "infer language pair" not in str(error):
            raise
        raise DataError(
            f"{cfg.data} has no file like train.de-en.de.idx, so the languages are unknown. "
            "Give the folder that fairseq-preprocess wrote."
        ) from error
    for name, language in requested.items():
        # fairseq takes both languages from the folder if one of them is not given.
        if language and getattr(task.cfg, name, language) != language:
            option = f"--{name.replace('_', '-')} {language}"
            pair = f"{task.cfg.source_lang}-{task.cfg.target_lang}"
            raise ConfigError(f"{cfg.data} is of {pair}, so `{option}` is wrong; leave it out.")
    return task


@around("fairseq.data:Dictionary.add_from_file")
def _add_from_file(original: Callable, self: Any, f: Any) -> None:
    if not isinstance(f, str):
        return original(self, f)
    manifest.check_dictionary(files.require_file(f, "dictionary"))
    try:
        return original(self, f)
    except DataError:
        raise
    except Exception as error:
        text.check_dictionary(f)  # its error names the line
        raise DataError(f"dictionary {f}: {error}") from error


@around("fairseq.data.indexed_dataset:make_dataset")
def _make_dataset(
    original: Callable, path: str, impl: str, fix_lua_indexing: bool = False, dictionary: Any = None
) -> Any:
    """Check data: a job's first process reads all of it; its other processes compare sizes."""
    from fairseq.distributed.utils import get_global_rank

    vocabulary = len(dictionary) if dictionary is not None else None
    indexed.check(path, vocabulary, contents=get_global_rank() == 0)
    return original(path, impl, fix_lua_indexing, dictionary)


@around("fairseq.tasks.translation:TranslationTask.load_dataset")
def _load_dataset(original: Callable, self: Any, split: str, *rest: Any, **options: Any) -> None:
    cure = "Run fairseq-preprocess again."
    try:
        original(self, split, *rest, **options)
    except FileNotFoundError as error:
        name = f"{split}.{self.cfg.source_lang}-{self.cfg.target_lang}.{self.cfg.source_lang}"
        raise DataError(
            f"{self.cfg.data} has no {name}.idx with its .bin. Run fairseq-preprocess with "
            "this split, or name another split."
        ) from error
    except AssertionError as error:
        raise DataError(f"{self.cfg.data}, split `{split}`: {error}. {cure}") from error
    if split == self.cfg.train_subset and self.datasets[split].tgt is None:
        raise DataError(f"{self.cfg.data} has no target side for the split `{split}`. {cure}")
    if self.cfg.load_alignments:
        _require_alignments(self, split)


def _require_alignments(task: Any, split: str) -> None:
    """Refuse a split whose alignments are missing or too few.

    A validation set may lack them; its loss then leaves out the alignments.
    """
    cfg, dataset = task.cfg, task.datasets[split]
    alignments = getattr(dataset, "align_dataset", None)
    name = f"{split}.align.{cfg.source_lang}-{cfg.target_lang}"
    cure = "Run fairseq-preprocess with `--align-suffix`, or leave out `--load-alignments`."
    if alignments is None and split == cfg.train_subset:
        raise DataError(f"{cfg.data} has no {name}.idx with its .bin. {cure}")
    if alignments is not None and len(alignments) != len(dataset):
        raise DataError(
            f"{cfg.data}: {name}.idx has alignments of {len(alignments):,} sentences, but the "
            f"split `{split}` has {len(dataset):,}. {cure}"
        )


@around(f"{TASK}.build_model")
def _build_model(original: Callable, self: Any, cfg: Any, *rest: Any, **options: Any) -> Any:
    """Store the model's maximum lengths in the task, for messages about long sentences."""
    model = original(self, cfg, *rest, **options)
    self.model_limits = model.max_positions()
    self.max_length_option = "--max-source-positions"
    encoder = getattr(model, "encoder", None)
    option = getattr(encoder, "max_length_option", None)
    if option and encoder.max_positions() != getattr(cfg, "max_source_positions", None):
        self.max_length_option = option
    return model


@around(f"{TASK}.filter_indices_by_size")
def _filter_indices_by_size(
    original: Callable,
    self: Any,
    indices: Any,
    dataset: Any,
    max_positions: Any = None,
    ignore_invalid_inputs: bool = False,
) -> Any:
    """Filter sentences by length; unlike fairseq, say whether source or target is too long."""
    fitting, skipped = dataset.filter_indices_by_size(indices, max_positions)
    if len(skipped) == 0:
        return fitting
    # fairseq-interactive may skip all sentences of a buffer, but a split must have some
    if len(fitting) == 0 and any(dataset is split for split in self.datasets.values()):
        fact, cures = excess(self, dataset, min(skipped, key=dataset.num_tokens), max_positions)
        raise DataError(
            f"all {len(skipped):,} sentences are too long, the shortest too: {fact}. {cures}."
        )
    if not ignore_invalid_inputs:
        fact, cures = excess(self, dataset, min(skipped), max_positions)
        raise DataError(
            f"{fact}. {cures}, or leave such sentences out with "
            "`--skip-invalid-size-inputs-valid-test`."
        )
    fact, cures = excess(self, dataset, max(skipped, key=dataset.num_tokens), max_positions)
    logger.warning(
        f"{len(skipped):,} of {len(indices):,} sentences are too long and left out; "
        f"the longest: {fact}. {cures}."
    )
    return fitting


def excess(task: Any, dataset: Any, index: int, limits: Any) -> tuple[str, str]:
    """Say how long a sentence is, how long it may be, and what the user can do."""
    from fairseq.tasks.translation import TranslationTask

    sizes = dataset.size(index)
    if isinstance(sizes, np.ndarray):  # tasks with several languages return an array
        sizes = tuple(sizes.tolist())
    name = f"sentence {index + getattr(task, 'first_sentence', 1)}"
    if not isinstance(sizes, tuple) or not isinstance(limits, tuple):
        cure = "Raise `--max-positions`, or cut sentences with `--shorten-method truncate`"
        return f"{name} has {sizes} tokens, but the limit is {limits}", cure
    over = [size > (limit or size) for size, limit in zip(sizes, limits, strict=True)].index(True)
    side, limit = ("source", "target")[over], limits[over]
    cut = f"cut {side}s with `--task translation_ext --truncate-{side} --max-{side}-positions"
    cut = f", or {cut} {limit}`" if isinstance(task, TranslationTask) else ""
    model_limits = getattr(task, "model_limits", None)
    if model_limits and model_limits[over] == limit:
        allowed = "the model takes"
        option = task.max_length_option if side == "source" else "--max-target-positions"
        cure = f"Train it with a larger `{option}`"
    elif task.max_positions()[over] == limit:
        allowed, cure = f"`--max-{side}-positions` allows", "Raise it"
    else:
        allowed, cure = "`--max-tokens` allows", "Raise it"
    fact = f"{name} has {sizes[over]} {side} tokens, but {allowed} at most {limit}"
    return fact, f"{cure}{cut}"


@around("fairseq.data.data_utils:batch_by_size")
def _batch_by_size(
    original: Callable,
    indices: Any,
    num_tokens_fn: Callable[[int], int],
    *rest: Any,
    **options: Any,
) -> Any:
    try:
        return original(indices, num_tokens_fn, *rest, **options)
    except AssertionError as error:
        if "max_tokens" not in str(error):
            raise
        longest = max(indices, key=num_tokens_fn)
        raise DataError(
            f"sentence {longest + 1} has {num_tokens_fn(longest)} tokens, too many for a "
            "batch. Raise `--max-tokens` (or `--max-tokens-valid`), or remove the sentence."
        ) from error


PATCHES = (
    Patch(
        name="data folders",
        reason="a missing folder, split or side, a damaged index or a broken dictionary ends in a "
        "traceback, and a token outside the dictionary in a crash of the embedding",
        layers=(_setup_task, _add_from_file, _make_dataset, _load_dataset),
    ),
    Patch(
        name="long sentences",
        reason="fairseq says neither which side of which sentence is too long nor what to do",
        layers=(_batch_by_size, _filter_indices_by_size, _build_model),
    ),
)
