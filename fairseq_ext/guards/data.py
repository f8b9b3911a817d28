"""Data folders, dictionaries, datasets and lengths, as fairseq's tasks read them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from fairseq_ext import files, text
from fairseq_ext.compat import wrap
from fairseq_ext.errors import DataError

logger = logging.getLogger(__name__)


def install() -> None:
    """Wrap the loading of data and the building of batches."""
    from fairseq import tasks
    from fairseq.data import Dictionary, data_utils
    from fairseq.tasks.fairseq_task import FairseqTask
    from fairseq.tasks.translation import TranslationTask

    wrap(tasks, "setup_task", _setup_task)
    wrap(Dictionary, "add_from_file", _add_from_file)
    wrap(data_utils, "load_indexed_dataset", _load_indexed_dataset)
    wrap(data_utils, "batch_by_size", _batch_by_size)
    wrap(TranslationTask, "load_dataset", _load_dataset)
    wrap(FairseqTask, "filter_indices_by_size", _filter_indices_by_size)
    wrap(FairseqTask, "build_model", _build_model)


def _setup_task(original: Callable) -> Callable:
    def setup_task(cfg: Any, **options: Any) -> Any:
        try:
            return original(cfg, **options)
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

    return setup_task


def _add_from_file(original: Callable) -> Callable:
    def add_from_file(self: Any, f: Any) -> None:
        if not isinstance(f, str):
            return original(self, f)
        files.require_file(f, "dictionary")
        try:
            return original(self, f)
        except DataError:
            raise
        except Exception as error:
            text.check_dictionary(f)  # finds the line
            raise DataError(f"dictionary {f}: {error}") from error

    return add_from_file


def _load_indexed_dataset(original: Callable) -> Callable:
    def load_indexed_dataset(path: str, dictionary: Any = None, *rest: Any, **options: Any) -> Any:
        text.check_indexed(path, len(dictionary) if dictionary is not None else None)
        return original(path, dictionary, *rest, **options)

    return load_indexed_dataset


def _load_dataset(original: Callable) -> Callable:
    def load_dataset(self: Any, split: str, *rest: Any, **options: Any) -> None:
        again = "Run fairseq-preprocess again."
        try:
            original(self, split, *rest, **options)
        except FileNotFoundError as error:
            name = f"{split}.{self.cfg.source_lang}-{self.cfg.target_lang}.{self.cfg.source_lang}"
            raise DataError(
                f"{self.cfg.data} has no {name}.idx with its .bin. Run fairseq-preprocess with "
                "this split, or name another split."
            ) from error
        except AssertionError as error:
            raise DataError(f"{self.cfg.data}, split `{split}`: {error}. {again}") from error
        if split == self.cfg.train_subset and self.datasets[split].tgt is None:
            raise DataError(f"{self.cfg.data} has no target side for the split `{split}`. {again}")

    return load_dataset


def _build_model(original: Callable) -> Callable:
    """The task remembers the limits of its model, for messages on long sentences."""

    def build_model(self: Any, cfg: Any, *rest: Any, **options: Any) -> Any:
        model = original(self, cfg, *rest, **options)
        self.model_limits = model.max_positions()
        self.max_length_option = "--max-source-positions"
        encoder = getattr(model, "encoder", None)
        own = getattr(encoder, "max_length_option", None)
        if own and encoder.max_positions() != getattr(cfg, "max_source_positions", None):
            self.max_length_option = own
        return model

    return build_model


def _filter_indices_by_size(original: Callable) -> Callable:
    """Instead of fairseq's, whose messages say neither which side is too long nor what to do."""

    def filter_indices_by_size(
        self: Any,
        indices: Any,
        dataset: Any,
        max_positions: Any = None,
        ignore_invalid_inputs: bool = False,
    ) -> Any:
        kept, skipped = dataset.filter_indices_by_size(indices, max_positions)
        if len(skipped) == 0:
            return kept
        # a buffer of fairseq-interactive may be left out as a whole, a split may not
        if len(kept) == 0 and any(dataset is split for split in self.datasets.values()):
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
        return kept

    return filter_indices_by_size


def excess(task: Any, dataset: Any, index: int, limits: Any) -> tuple[str, str]:
    """By how much a sentence is too long for the smaller of all limits, and what can be done."""
    sizes = dataset.size(index)
    name = f"sentence {index + getattr(task, 'first_sentence', 1)}"
    if not isinstance(sizes, tuple) or not isinstance(limits, tuple):
        cure = "Raise `--max-positions`, or cut sentences with `--shorten-method truncate`"
        return f"{name} has {sizes} tokens, but the limit is {limits}", cure
    over = [size > (limit or size) for size, limit in zip(sizes, limits, strict=True)].index(True)
    side, limit = ("source", "target")[over], limits[over]
    cut = f"cut {side}s with `--task translation_ext --truncate-{side} --max-{side}-positions"
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
    return fact, f"{cure}, or {cut} {limit}`"


def _batch_by_size(original: Callable) -> Callable:
    def batch_by_size(
        indices: Any, num_tokens_fn: Callable[[int], int], *rest: Any, **options: Any
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

    return batch_by_size
