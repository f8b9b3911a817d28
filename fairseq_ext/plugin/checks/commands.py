"""Make fairseq's commands check input, write all results or none, and print one line per error."""

import io
import logging
import re
import shutil
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from fairseq_ext.checkpoints import safe_load, storage
from fairseq_ext.checkpoints.dictionaries import difference, symbols
from fairseq_ext.data_folder import indexed
from fairseq_ext.generation import option_checks
from fairseq_ext.plugin.checks import arguments, training_options
from fairseq_ext.plugin.patching import around, module_of
from fairseq_ext.text import checks, generated, pipeline
from fairseq_ext.utils import files
from fairseq_ext.utils.errors import ConfigError, DataError, wrong_value
from fairseq_ext.utils.option_fields import flag
from fairseq_ext.utils.parsing import nearest


@around("fairseq.distributed.utils:call_main", patch="options that do not work")
def _call_main(original: Callable, cfg: Any, main: Callable, **options: Any) -> Any:
    """Check the options of fairseq-train, -interactive, -validate or -eval-lm, then run it.

    Problem: fairseq accepts options that cannot work, then fails with a traceback or ignores them.
    """
    command = module_of(main)
    _refuse_broken(cfg, command)
    if command in ("fairseq_cli.interactive", "fairseq_cli.validate", "fairseq_cli.eval_lm"):
        _check_models(cfg)
    if command == "fairseq_cli.interactive":
        _check_input(cfg.interactive.input)
    logs = ("fairseq_cli.train", "fairseq.logging.progress_bar", "fairseq_ext")
    for log in map(logging.getLogger, logs):
        for handler in [file for file in log.handlers if isinstance(file, logging.FileHandler)]:
            log.removeHandler(handler)  # an earlier job of a sweep has opened this log file
            handler.close()
    with files.no_empty_folder(cfg.checkpoint.save_dir):
        if command == "fairseq_cli.train" and cfg.common.log_file is not None:
            # fairseq opens the log before it makes `--save-dir`, but the log may be in that folder.
            Path(cfg.common.log_file).parent.mkdir(parents=True, exist_ok=True)
        return original(cfg, main, **options)


@around("fairseq.trainer:Trainer.__init__", patch="options that do not work")
def _check_trainer(original: Callable, self: Any, cfg: Any, *rest: Any, **options: Any) -> None:
    """Check the options of a training, then build its trainer.

    The check in :func:`_call_main` does not run in the processes that fairseq-hydra-train starts
    for GPUs.
    """
    _refuse_broken(cfg, "fairseq_cli.train")
    if cfg.optimization.use_bmuf and cfg.distributed_training.distributed_world_size == 1:
        raise ConfigError("`--use-bmuf` needs several processes; leave it out.")
    original(self, cfg, *rest, **options)


def _refuse_broken(cfg: Any, command: str) -> None:
    """Refuse options with which a command, such as ``fairseq_cli.train``, cannot work."""
    option_checks.refuse_broken(cfg, command)
    unsharded = ("train", "validate", "interactive")
    if cfg.dataset.num_shards != 1 and command.rpartition(".")[2] in unsharded:
        raise ConfigError("`--num-shards` is for fairseq-generate; leave it out.")
    only_sentences = cfg.dataset.batch_size is not None and cfg.dataset.max_tokens is None
    if getattr(cfg.task, "num_batch_buckets", 0) and only_sentences:
        raise ConfigError("`--num-batch-buckets` must have `--max-tokens`, which is missing.")
    if command == "fairseq_cli.train":
        training_options.refuse(cfg)
    sizes = (cfg.dataset.max_tokens, cfg.dataset.batch_size)
    if command == "fairseq_cli.validate" and sizes == (None, None):
        raise ConfigError("`--max-tokens` or `--batch-size` is missing.")
    if command == "fairseq_cli.eval_lm" and "tokens_per_sample" in cfg.task:
        window, longest = cfg.eval_lm.context_window, cfg.task.tokens_per_sample
        if not 0 <= window < longest:
            wish = f"at least 0 and less than `--tokens-per-sample` ({longest})"
            raise wrong_value("--context-window", wish, window)


