"""Thin wrappers that give fairseq's own commands clear errors and whole results.

Every wrapper checks what the user gave before fairseq reads it, or turns an error of fairseq into
one of :mod:`fairseq_ext.errors`; none repeats fairseq's work. They serve stock architectures too.
"""

from __future__ import annotations

import errno
import logging
import re
import shutil
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fairseq_ext import errors, files, text
from fairseq_ext.compat import wrap
from fairseq_ext.errors import CheckpointError, ConfigError, DataError, EnvironmentProblem

USER_CAUSED = files.FULL_DISK | {
    *(errno.ENOENT, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR),
    *(errno.EEXIST, errno.EROFS, errno.ENAMETOOLONG, errno.EIO),
}
LONG_FOR_BATCH = "Raise `--max-tokens` (or `--max-tokens-valid`), or remove the line."
LONG_FOR_MODEL = "Or raise `--max-source-positions` and `--max-target-positions`."


def install() -> None:
    """Wrap the commands that are running and the library functions they call, once."""
    from fairseq import checkpoint_utils, tasks
    from fairseq.data import Dictionary, data_utils
    from fairseq.distributed import utils as distributed_utils
    from fairseq.tasks.fairseq_task import FairseqTask
    from fairseq.tasks.translation import TranslationTask
    from fairseq.trainer import Trainer

    for module in _running("fairseq_cli.preprocess"):
        wrap(module, "main", _preprocess)
    for module in _running("fairseq_cli.generate"):
        wrap(module, "main", _generate)
    wrap(distributed_utils, "call_main", _call_main)
    wrap(tasks, "setup_task", _setup_task)
    wrap(Dictionary, "add_from_file", _add_from_file)
    wrap(data_utils, "load_indexed_dataset", _load_indexed_dataset)
    wrap(data_utils, "batch_by_size", _clear("exceeds max_tokens", LONG_FOR_BATCH))
    wrap(TranslationTask, "load_dataset", _load_dataset)
    wrap(FairseqTask, "filter_indices_by_size", _clear("Size of sample", LONG_FOR_MODEL))
    wrap(checkpoint_utils, "load_checkpoint_to_cpu", _load_checkpoint_to_cpu)
    wrap(checkpoint_utils, "load_model_ensemble_and_task", _load_model_ensemble_and_task)
    wrap(checkpoint_utils, "load_checkpoint", _load_checkpoint)
    wrap(checkpoint_utils, "_torch_persistent_save", _persistent_save)
    wrap(Trainer, "load_checkpoint", _trainer_load_checkpoint)


def _running(name: str) -> Iterator[Any]:
    """The module ``name`` if a command has imported it, also when run with ``python -m``.

    Importing it here instead would set up its logging in processes that never asked for it.
    """
    if name in sys.modules:
        yield sys.modules[name]
    main = sys.modules.get("__main__")
    if getattr(getattr(main, "__spec__", None), "name", None) == name:
        yield main


# ---- whole commands ------------------------------------------------------------------------------


