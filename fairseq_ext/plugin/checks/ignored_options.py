"""Warn of options that a user gives and fairseq's command does not read.

fairseq's parsers share groups of options: fairseq-generate takes `--save-interval`, and
fairseq-preprocess `--fp16`. Other options are read only beside another one, or by some tasks.
:data:`IGNORED`, :data:`ONLY_WITH` and :data:`ONLY_TASKS` list the three kinds.
``tests/commands/test_option_effects.py`` takes every option from the parsers, and compares runs
with and without it.
"""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path

from fairseq_ext.utils.errors import ConfigError

PRECISION = (
    *("fp16_init_scale", "fp16_scale_window", "fp16_scale_tolerance", "min_loss_scale"),
    *("threshold_loss_scale", "fp16_no_flatten_grads", "on_cpu_convert_precision"),
    *("memory_efficient_bf16", "amp_batch_retries", "amp_init_scale"),
    *("amp_scale_window", "bf16", "amp"),
)
LOGS = (
    *("log_file", "aim_repo", "aim_run_hash", "wandb_project", "azureml_logging"),
    *("profile", "reset_logging", "suppress_crashes", "quantization_config_path"),
    *("empty_cache_freq", "all_gather_list_size"),
)
TRAINING = (
    *PRECISION,
    *LOGS,
    *("criterion", "optimizer"),
    *("valid_subset", "combine_valid_subsets", "ignore_unused_valid_subsets"),
    *("validate_interval", "validate_interval_updates", "validate_after_updates"),
    *("fixed_validation_seed", "disable_validation", "max_tokens_valid", "max_valid_steps"),
    *("curriculum", "grouped_shuffling", "update_epoch_batch_itr", "update_ordered_indices_seed"),
    *("ddp_backend", "ddp_comm_hook", "bucket_cap_mb", "fix_batches_to_gpus"),
    *("find_unused_parameters", "gradient_as_bucket_view", "fast_stat_sync", "heartbeat_timeout"),
    *("broadcast_buffers", "slowmo_momentum", "slowmo_base_algorithm", "localsgd_frequency"),
    *("nprocs_per_node", "pipeline_chunks", "pipeline_checkpoint", "zero_sharding"),
    *("no_reshard_after_forward", "fp32_reduce_scatter", "cpu_offload", "use_sharded_state"),
    *("not_fsdp_flatten_parameters", "restore_file", "continue_once", "finetune_from_model"),
    *("reset_dataloader", "reset_lr_scheduler", "reset_meters", "reset_optimizer"),
    *("optimizer_overrides", "save_interval", "save_interval_updates", "keep_interval_updates"),
    *("keep_interval_updates_pattern", "keep_last_epochs", "keep_best_checkpoints", "no_save"),
    *("no_epoch_checkpoints", "no_last_checkpoints", "no_save_optimizer_state"),
    *("best_checkpoint_metric", "maximize_best_checkpoint_metric", "patience"),
    *("load_checkpoint_on_all_dp_ranks", "write_checkpoints_asynchronously", "save_dir"),
    *("train_subset", "batch_size_valid", "upsample_primary", "load_alignments"),
    *("eval_bleu", "eval_bleu_args", "eval_bleu_detok", "eval_bleu_detok_args"),
    *("eval_tokenized_bleu", "eval_bleu_remove_bpe", "eval_bleu_print_samples"),
    *("force_anneal", "lr_shrink", "warmup_updates"),
    *("tpu", "lenpen_mt", "pipeline_balance", "pipeline_devices"),
    *("pipeline_encoder_balance", "pipeline_encoder_devices"),
    *("pipeline_decoder_balance", "pipeline_decoder_devices"),
)
IGNORED: dict[str, tuple[str, ...]] = {
    "train": (
        *("reset_logging", "suppress_crashes", "scoring", "gen_subset", "fast_stat_sync"),
        *("checkpoint_shard_count", "shard_id", "char_inputs"),
    ),
    "generate": (
        *TRAINING,
        *("no_early_stop", "no_beamable_mm", "no_seed_provided", "sacrebleu", "tensorboard_logdir"),
    ),
    "interactive": (
        *TRAINING,
        *("no_early_stop", "no_beamable_mm", "no_seed_provided", "no_progress_bar"),
        *("log_interval", "log_format", "tensorboard_logdir"),
        *("scoring", "num_workers", "required_batch_size_multiple", "gen_subset", "quiet"),
        *("results_path", "sacrebleu", "print_step", "lm_path", "data_buffer_size"),
        *("dataset_impl", "shard_id", "prefix_size", "truncate_source", "num_batch_buckets"),
        "max_target_positions",
    ),
    "preprocess": (
        *PRECISION,
        *LOGS,
        *("no_progress_bar", "log_interval", "log_format", "tensorboard_logdir", "seed", "cpu"),
        *(
            "tpu",
            "fp16",
            "memory_efficient_fp16",
            "model_parallel_size",
            "use_plasma_view",
            "plasma_path",
            "criterion",
        ),
        *("tokenizer", "bpe", "optimizer", "lr_scheduler", "scoring"),
    ),
}
"""Options that each command accepts and never reads, by the names of their values."""
OFF = (None, False, 0, -1, "")
"""Values of options that switch nothing on."""
REFUSED: dict[str, tuple[str, ...]] = {
    "train": ("use_plasma_view",),  # of a pyarrow that no longer exists
    "generate": ("lr_scheduler", "retain_iter_history"),
    "interactive": ("lr_scheduler", "retain_iter_history", "score_reference"),
}
"""Options with which each command ends in an error of Python."""
ONLY_WITH: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        ("fp16_init_scale", "fp16_scale_window", "fp16_scale_tolerance", "threshold_loss_scale"),
        ("fp16", "memory_efficient_fp16"),
    ),
    "min_loss_scale": ("fp16", "memory_efficient_fp16", "amp"),
    **dict.fromkeys(("amp_batch_retries", "amp_init_scale", "amp_scale_window"), ("amp",)),
    **dict.fromkeys(
        ("ema_decay", "ema_start_update", "ema_update_freq", "ema_fp32"), ("store_ema",)
    ),
    **dict.fromkeys(
        ("keep_interval_updates", "keep_interval_updates_pattern"), ("save_interval_updates",)
    ),
    "aim_run_hash": ("aim_repo",),
    "plasma_path": ("use_plasma_view",),
    **dict.fromkeys(
        (
            *("pipeline_balance", "pipeline_devices", "pipeline_chunks", "pipeline_checkpoint"),
            *("pipeline_encoder_balance", "pipeline_encoder_devices"),
            *("pipeline_decoder_balance", "pipeline_decoder_devices"),
        ),
        ("pipeline_model_parallel",),
    ),
    **dict.fromkeys(("sampling_topk", "sampling_topp"), ("sampling",)),
    "diverse_beam_strength": ("diverse_beam_groups",),
    "lm_weight": ("lm_path",),
    "retain_dropout_modules": ("retain_dropout",),
    **dict.fromkeys(
        (
            *("adaptive_softmax_dropout", "adaptive_softmax_factor"),
            *("tie_adaptive_weights", "tie_adaptive_proj"),
        ),
        ("adaptive_softmax_cutoff",),
    ),
    "quant_noise_pq_block_size": ("quant_noise_pq",),
    **dict.fromkeys(("base_sublayers", "base_shuffle"), ("base_layers",)),
    "offload_activations": ("checkpoint_activations",),
    "no_decoder_final_norm": ("decoder_normalize_before",),
    **dict.fromkeys(
        (
            *("eval_bleu_args", "eval_bleu_detok", "eval_bleu_detok_args"),
            *("eval_tokenized_bleu", "eval_bleu_remove_bpe", "eval_bleu_print_samples"),
        ),
        ("eval_bleu",),
    ),
}
"""Options that are read only beside one of their prerequisites."""
ONLY_TASKS: dict[str, str] = {
    **dict.fromkeys(("beam_mt", "max_len_a_mt", "max_len_b_mt"), "speech_to_speech"),
    "eos_token": "speech_to_speech",
    **dict.fromkeys(
        (
            *("iter_decode_eos_penalty", "iter_decode_max_iter", "iter_decode_force_max_iter"),
            *("iter_decode_with_beam", "iter_decode_with_external_reranker"),
            *("retain_iter_history", "decoding_format"),
        ),
        "translation_lev",
    ),
    **dict.fromkeys(("use_plasma_view", "plasma_path"), "language_modeling"),
    "adaptive_input": "language_modeling",
}
"""Options that a task of translation never reads, and a task that reads each."""


