"""Check data folders, dictionaries and sentence lengths; end a run if its data files change."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fairseq_ext.checkpoints.dictionaries import difference, symbols
from fairseq_ext.data_folder import indexed
from fairseq_ext.plugin.patching import around
from fairseq_ext.text import checks
from fairseq_ext.utils import files
from fairseq_ext.utils.errors import ConfigError, DataError
from fairseq_ext.utils.files import FileVersions
from fairseq_ext.utils.option_fields import flag


@around("fairseq.tasks:setup_task", patch="data folders")
def _setup_task(original: Callable, cfg: Any, **options: Any) -> Any:
    """Set up a task; refuse a folder without binary data, and a language that its data lack.

    Problem: A missing folder, split or language, a damaged index or a broken dictionary ends in a
    traceback. A token outside the dictionary crashes the embedding.
    """
    requested = {name: getattr(cfg, name, None) for name in ("source_lang", "target_lang")}
    try:
        task = original(cfg, **options)
    except Exception as error:
        if "Could not infer language pair" not in str(error):
            raise
        raise DataError(
            f"{cfg.data} has no binary data; give the `--destdir` of fairseq-preprocess, or, to "
            "translate text with a model, `--source-lang` and `--target-lang`."
        ) from error
    # fairseq ignores one language without the other, and takes both from the folder.
    for name, language in requested.items():
        if language and getattr(task.cfg, name, language) != language:
            option = f"{flag(name)} {language}"
            pair = f"{task.cfg.source_lang}-{task.cfg.target_lang}"
            raise ConfigError(f"{cfg.data} holds {pair}, so `{option}` is wrong; leave it out.")
    return task


@around("fairseq.data:Dictionary.add_from_file", patch="data folders")
def _add_from_file(original: Callable, self: Any, f: Any) -> None:
    if not isinstance(f, str):
        return original(self, f)
    indexed.check_dictionary(files.require_file(f, "dictionary"))
    try:
        return original(self, f)
    except Exception as error:
        checks.check_dictionary(f)  # its error names the line
        raise DataError(f"dictionary {f}: {error}") from error


@around("fairseq.data.indexed_dataset:make_dataset", patch="data folders")
def _make_dataset(
    original: Callable, path: str, impl: str, fix_lua_indexing: bool = False, dictionary: Any = None
) -> Any:
    """Check the sizes of data files, then open them; a job's first process checks contents, too."""
    from fairseq.distributed.utils import get_global_rank

    vocabulary = len(dictionary) if dictionary is not None else None
    indexed.check(path, vocabulary, contents=get_global_rank() == 0)
    return original(path, impl, fix_lua_indexing, dictionary)


@around("fairseq.tasks.translation:TranslationTask.load_dataset", patch="data folders")
def _load_dataset(
    original: Callable, self: Any, split: str, epoch: int = 1, *rest: Any, **options: Any
) -> None:
    from fairseq.utils import split_paths

    folders = split_paths(self.cfg.data)
    if not hasattr(self, "data_versions"):  # its first split
        _require_equal_dictionaries(self.cfg, folders)
    shard = (epoch - 1) % len(folders) if split == self.cfg.train_subset else 0
    # Taken before fairseq maps the files into memory: later writes would change the sentences.
    versions = FileVersions(Path(folders[shard]).glob(f"{split}[.0-9]*"))
    original(self, split, epoch, *rest, **options)
    vars(self).setdefault("data_versions", {})[split] = versions
    if split == self.cfg.train_subset and self.datasets[split].tgt is None:
        raise DataError(f"{self.cfg.data} has no target side for the split `{split}`.")
    parts = list(Path(folders[0]).glob(f"{split}1.*"))
    if split == self.cfg.train_subset and self.cfg.upsample_primary > 1 and not parts:
        raise ConfigError(
            f"`--upsample-primary` is for several parts of a text, but {self.cfg.data} has no "
            f"{split}1; leave it out."
        )
    if self.cfg.load_alignments:
        _require_alignments(self, split)


def _require_equal_dictionaries(cfg: Any, folders: list[str]) -> None:
    """Refuse data folders with different dictionaries: fairseq reads only the first folder's."""
    names = sorted({f"dict.{cfg.source_lang}.txt", f"dict.{cfg.target_lang}.txt"})
    for name in names if len(folders) > 1 else ():
        first = symbols(Path(folders[0], name))
        for folder in folders[1:]:
            path = Path(folder, name)
            if differing := path.is_file() and difference(first, symbols(path)):
                raise DataError(
                    f"{folder} was binarized with another dictionary than {folders[0]}, whose "
                    f"dictionaries are used for all folders: in {name}, {differing}. Run "
                    "fairseq-preprocess again with `--srcdict` and `--tgtdict`."
                )


@around(
    "fairseq.trainer:Trainer.save_checkpoint",
    "fairseq.tasks.fairseq_task:FairseqTask.inference_step",
    patch="data folders",
)
def _require_unchanged(original: Callable, self: Any, *arguments: Any, **options: Any) -> Any:
    """Save a checkpoint or translate a batch; refuse if the data have changed on the disk."""
    for versions in getattr(getattr(self, "task", self), "data_versions", {}).values():
        versions.require_unchanged()
    return original(self, *arguments, **options)


def _require_alignments(task: Any, split: str) -> None:
    """Refuse a training set without alignments, and a split with a wrong number of alignments.

    A validation set may lack alignments; its loss then leaves out the alignment loss.
    """
    cfg, dataset = task.cfg, task.datasets[split]
    alignments = getattr(dataset, "align_dataset", None)
    name = f"{split}.align.{cfg.source_lang}-{cfg.target_lang}"
    cure = "Run fairseq-preprocess with `--align-suffix`, or leave out `--load-alignments`."
    count = 0 if alignments is None else len(alignments)
    if count != len(dataset) and (count or split == cfg.train_subset):
        wish = f"{name}.idx must have alignments of {len(dataset):,} sentences"
        raise DataError(f"{cfg.data}: {wish}, but has {count:,}. {cure}")


@around("fairseq.tasks.fairseq_task:FairseqTask.filter_indices_by_size", patch="long sentences")
def _filter_indices_by_size(
    original: Callable, self: Any, indices: Any, dataset: Any, *rest: Any, **options: Any
) -> Any:
    """Return the indices of sentences that are not too long; refuse a split without such sentences.

    In interactive use, sentences belong to no split, and all of them may be left out.

    Problem: If all sentences of a split are too long, fairseq calls the split empty, or
    fairseq-eval-lm prints a perplexity of 1.
    """
    try:
        fitting = original(self, indices, dataset, *rest, **options)
    except Exception as error:
        if "Size of sample" in str(error):  # a fault of the text, not of the checkpoint in use
            raise DataError(f"{error}.") from error
        raise
    base = getattr(dataset, "dataset", dataset)  # `--context-window` of fairseq-eval-lm wraps it
    is_split = any(split in (dataset, base) for split in self.datasets.values())
    if is_split and len(indices) and not len(fitting):
        raise DataError(
            f"all {len(indices):,} sentences of a split are too long. Raise "
            "`--max-source-positions` and `--max-target-positions`, which the model has too, or "
            "`--max-tokens`; for blocks of a language model, lower `--tokens-per-sample`."
        )
    return fitting