@around("fairseq.tasks.fairseq_task:FairseqTask.build_generator", patch="options that do not work")
def _build_generator(
    original: Callable, self: Any, models: list[Any], args: Any, *rest: Any, **options: Any
) -> Any:
    """Build a generator; refuse options that the loaded models or the data do not support."""
    from fairseq.models import FairseqLanguageModel

    reasons = [reason for model in models if (reason := option_checks.no_alignment(model))]
    if reasons and getattr(args, "print_alignment", None):
        raise ConfigError(
            f"`--print-alignment` does not go with this model: {reasons[0]}. Leave it out."
        )
    if any(getattr(dataset, "tgt", dataset) is None for dataset in self.datasets.values()):
        for name in ("score_reference", "prefix_size"):
            if getattr(args, name, False):
                raise ConfigError(
                    f"`{flag(name)}` reads target sentences, but the data have none; leave it out."
                )
    if (topk := getattr(args, "sampling_topk", -1)) > 0 and topk > len(self.target_dictionary):
        raise ConfigError("`--sampling-topk` is more than the target dictionary has; lower it.")
    language_model = (options.get("extra_gen_cls_kwargs") or {}).get("lm_model")
    if language_model is None:
        return original(self, models, args, *rest, **options)
    if not isinstance(language_model, FairseqLanguageModel):
        raise ConfigError("`--lm-path` must name a checkpoint of a language model.")
    if getattr(args, "score_reference", False):
        raise ConfigError("`--lm-path` does not go with `--score-reference`; leave one out.")
    words = language_model.decoder.dictionary.symbols
    if differing := difference(words, self.target_dictionary.symbols):
        raise ConfigError(
            f"`--lm-path` reads dict.txt of the data, which is not the target's: {differing}."
        )
    return original(self, models, args, *rest, **options)


@around(
    "fairseq.sequence_generator:SequenceGenerator.generate",
    "fairseq.sequence_generator:SequenceGeneratorWithAlignment.generate",
    patch="options that do not work",
)
def _search(original: Callable, self: Any, models: list[Any], sample: Any, **options: Any) -> Any:
    """Translate a batch; if a search with `--constraints` fails, raise an error with the reason."""
    if options.get("constraints") is None:
        return original(self, models, sample, **options)
    if 2 * self.beam_size > self.vocab_size:
        raise ConfigError(
            f"`--beam` must be at most {self.vocab_size // 2} with `--constraints`, half the size "
            "of the target dictionary."
        )
    try:
        return original(self, models, sample, **options)
    except AssertionError as error:
        if not re.fullmatch(r"(\d+ < \d+)?", str(error)):  # an error that gives its reason
            raise
        raise DataError(
            "no translation has all constraints of its sentence; raise `--max-len-b`, or require "
            "fewer words."
        ) from None


def _check_input(path: str) -> None:
    """Check fairseq-interactive's input file before models are loaded.

    Standard input (``-``), pipes and devices are not read here.
    """
    if path == "-" and isinstance(sys.stdin, io.TextIOWrapper):
        # Refuse invalid UTF-8, as in files: in some locales it would become unknown words.
        sys.stdin.reconfigure(encoding="utf-8", errors="strict")
    elif path != "-" and not Path(path).is_fifo() and not Path(path).is_char_device():
        # a pipe is not checked in advance, because it can be read only once
        checks.check_text(path, empty_lines=True, max_tokens=None, controls=False)


@around("fairseq_cli.interactive:buffered_read", patch="control symbols as words")
def _buffered_read(original: Callable, path: str, size: int) -> Iterator[list[str]]:
    """Yield lists of lines; raise DataError if a line has `<s>`, `</s>` or `<pad>` as a word.

    Problem: fairseq-interactive reads the words `<s>`, `</s>` and `<pad>` of a text as its own
    symbols for the beginning, the end and the padding of a sentence.
    """
    first = 1  # number of the first line in the buffer
    for lines in original(path, size):
        for number, line in enumerate(lines, first):
            if checks.CONTROL.search(line):
                name = "standard input" if path == "-" else path
                raise DataError(f"{name}, line {number}: {checks.SYMBOL}")
        first += len(lines)
        yield lines