def name_ignored(parser: ArgumentParser, args: Namespace) -> None:
    """Print one line for each option of this process' command line that has no effect."""
    command = Path(sys.argv[0]).name.removeprefix("fairseq-")
    if command not in IGNORED or os.environ.get("RANK", "0") != "0":
        return
    task = getattr(args, "task", None) or ""
    options = _options_given(parser, sys.argv[1:])
    for name, option in options.items():
        prerequisites = ONLY_WITH.get(name, ())
        if name in REFUSED.get(command, ()) and task != ONLY_TASKS.get(name):
            raise ConfigError(f"`{option}` cannot be used here; leave it out.")
        if name in IGNORED[command]:
            print(f"fairseq-{command}: `{option}` has no effect here.", file=sys.stderr)
        elif name in ONLY_TASKS and task.startswith("translation") and task != ONLY_TASKS[name]:
            print(f"fairseq-{command}: `{option}` has no effect in this task.", file=sys.stderr)
        elif prerequisites and all(getattr(args, other, None) in OFF for other in prerequisites):
            needed = " or ".join(f"`--{other.replace('_', '-')}`" for other in prerequisites)
            line = f"fairseq-{command}: `{option}` has no effect without {needed}."
            print(line, file=sys.stderr)


def _options_given(parser: ArgumentParser, words: Sequence[str]) -> dict[str, str]:
    """Return the options among ``words``, even abbreviated ones, by the attributes they set."""
    options: dict[str, str] = {}
    actions = parser._option_string_actions
    for word in (word.partition("=")[0] for word in words if word.startswith("--")):
        names = [word] if word in actions else [name for name in actions if name.startswith(word)]
        stored = {actions[name].dest for name in names}
        if len(stored) == 1:
            options[stored.pop()] = word
    return options
