"""The commands: check what they are given; write all results or none; one message per error."""

from __future__ import annotations

import errno
import io
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
from fairseq_ext.errors import ConfigError, DataError, EnvironmentProblem

USER_CAUSED = files.FULL_DISK | {
    *(errno.ENOENT, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR),
    *(errno.EEXIST, errno.EROFS, errno.ENAMETOOLONG, errno.EIO),
}


def install() -> None:
    """Wrap the command that is running, and what starts the others."""
    from fairseq import options
    from fairseq.distributed import utils as distributed_utils
    from fairseq.tasks.fairseq_task import FairseqTask

    for module in _running("fairseq_cli.preprocess"):
        wrap(module, "main", _preprocess)
    for module in _running("fairseq_cli.generate"):
        wrap(module, "main", _generate)
    for module in _running("fairseq_cli.interactive"):
        wrap(module, "make_batches", _make_batches)
    wrap(FairseqTask, "build_generator", _build_generator)
    wrap(distributed_utils, "call_main", _call_main)
    wrap(options, "parse_args_and_arch", _parse_args_and_arch)


def _running(name: str) -> Iterator[Any]:
    """The module ``name`` if a command has imported it, also when run with ``python -m``.

    Importing it here instead would set up its logging in processes that never asked for it.
    """
    if name in sys.modules:
        yield sys.modules[name]
    main = sys.modules.get("__main__")
    if getattr(getattr(main, "__spec__", None), "name", None) == name:
        yield main


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
        name = error.filename2 or error.filename or folder
        raise EnvironmentProblem(files.explain(error, name)) from error
    except UnicodeDecodeError as error:
        raise DataError(
            f"the input is not UTF-8 ({error.reason}, byte 0x{error.object[error.start]:02x}). "
            "If it is Latin-1, convert it: iconv -f latin1 -t utf-8"
        ) from error
    except Exception as error:
        # torch.multiprocessing hands a child's error on as a traceback in text
        found = re.findall(r"^fairseq_ext\.errors\.(\w+): (.*)", str(error), re.MULTILINE)
        if type(error).__name__ != "ProcessRaisedException" or not found:
            raise
        raise getattr(errors, found[-1][0])(found[-1][1]) from None


def _call_main(original: Callable) -> Callable:
    """`fairseq-train`, `-interactive` and `-validate`, before they start any process."""

    def call_main(cfg: Any, main: Callable, **options: Any) -> Any:
        spec = main.__globals__["__spec__"]  # its name is the module's also under `python -m`
        command = spec.name if spec else ""
        refuse_broken(cfg, command)
        if command in ("fairseq_cli.interactive", "fairseq_cli.validate"):
            _require_path(cfg)
        if command == "fairseq_cli.interactive":
            _check_input(cfg.interactive.input)
        with one_message(), files.no_empty_folder(cfg.checkpoint.save_dir):
            return original(cfg, main, **options)

    return call_main


def refuse_broken(cfg: Any, command: str) -> None:
    """Refuse by name what fairseq accepts but cannot do.

    Raises:
        ConfigError: an option, or a combination, that ends in an error deep inside fairseq or in
            a run that does nothing.
    """
    generation, dataset = cfg.generation, cfg.dataset
    soft = generation.print_alignment == "soft"
    if generation.replace_unk is not None:
        raise ConfigError(
            "`--replace-unk` does not work in this fairseq (it reads a binarised corpus as text), "
            "and no model without alignments could do it. Leave it out; subwords leave hardly any "
            "unknown words."
        )
    if command == "fairseq_cli.interactive" and soft:
        raise ConfigError(
            "`--print-alignment soft` is for fairseq-generate; fairseq-interactive prints "
            "`--print-alignment hard` only."
        )
    if generation.score_reference and soft:
        raise ConfigError(
            "`--print-alignment soft` does not go with `--score-reference`; give `hard`."
        )
    if command != "fairseq_cli.train":
        return
    _refuse_alignment_loss(cfg)
    if getattr(cfg.task, "num_batch_buckets", 0) and not dataset.max_tokens:
        raise ConfigError("`--num-batch-buckets` must have `--max-tokens`, which is missing.")
    if dataset.train_subset in dataset.valid_subset.split(",") and not dataset.disable_validation:
        raise ConfigError(
            f"`--valid-subset` must not be the training subset (`{dataset.train_subset}`): fairseq "
            "would then train nothing. Binarise a copy of it under another name."
        )


def _refuse_alignment_loss(cfg: Any) -> None:
    from fairseq.models import ARCH_MODEL_REGISTRY

    criterion = "label_smoothed_cross_entropy_with_alignment"
    model = ARCH_MODEL_REGISTRY.get(getattr(cfg.model, "_name", None))
    reason = getattr(model, "no_alignment", "")
    if reason and getattr(cfg.criterion, "_name", None) == criterion:
        raise ConfigError(
            f"`--criterion {criterion}` does not go with `--arch {cfg.model._name}`: {reason}."
        )


def _build_generator(original: Callable) -> Callable:
    """The first step with both options and models, before anything is translated."""

    def build_generator(self: Any, models: list[Any], args: Any, *rest: Any, **options: Any) -> Any:
        reasons = [reason for model in models if (reason := getattr(model, "no_alignment", ""))]
        if reasons and getattr(args, "print_alignment", None):
            raise ConfigError(
                f"`--print-alignment` does not go with this model: {reasons[0]}. Leave it out."
            )
        return original(self, models, args, *rest, **options)

    return build_generator


def _make_batches(original: Callable) -> Callable:
    """`fairseq-interactive` numbers the sentences of each buffer anew; errors name the line."""
    read = 0

    def make_batches(lines: list[str], cfg: Any, task: Any, *rest: Any) -> Iterator[Any]:
        nonlocal read
        task.first_sentence, read = read + 1, read + len(lines)
        yield from original(lines, cfg, task, *rest)

    return make_batches


def _check_input(path: str) -> None:
    if path == "-" and isinstance(sys.stdin, io.TextIOWrapper):
        # as fairseq reads files; some locales would turn what is not UTF-8 into unknown words
        sys.stdin.reconfigure(encoding="utf-8", errors="strict")
    elif path != "-" and not Path(path).is_fifo() and not Path(path).is_char_device():
        text.check_text(path, empty_lines=True, max_tokens=None)  # a pipe can be read only once


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
        refuse_broken(cfg, "fairseq_cli.generate")
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
    joined = args.joined_dictionary and (args.srcdict or args.tgtdict)
    sides = [(args.source_lang, joined or args.srcdict)]
    if not args.only_source:
        sides.append((args.target_lang, joined or args.tgtdict))
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


def _parse_args_and_arch(original: Callable) -> Callable:
    def parse_args_and_arch(*arguments: Any, **options: Any) -> Any:
        try:
            return original(*arguments, **options)
        except KeyError as error:
            if error.args != (None,):
                raise
            # fairseq-validate has no default
            raise ConfigError("`--task` is missing; give `--task translation`.") from error

    return parse_args_and_arch
