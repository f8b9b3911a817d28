"""Warn of options that a user gives and fairseq's command does not read.

fairseq's parsers share groups of options: fairseq-generate takes `--save-interval`, and
fairseq-preprocess `--fp16`. Other options are read only beside another one, or by some tasks.
:func:`ignored`, :data:`ONLY_WITH` and :data:`ONLY_TASKS` tell the three kinds.
``tests/commands/test_option_effects.py`` takes every option from the parsers, and compares runs
with and without it.
"""

from __future__ import annotations

import functools
import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path

from fairseq_ext.utils.errors import ConfigError

COMMANDS = ("train", "generate", "interactive", "preprocess")
DECODING_READS = (
    *("cpu", "fp16", "memory_efficient_fp16", "model_parallel_size", "plasma_path", "seed"),
    *("use_plasma_view", "user_dir", "checkpoint_shard_count", "checkpoint_suffix", "device_id"),
    *("distributed_backend", "distributed_init_method", "distributed_no_spawn"),
    *("distributed_num_procs", "distributed_port", "distributed_rank", "distributed_world_size"),
    *("pipeline_model_parallel", "batch_size", "max_tokens", "num_shards"),
    *("required_seq_len_multiple", "skip_invalid_size_inputs_valid_test"),
)
"""Options that fairseq-generate and fairseq-interactive read, of the groups of every training."""
GENERATE_READS = (
    *("log_format", "log_interval", "no_progress_bar", "data_buffer_size", "dataset_impl"),
    *("gen_subset", "num_workers", "required_batch_size_multiple", "shard_id"),
)
DECODING_IGNORES = (
    *("criterion", "force_anneal", "lenpen_mt", "load_alignments", "lr_shrink", "optimizer"),
    *("no_beamable_mm", "no_early_stop", "no_seed_provided", "sacrebleu", "upsample_primary"),
    *("warmup_updates", "eval_bleu", "eval_bleu_args", "eval_bleu_detok", "eval_bleu_detok_args"),
    *("eval_tokenized_bleu", "eval_bleu_remove_bpe", "eval_bleu_print_samples"),
)
"""Options that both accept beside those groups and never read."""
INTERACTIVE_IGNORES = (
    *("lm_path", "max_target_positions", "num_batch_buckets", "prefix_size", "print_step"),
    *("quiet", "results_path", "scoring", "truncate_source"),
)
PREPROCESS_IGNORES = ("bpe", "criterion", "lr_scheduler", "optimizer", "scoring", "tokenizer")
TRAIN_IGNORES = (
    *("reset_logging", "suppress_crashes", "scoring", "gen_subset", "fast_stat_sync"),
    *("checkpoint_shard_count", "shard_id", "char_inputs"),
)


@functools.cache
def ignored(command: str) -> frozenset[str]:
    """Return the options that a command accepts and never reads, by the names of their values."""
    from fairseq.dataclass import configs

    common = set(configs.CommonConfig.__dataclass_fields__) - {"_name"}
    if command == "train":
        return frozenset(TRAIN_IGNORES)
    if command == "preprocess":
        return frozenset(common - {"user_dir"} | {*PREPROCESS_IGNORES})
    for group in (configs.CheckpointConfig, configs.DistributedTrainingConfig):
        common |= group.__dataclass_fields__.keys()
    common |= configs.DatasetConfig.__dataclass_fields__.keys()
    names = common - {"_name", *DECODING_READS} | {*DECODING_IGNORES}
    if command == "generate":
        return frozenset(names - {*GENERATE_READS})
    return frozenset(names | {*INTERACTIVE_IGNORES})


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
    if command not in COMMANDS or os.environ.get("RANK", "0") != "0":
        return
    task = getattr(args, "task", None) or ""
    options = _options_given(parser, sys.argv[1:])
    for name, option in options.items():
        prerequisites = ONLY_WITH.get(name, ())
        if name in REFUSED.get(command, ()) and task != ONLY_TASKS.get(name):
            raise ConfigError(f"`{option}` cannot be used here; leave it out.")
        if name in ignored(command):
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
