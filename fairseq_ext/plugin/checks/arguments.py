"""Report missing, misspelt or unsuitable options, and options that have no effect.

fairseq's parsers share groups of options, so a command also accepts options that it never reads,
such as `--fp16` in fairseq-preprocess: see :func:`ignored`. Other options have an effect only with
a certain option (:data:`ONLY_WITH`), only without a certain option (:data:`NOT_WITH`), or only in
some tasks (:data:`ONLY_TASKS`, :data:`TASK_IGNORES`).

``tests/commands/test_option_effects.py`` checks these tables: it runs fairseq with and without each
option, and compares the results.
"""

import logging
import os
import re
import sys
import types
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from fairseq_ext.checkpoints.registry_checks import misfit
from fairseq_ext.plugin.patching import acting, around
from fairseq_ext.utils.errors import ConfigError
from fairseq_ext.utils.option_fields import flag
from fairseq_ext.utils.parsing import Parser

COMMANDS = ("train", "generate", "interactive", "preprocess")
DECODING_READS = (
    *("cpu", "fp16", "memory_efficient_fp16", "model_parallel_size", "plasma_path", "seed"),
    *("use_plasma_view", "user_dir", "checkpoint_shard_count", "checkpoint_suffix", "device_id"),
    *("distributed_backend", "distributed_init_method", "distributed_no_spawn"),
    *("distributed_num_procs", "distributed_port", "distributed_rank", "distributed_world_size"),
    *("pipeline_model_parallel", "batch_size", "max_tokens", "num_shards"),
    *("required_seq_len_multiple", "skip_invalid_size_inputs_valid_test"),
)
"""Options of the shared training groups that fairseq-generate and fairseq-interactive do read."""
GENERATE_READS = (
    *("log_format", "log_interval", "no_progress_bar", "data_buffer_size", "dataset_impl"),
    *("gen_subset", "num_workers", "required_batch_size_multiple", "shard_id"),
)
"""Options of the shared training groups that fairseq-generate reads, unlike fairseq-interactive."""
DECODING_IGNORES = (
    *("criterion", "force_anneal", "lenpen_mt", "load_alignments", "lr_shrink", "optimizer"),
    *("no_beamable_mm", "no_early_stop", "no_seed_provided", "sacrebleu", "upsample_primary"),
    *("warmup_updates", "eval_bleu", "eval_bleu_args", "eval_bleu_detok", "eval_bleu_detok_args"),
    *("eval_tokenized_bleu", "eval_bleu_remove_bpe", "eval_bleu_print_samples"),
)
"""Options of other groups that fairseq-generate and fairseq-interactive accept but never read."""
INTERACTIVE_IGNORES = (
    *("lm_path", "max_target_positions", "num_batch_buckets", "prefix_size", "print_step"),
    *("quiet", "results_path", "scoring", "truncate_source"),
)
PREPROCESS_IGNORES = ("bpe", "criterion", "lr_scheduler", "optimizer", "scoring", "tokenizer")
TRAIN_IGNORES = (
    *("reset_logging", "suppress_crashes", "scoring", "gen_subset", "fast_stat_sync"),
    *("checkpoint_shard_count", "shard_id", "char_inputs"),
)
OFF = (None, False, 0, -1, "")  # values that leave an option switched off
REFUSED: dict[str, tuple[str, ...]] = {
    "train": ("use_plasma_view",),  # needs a pyarrow from before plasma was removed
    # fairseq joins only FSDP's shards (with fairscale); of other shards it keeps just the last
    "generate": ("lr_scheduler", "retain_iter_history", "checkpoint_shard_count"),
    "interactive": (
        *("lr_scheduler", "retain_iter_history", "checkpoint_shard_count", "score_reference"),
    ),
}
"""Options with which each command would end in a Python error; the plugin refuses them."""
ONLY_WITH: dict[str, tuple[str, ...]] = {
    name: tuple(prerequisites.split())
    for prerequisites, names in {
        "fp16 memory_efficient_fp16": "fp16_init_scale fp16_scale_window fp16_scale_tolerance "
        "threshold_loss_scale",
        "fp16 memory_efficient_fp16 amp": "min_loss_scale",
        "amp": "amp_batch_retries amp_init_scale amp_scale_window",
        "store_ema": "ema_decay ema_start_update ema_update_freq ema_fp32",
        "save_interval_updates": "keep_interval_updates keep_interval_updates_pattern",
        "aim_repo": "aim_run_hash",
        "force_anneal": "lr_shrink",
        "use_plasma_view": "plasma_path",
        "pipeline_model_parallel": "pipeline_balance pipeline_devices pipeline_chunks "
        "pipeline_checkpoint pipeline_encoder_balance pipeline_encoder_devices "
        "pipeline_decoder_balance pipeline_decoder_devices",
        "sampling": "sampling_topk sampling_topp",
        "diverse_beam_groups": "diverse_beam_strength",
        "lm_path": "lm_weight",
        "retain_dropout": "retain_dropout_modules",
        "adaptive_softmax_cutoff": "adaptive_softmax_dropout adaptive_softmax_factor "
        "tie_adaptive_weights tie_adaptive_proj",
        "quant_noise_pq": "quant_noise_pq_block_size",
        "base_layers": "base_sublayers base_shuffle",
        "checkpoint_activations": "offload_activations",
        "decoder_normalize_before": "no_decoder_final_norm",
        "eval_bleu": "eval_bleu_args eval_bleu_detok eval_bleu_detok_args eval_tokenized_bleu "
        "eval_bleu_remove_bpe eval_bleu_print_samples",
    }.items()
    for name in names.split()
}
"""Options that have no effect unless one of their prerequisites is also given."""
NOT_WITH: dict[str, tuple[str, ...]] = {
    "disable_validation": (
        *("validate_interval", "validate_interval_updates", "fixed_validation_seed"),
        *("max_tokens_valid", "batch_size_valid", "max_valid_steps", "patience"),
        *("keep_best_checkpoints", "eval_bleu"),
    ),
    "no_save": (
        *("keep_interval_updates", "keep_last_epochs", "keep_best_checkpoints"),
        *("no_epoch_checkpoints", "no_last_checkpoints", "no_save_optimizer_state"),
    ),
    "score_reference": (
        *("nbest", "max_len_a", "max_len_b", "min_len", "unnormalized", "lenpen", "unkpen"),
        *("no_repeat_ngram_size", "temperature", "match_source_len", "diversity_rate"),
        *("diverse_beam_groups", "diverse_beam_strength", "prefix_size"),
    ),
    "unnormalized": ("lenpen",),
    "sampling_topp": ("sampling_topk",),
}
"""Options that turn other options off, each with the options that then have no effect."""
ONLY_TASKS: dict[str, str] = {
    name: task
    for task, names in {
        "speech_to_speech": "beam_mt max_len_a_mt max_len_b_mt eos_token",
        "translation_lev": "iter_decode_eos_penalty iter_decode_max_iter "
        "iter_decode_force_max_iter iter_decode_with_beam iter_decode_with_external_reranker "
        "retain_iter_history decoding_format",
        "language_modeling": "use_plasma_view plasma_path adaptive_input",
    }.items()
    for name in names.split()
}
"""Options that translation tasks never read, each with a task that reads it."""
_OF_BATCHES = ("truncate_source", "num_batch_buckets", "required_seq_len_multiple")
TASK_IGNORES: dict[str, tuple[str, ...]] = {
    "translation_from_pretrained_bart": _OF_BATCHES,
    "translation_lev": (*_OF_BATCHES, "load_alignments"),
}
"""Options of the task ``translation`` that tasks derived from it accept but never read."""