def _check_models(cfg: Any) -> None:
    """Require `--path`; `--model-overrides` must name options of the checkpoints in `--path`."""
    from fairseq.checkpoint_utils import get_maybe_sharded_checkpoint_filename
    from fairseq.utils import split_paths

    if cfg.common_eval.path is None:
        raise ConfigError("`--path` must name the checkpoint to use, but is missing.")
    overrides = training_options.dictionary("--model-overrides", cfg.common_eval.model_overrides)
    if not overrides:
        return
    paths = split_paths(cfg.common_eval.path)
    suffix, options = cfg.checkpoint.checkpoint_suffix, set[str]()
    for path in paths:
        name = get_maybe_sharded_checkpoint_filename(path, suffix, 0, 1)
        with safe_load.about(name):
            saved = storage.peek(name).get("cfg")
        if not isinstance(saved, Mapping) or isinstance(saved.get("model"), Namespace):
            return  # fairseq sets any option there
        options.update(name for name, _ in safe_load.entries(saved))
    for option in overrides:
        if option not in options:
            raise ConfigError(
                f"`--model-overrides` must name options of {', '.join(paths)}, but has "
                f"`{option}`{nearest(str(option), options)}"
            )


@around("fairseq_cli.generate:main", patch="complete result files")
def _generate(original: Callable, cfg: Any) -> Any:
    """Check the options of `fairseq-generate`; write all files of `--results-path`, or none.

    Problem: If fairseq-preprocess or `fairseq-generate --results-path` is stopped, it leaves
    incomplete files. Bad input ends in a traceback, or makes an unusable folder.
    """
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf

    if isinstance(cfg, Namespace):
        cfg = convert_namespace_to_omegaconf(cfg)
    _check_models(cfg)
    _refuse_broken(cfg, "fairseq_cli.generate")
    results = cfg.common_eval.results_path
    if results is None:
        return original(cfg)
    with files.cleaned_up(), files.staged_folder(results) as stage:
        cfg.common_eval.results_path = str(stage)
        return original(cfg)


@around("fairseq_cli.generate:_main", patch="how translations become text")
def _print_text_path(original: Callable, cfg: Any, output_file: IO[str]) -> Any:
    """Generate translations; before them, print the path of ``text.json``, if there is one.

    Problem: The output of fairseq-generate does not say how its tokens become text again, but
    scoring needs to know.
    """
    from fairseq.data.data_utils import infer_language_pair

    data = str(getattr(cfg.task, "data", None) or "").split(":")[0]
    models = cfg.common_eval.path.split(":")
    src, tgt = (getattr(cfg.task, f"{side}_lang", None) for side in ("source", "target"))
    if data and not (src and tgt) and Path(data).is_dir():
        src, tgt = infer_language_pair(data)
    if src and tgt:
        note = generated.note([*(Path(model).parent for model in models), data], src, tgt)
        if note is not None:
            print(note, file=output_file)
    return original(cfg, output_file)


@around("fairseq_cli.preprocess:main", patch="complete result files")
def _preprocess(original: Callable, args: Namespace) -> None:
    """Make `fairseq-preprocess` check every input, and write all results or none."""
    from fairseq.options import get_preprocessing_parser

    arguments.name_ignored(get_preprocessing_parser(), args)
    destdir = args.destdir
    if args.workers < 1:
        raise wrong_value("--workers", "at least 1", args.workers)
    _require_no_dictionary(args)
    _check_texts(args)
    logger = logging.getLogger("fairseq_cli.preprocess")
    with files.cleaned_up(), files.staged_folder(destdir) as stage:
        log = Path(destdir, "preprocess.log")
        if log.is_file():
            shutil.copyfile(log, stage / log.name)  # fairseq appends to it

        def rename(record: logging.LogRecord) -> bool:
            record.msg = str(record.msg).replace(str(stage), destdir)
            return True

        logger.addFilter(rename)
        try:
            original(Namespace(**{**vars(args), "destdir": str(stage)}))
            prefixes = _text_prefixes(args)
            if prefixes and (steps := pipeline.load(Path(prefixes[0][1]).parent)):
                pipeline.require_same(destdir, steps)
                steps.save(stage)
        finally:
            logger.removeFilter(rename)
        _require_same_dictionaries(stage, Path(destdir))
        indexed.write_manifest(stage, Path(destdir))