@contextmanager
def one_message(folder: str | None = None) -> Iterator[None]:
    """Turn failed file operations, and errors in spawned processes, into our errors.

    ``folder`` is what to name when the system does not say which file it was.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in USER_CAUSED:
            raise
        raise EnvironmentProblem(files.explain(error, error.filename or folder)) from error
    except Exception as error:
        # torch.multiprocessing hands a child's error on as a traceback in text
        found = re.findall(r"^fairseq_ext\.errors\.(\w+): (.*)", str(error), re.MULTILINE)
        if type(error).__name__ != "ProcessRaisedException" or not found:
            raise
        raise getattr(errors, found[-1][0])(found[-1][1]) from None


def _call_main(original: Callable) -> Callable:
    """`fairseq-train`, `-interactive` and `-validate`, before they start any process."""

    def call_main(cfg: Any, main: Callable, **options: Any) -> Any:
        command = main.__globals__["__name__"]
        if command == "__main__":
            command = main.__globals__["__spec__"].name
        if command in ("fairseq_cli.interactive", "fairseq_cli.validate"):
            _require_path(cfg)
        if command == "fairseq_cli.interactive" and cfg.interactive.input != "-":
            text.check_text(cfg.interactive.input, empty_lines=True, max_tokens=None)
        with one_message(), files.no_empty_folder(cfg.checkpoint.save_dir):
            return original(cfg, main, **options)

    return call_main


def _require_path(cfg: Any) -> None:
    if cfg.common_eval.path is None:
        raise ConfigError("`--path` must name the checkpoint to use, but is missing.")


def _generate(original: Callable) -> Callable:
    """`fairseq-generate`; with `--results-path` the old results stay until the new are whole."""

    def main(cfg: Any) -> Any:
        from fairseq.dataclass.utils import convert_namespace_to_omegaconf

        if isinstance(cfg, Namespace):
            cfg = convert_namespace_to_omegaconf(cfg)
        _require_path(cfg)
        results = cfg.common_eval.results_path
        with one_message(results):
            if results is None:
                return original(cfg)
            with files.staged_folder(results) as stage:
                cfg.common_eval.results_path = str(stage)
                return original(cfg)

    return main


def _preprocess(original: Callable) -> Callable:
    """`fairseq-preprocess`: check every input, then write all results or none."""

    def main(args: Namespace) -> None:
        destdir = args.destdir
        _require_no_dictionary(args)
        sentences = _check_texts(args)
        # fairseq writes at least an end of sentence and an index entry for each
        files.require_space(destdir, 14 * sentences)
        logger = logging.getLogger("fairseq_cli.preprocess")
        with one_message(destdir), files.staged_folder(destdir) as stage:
            log = Path(destdir, "preprocess.log")
            if log.is_file():
                shutil.copyfile(log, stage / log.name)  # fairseq appends to it
            naming = _naming(str(stage), destdir)
            logger.addFilter(naming)
            # on a full disk the log fails first, and Python would print a traceback for each line
            shown, logging.raiseExceptions = logging.raiseExceptions, False
            try:
                original(Namespace(**{**vars(args), "destdir": str(stage)}))
            finally:
                logger.removeFilter(naming)
                logging.raiseExceptions = shown

    return main


def _naming(old: str, new: str) -> Callable[[logging.LogRecord], bool]:
    """A filter that writes ``new`` for ``old`` in log messages."""

    def rename(record: logging.LogRecord) -> bool:
        record.msg = str(record.msg).replace(old, new)
        return True

    return rename


def _require_no_dictionary(args: Namespace) -> None:
    sides = [(args.source_lang, args.srcdict)]
    if not args.only_source:
        sides.append((args.target_lang, args.tgtdict))
    for language, given in sides:
        path = Path(args.destdir, f"dict.{language}.txt" if language else "dict.txt")
        if not given and path.exists():
            raise DataError(
                f"`--destdir` already has the dictionary {path}. Remove that folder, choose "
                "another one, or use its dictionaries again with `--srcdict` and `--tgtdict`."
            )


def _check_texts(args: Namespace) -> int:
    """Check every text and its translation; return how many sentences there are."""
    prefixes = [("train", args.trainpref)] if args.trainpref else []
    for split, given in (("valid", args.validpref), ("test", args.testpref)):
        prefixes += [(split, prefix) for prefix in given.split(",")] if given else []
    sentences = 0
    for split, prefix in prefixes:
        source = f"{prefix}.{args.source_lang}" if args.source_lang else prefix
        if args.only_source:  # language modelling: documents, with empty lines between them
            sentences += text.check_text(source, empty_lines=True, max_tokens=None)
        else:
            target = f"{prefix}.{args.target_lang}" if args.target_lang else prefix
            empty_lines = split == "test"  # every test line must have its line in the output
            sentences += 2 * text.check_parallel(source, target, empty_lines=empty_lines)
    return sentences


# ---- data ----------------------------------------------------------------------------------------


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


def _clear(marker: str, cure: str) -> Callable[[Callable], Callable]:
    """Make a wrapper under which an error whose text has ``marker`` becomes a DataError."""

    def make(original: Callable) -> Callable:
        def wrapper(*arguments: Any, **options: Any) -> Any:
            try:
                return original(*arguments, **options)
            except Exception as error:
                if marker not in str(error):
                    raise
                raise DataError(
                    f"{error} (counted from 0, as the lines of the text). {cure}"
                ) from error

        return wrapper

    return make


# ---- checkpoints ---------------------------------------------------------------------------------


def _load_checkpoint_to_cpu(original: Callable) -> Callable:
    def load_checkpoint_to_cpu(path: str, *rest: Any, **options: Any) -> Any:
        files.load_checkpoint(path)
        return original(path, *rest, **options)

    return load_checkpoint_to_cpu


def _load_model_ensemble_and_task(original: Callable) -> Callable:
    def load_model_ensemble_and_task(filenames: list[str], *rest: Any, **options: Any) -> Any:
        try:
            return original(filenames, *rest, **options)
        except OSError as error:
            if not str(error).startswith("Model file not found"):
                raise
            name = str(error).partition(": ")[2]
            raise CheckpointError(f"checkpoint {name} does not exist; check `--path`.") from error
        except RuntimeError as error:
            if "loading state_dict" not in str(error):
                raise
            raise CheckpointError(
                f"{', '.join(filenames)} does not fit the model built for this data: "
                f"{differences(str(error))}. Use the dictionaries it was trained with."
            ) from error

    return load_model_ensemble_and_task


def _load_checkpoint(original: Callable) -> Callable:
    def load_checkpoint(cfg: Any, trainer: Any, **options: Any) -> Any:
        default = cfg.restore_file == "checkpoint_last.pt"
        for option, path in (
            ("--restore-file", None if default else cfg.restore_file),
            ("--finetune-from-model", cfg.finetune_from_model),
        ):
            suffix = f"{trainer.checkpoint_suffix or ''}.pt"
            if path and not any(Path(p).exists() for p in (path, path.replace(".pt", suffix))):
                # fairseq would start from random weights without a word
                raise CheckpointError(f"`{option}` names {path}, which does not exist.")
        return original(cfg, trainer, **options)

    return load_checkpoint


def _trainer_load_checkpoint(original: Callable) -> Callable:
    def load_checkpoint(self: Any, filename: str, *rest: Any, **options: Any) -> Any:
        try:
            return original(self, filename, *rest, **options)
        except AssertionError as error:  # another criterion or optimizer
            raise CheckpointError(f"{filename}: {error}") from error
        except Exception as error:
            if not str(error).startswith("Cannot load model parameters"):
                raise
            theirs = architecture(files.load_checkpoint(filename))
            ours = architecture({"cfg": {"model": self.cfg.model}})
            raise CheckpointError(
                f"{filename} holds the architecture `{theirs}`, but `{ours}` was asked for; "
                f"{differences(str(error.__context__))}. Give the options it was trained with, "
                "or another `--save-dir`."
            ) from error

    return load_checkpoint


def _persistent_save(original: Callable) -> Callable:
    def persistent_save(obj: Any, f: Any) -> Any:
        import torch

        # fairseq tries three times, each time behind the broken bytes of the one before
        try:
            return torch.save(obj, f)
        except (OSError, RuntimeError) as error:
            name = str(getattr(f, "name", f)).removesuffix(".tmp")
            raise EnvironmentProblem(
                f"cannot save the checkpoint {name}: {error.__context__ or error}. Free some "
                "space and start the same command again; it continues from the last checkpoint."
            ) from error

    return persistent_save


def architecture(state: dict[str, Any]) -> str:
    """The name of the architecture a checkpoint was trained with, or `unknown`."""
    model = (state.get("cfg") or {}).get("model") or state.get("args") or {}
    fields = vars(model) if isinstance(model, Namespace) else model
    return str(fields.get("arch") or fields.get("_name") or "unknown")


def differences(report: str, most: int = 3) -> str:
    """The first few entries of torch's report on a state that does not fit, in one line."""
    shapes = re.findall(r"size mismatch for (\S+): .*?Size\((.*?)\).*?Size\((.*?)\)", report)
    found = [f"`{key}` is {theirs} in it but {ours} here" for key, theirs, ours in shapes]
    for heading, meaning in (("Missing", "not in the checkpoint"), ("Unexpected", "only in it")):
        if listed := re.search(rf"{heading} key\(s\) in state_dict: (.*)", report):
            found += [f"`{key}` is {meaning}" for key in re.findall(r'"([^"]+)"', listed[1])]
    more = f" and {len(found) - most} more differences" if len(found) > most else ""
    return "; ".join(found[:most]) + more