@acting("command lines")
def _keep_options_out_of_the_log() -> None:
    """Keep fairseq from logging several hundred options before :func:`_compose` reports an error.

    Problem: If options are missing or conflict, fairseq logs all options and prints a traceback. If
    an option is misspelt, fairseq prints a page that lists all options.
    """
    logging.getLogger("fairseq.dataclass.utils").addFilter(
        lambda record: not str(record.msg).startswith("Error when composing")
    )


@around("fairseq.options:parse_args_and_arch", patch="command lines")
def _parse_args_and_arch(
    original: Callable, parser: ArgumentParser, *rest: Any, **options: Any
) -> Any:
    from fairseq.models import ARCH_MODEL_REGISTRY
    from fairseq.tasks import TASK_REGISTRY

    parser.error = types.MethodType(_error, parser)  # type: ignore[method-assign]
    try:
        parsed = original(parser, *rest, **options)
    except KeyError as error:
        if error.args != (None,):
            raise
        # fairseq-validate has no default task
        raise ConfigError("`--task` is missing; give `--task translation`.") from error
    except RuntimeError as error:
        if error.args:
            raise
        raise ConfigError(
            "`--arch` is missing; give for example `--arch gru_attention`, or another architecture "
            "that `--help` lists."
        ) from error
    args = parsed[0] if isinstance(parsed, tuple) else parsed
    if not rest and "input_args" not in options:
        name_ignored(parser, args)
    arch, name = getattr(args, "arch", None), getattr(args, "task", None)
    model, task = ARCH_MODEL_REGISTRY.get(arch), TASK_REGISTRY.get(name)
    is_default = arch == parser.get_default("arch")  # wav2vec2 in fairseq-generate
    if model and task and not is_default and misfit(task, model):
        raise ConfigError(
            f"`--task {name}` does not go with `--arch {arch}`; give another task or architecture."
        )
    return parsed


@around("fairseq.options:add_preprocess_args", patch="command lines")
def _add_preprocess_args(original: Callable, parser: ArgumentParser) -> Any:
    """Make `fairseq-preprocess`, which has its own parser, report a wrong option in one line."""
    parser.error = types.MethodType(Parser.error, parser)  # type: ignore[method-assign]
    return original(parser)