@around("fairseq.tasks.fairseq_task:FairseqTask.build_dictionary", patch="complete result files")
def _build_dictionary(original: Callable, cls: type, filenames: Any, **options: Any) -> Any:
    """Build a dictionary from files; refuse it if it has only fairseq's symbols, and no words."""
    dictionary = original(cls, filenames, **options)
    if not any(dictionary.count[dictionary.nspecial :]):
        raise ConfigError(
            f"the dictionary of {' and '.join(sorted(filenames))} would have no words; lower "
            "`--thresholdsrc` or `--thresholdtgt`, or raise `--nwordssrc` or `--nwordstgt`."
        )
    return dictionary


def _require_no_dictionary(args: Namespace) -> None:
    """Refuse to learn the dictionary of a language if `--destdir` already has one."""
    folder = Path(args.destdir)
    if any(not (folder / name).exists() for name in indexed.read_manifest(folder)):
        return  # an earlier call was killed while moving its files, so write them again
    joined = args.joined_dictionary and (args.srcdict or args.tgtdict)
    sides = [(args.source_lang, joined or args.srcdict)]
    if not args.only_source:
        sides.append((args.target_lang, joined or args.tgtdict))
    for language, dictionary in sides:
        path = Path(args.destdir, f"dict.{language}.txt" if language else "dict.txt")
        if not dictionary and path.exists():
            raise DataError(
                f"`--destdir` already has the dictionary {path}. Remove that folder, choose "
                "another one, or use its dictionaries again with `--srcdict` and `--tgtdict`."
            )


def _require_same_dictionaries(stage: Path, folder: Path) -> None:
    """Refuse to replace a dictionary in ``folder`` if some of the folder's data still need it.

    ``stage`` has the new files, which are to be moved into ``folder``.
    """
    written = {path.name for path in stage.iterdir()}
    stay = sorted(path.name for path in folder.glob("*.idx") if path.name not in written)
    for new in stage.glob("dict.*txt") if stay else ():
        old = folder / new.name
        if old.is_file() and (differing := difference(symbols(new), symbols(old))):
            raise DataError(
                f"{old} would be replaced, but {stay[0]} was made with it: {differing}. Use it "
                "again with `--srcdict` or `--tgtdict`, or choose another `--destdir`."
            )


def _text_prefixes(args: Namespace) -> list[tuple[str, str]]:
    """List each split with its path prefix; `--validpref` and `--testpref` may have several."""
    prefixes = [("train", args.trainpref)] if args.trainpref else []
    for split, prefix_list in (("valid", args.validpref), ("test", args.testpref)):
        prefixes += [(split, prefix) for prefix in prefix_list.split(",")] if prefix_list else []
    return prefixes


def _check_texts(args: Namespace) -> None:
    """Check the texts of every split; source and target need equal numbers of lines."""
    for split, prefix in _text_prefixes(args):
        source = f"{prefix}.{args.source_lang}" if args.source_lang else prefix
        if args.only_source:  # language modelling: documents, with empty lines between them
            checks.check_text(source, empty_lines=True, max_tokens=None, controls=False)
        else:
            target = f"{prefix}.{args.target_lang}" if args.target_lang else prefix
            empty_lines = split == "test"  # every test line must have its line in the output
            checks.check_parallel(source, target, empty_lines=empty_lines, controls=False)
            if args.align_suffix and split == "train":  # fairseq would skip a missing file
                files.require_file(f"{prefix}.{args.align_suffix}", "file of alignments")