def _error(parser: ArgumentParser, message: str) -> NoReturn:
    """Print an error in one line, and exit.

    If the error is an option that only other architectures than ``--arch`` have, the line lists
    these architectures.
    """
    from fairseq_ext.base import models

    if message.startswith("unrecognized arguments: "):
        options = re.findall(r"--([\w-]+)", message)
        owners = {name: models.models_with(name.replace("-", "_")) for name in options}
        name = next((name for name in options if owners[name]), None)
        if name is not None:
            architectures = ", ".join(owners[name])
            message = (
                f"`--{name}` is an option of {architectures} only; leave it out, or give such an "
                "`--arch`."
            )
    Parser.error(parser, message)


@around("fairseq.dataclass.utils:compose", patch="command lines")
def _compose(original: Callable, *arguments: Any, overrides: list[str], **options: Any) -> Any:
    """Compose fairseq's configuration; raise ConfigError for a missing option or a wrong type.

    ``overrides`` are the options as Hydra writes them, such as ``dataset.max_tokens=4000``.
    """
    from hydra.errors import ConfigCompositionException

    try:
        return original(*arguments, overrides=overrides, **options)
    except ConfigCompositionException as error:
        override = re.search(r"override \w+\.(\w+)=(.*)", str(error))
        if override is None:
            raise
        option, value = override[1].replace("_", "-"), override[2]
        if value == "null":
            raise ConfigError(f"`--{option}` is missing, but the other options need it.") from error
        reason = str(error.__cause__ or "").partition("\n")[0]
        raise ConfigError(f"`--{option}` cannot be `{value}`: {reason}.") from error


def ignored(command: str) -> set[str]:
    """Return argparse's ``dest`` of each option that a command of :data:`COMMANDS` never reads."""
    from fairseq.dataclass import configs

    if command == "train":
        return set(TRAIN_IGNORES)
    names = set(configs.CommonConfig.__dataclass_fields__)
    if command == "preprocess":
        return names - {"_name", "user_dir"} | {*PREPROCESS_IGNORES}
    for group in ("CheckpointConfig", "DistributedTrainingConfig", "DatasetConfig"):
        names |= getattr(configs, group).__dataclass_fields__.keys()
    names = names - {"_name", *DECODING_READS} | {*DECODING_IGNORES}
    if command == "generate":
        return names - {*GENERATE_READS}
    return names | {*INTERACTIVE_IGNORES}


def name_ignored(parser: ArgumentParser, args: Namespace) -> None:
    """Print one line for each option of this process's command line that has no effect.

    ``args`` is what ``parser`` has read. Raise :class:`ConfigError` for an option with which the
    command cannot work (:data:`REFUSED`).
    """
    from fairseq_ext.base import models

    command = Path(sys.argv[0]).name.removeprefix("fairseq-")
    if command not in COMMANDS or os.environ.get("RANK", "0") != "0":
        return
    task = getattr(args, "task", None) or ""
    options, unread = _options_given(parser, sys.argv[1:]), ignored(command)
    missing = models.options_without_effect(args)
    dests = {action.dest for action in parser._actions}
    used = {name for name, value in vars(args).items() if value not in OFF}
    for name, option in options.items():
        prerequisites = ONLY_WITH.get(name, ())
        conflicts = [other for other, names in NOT_WITH.items() if name in names and other in used]
        if name in REFUSED.get(command, ()) and task != ONLY_TASKS.get(name):
            raise ConfigError(f"`{option}` does not work with fairseq-{command}; leave it out.")
        reason = f"without {missing[name]}" if name in missing else ""
        if name in unread:
            reason = "here"
        elif name in TASK_IGNORES.get(task, ()) or (
            name in ONLY_TASKS and task.startswith("translation") and task != ONLY_TASKS[name]
        ):
            reason = "in this task"
        elif conflicts:
            reason = f"with `{flag(conflicts[0])}`"
        elif dests & {*prerequisites} and not used & {*prerequisites}:
            reason = f"without {' or '.join(f'`{flag(other)}`' for other in prerequisites)}"
        if reason:
            print(f"fairseq-{command}: `{option}` has no effect {reason}.", file=sys.stderr)


def _options_given(parser: ArgumentParser, command_line: Sequence[str]) -> dict[str, str]:
    """Map each option's ``dest`` to its flag as it was written: ``{"max_tokens": "--max-tok"}``."""
    options: dict[str, str] = {}
    actions = parser._option_string_actions
    for word in (word.partition("=")[0] for word in command_line if word.startswith("--")):
        names = [word] if word in actions else [name for name in actions if name.startswith(word)]
        stored = {actions[name].dest for name in names}
        if len(stored) == 1:
            options[stored.pop()] = word
    return options
