"""Each option of fairseq's four commands changes what the command does, or is named as ignored.

Each option that should have an effect is added to a small run of its command, with another value
than its default; what the run prints, writes and learns must differ from a run without it. All
options that are named as ignored, and all of :data:`UNSEEN`, are added to one run, which must not
differ.
"""

import argparse
import functools
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fairseq import options

import fairseq_ext
from fairseq_ext.plugin.checks.arguments import IGNORED, ONLY_IN_TASK, ONLY_WITH, REFUSED, TABLES
from tests.support.harness import USER_DIR, binarize, digits_corpus, forked
from tests.support.trainings import ARCHITECTURES, TRAINING, same_state, training_state

pytestmark = pytest.mark.long

TRAIN = (
    *ARCHITECTURES["transformer"],
    *TRAINING,
    *("--lr-scheduler", "inverse_sqrt", "--warmup-updates", 1, "--max-epoch", 2),
)
PARSERS = {
    "train": (options.get_training_parser, ["bin", *map(str, TRAIN)]),
    "generate": (options.get_generation_parser, ["bin", "--path", "model.pt"]),
    "interactive": (
        functools.partial(options.get_generation_parser, interactive=True),
        ["bin", "--path", "model.pt"],
    ),
    "preprocess": (options.get_preprocessing_parser, None),
}
UNSEEN = {
    # of several processes
    *("distributed_num_procs", "distributed_rank", "distributed_backend", "distributed_port"),
    *("device_id", "distributed_no_spawn", "ddp_backend", "ddp_comm_hook", "bucket_cap_mb"),
    *("fix_batches_to_gpus", "find_unused_parameters", "gradient_as_bucket_view"),
    *("heartbeat_timeout", "broadcast_buffers", "slowmo_momentum", "slowmo_base_algorithm"),
    *("localsgd_frequency", "nprocs_per_node", "zero_sharding", "no_reshard_after_forward"),
    *("fp32_reduce_scatter", "use_sharded_state", "not_fsdp_flatten_parameters", "cpu_offload"),
    *("load_checkpoint_on_all_dp_ranks", "all_gather_list_size", "model_parallel_size"),
    *("min_params_to_wrap", "distributed_init_method"),
    # of a GPU
    "pipeline_model_parallel",
    *("cpu", "empty_cache_freq", "fp16_no_flatten_grads", "on_cpu_convert_precision"),
    *("use_old_adam", "fp16_adam_stats", "offload_activations", "checkpoint_activations"),
    *("num_workers", "data_buffer_size", "workers"),  # the batches are loaded sooner
    "bf16_products",  # rounds products of larger models
    "required_seq_len_multiple",  # only padding changes
    "no_progress_bar",  # on a terminal
    *("tokenizer", "bpe"),  # stored with a model; in generation they need files
    *("stop_time_hours", "debug_param_names", "export"),
    "fixed_validation_seed",  # of losses that draw numbers
    # of several validation sets or parts of the training text: `test_subsets.py`
    *("combine_valid_subsets", "ignore_unused_valid_subsets"),
}
"""Options whose effect a short run on one CPU, without a terminal, does not show."""
PADDING = {"left_pad_source", "left_pad_target"}  # which in training meets dropout
UNSEEN_IN = {
    "generate": {"max_tokens", "log_format", "log_interval", *PADDING},
    "interactive": {"max_tokens", "batch_size", "buffer_size", *PADDING},
    "preprocess": {"task"},
    "train": set(),
}
"""Further ones of each command."""
NOT_TOGETHER = {
    *("log_file", "aim_repo", "wandb_project", "tokenizer", "bpe"),  # need files or libraries
    *("tpu", "pipeline_model_parallel", "distributed_init_method", "cpu_offload"),
    *("print_step", "distributed_rank", "model_parallel_size", "fp16_adam_stats"),
}
"""Options that change nothing or are refused, but not beside each other."""
OTHER_VALUES: dict[str, tuple[object, ...]] = {
    "activation_fn": ("tanh",),
    "arch": ("gru_tiny",),
    "validate_after_updates": (3,),
    **dict.fromkeys(("thresholdsrc", "thresholdtgt", "max_tokens"), (30,)),
    **dict.fromkeys(("encoder_layers", "decoder_layers", "log_interval", "update_freq"), (2,)),
    "max_len_b": (2,),
    "min_len": (12,),
    **dict.fromkeys(("max_source_positions", "max_target_positions"), (4,)),
    "unkpen": (-1000,),
    "log_format": ("json",),
    "eval_bleu_args": ('{"beam": 2}',),
    "eval_bleu_detok": ("moses",),
    "eval_bleu_detok_args": ("{}",),
    "quant_noise_pq": (0.5,),
    "adam_betas": ("(0.5, 0.5)",),
    "optimizer_overrides": ("{'weight_decay': 0.9}",),
    "retain_dropout_modules": ("TransformerEncoderLayer",),
    "max_valid_steps": (1,),
    "upsample_primary": (2,),
}
"""Values by which an option's effect shows, where that of :func:`another_value` would not."""
SAMPLING = ("--sampling", "--beam", 3, "--nbest", 3)
BESIDE: dict[str, tuple[object, ...]] = {
    **dict.fromkeys(
        ("generate seed", "interactive seed", "sampling_topk", "sampling_topp"), SAMPLING
    ),
    **dict.fromkeys(
        (
            *("reset_dataloader", "reset_lr_scheduler", "reset_meters", "reset_optimizer"),
            "optimizer_overrides",
        ),
        ("--restore-file", "MODEL", "--max-epoch", 14),
    ),
    "max_len_a": ("--max-len-b", 2),
    "diverse_beam_strength": ("--diverse-beam-groups", 5),
    "retain_dropout_modules": ("--retain-dropout",),
    "skip_invalid_size_inputs_valid_test": ("--max-source-positions", 4),
    "truncate_source": ("--max-source-positions", 4),
    "keep_interval_updates": ("--save-interval-updates", 1),
    "keep_interval_updates_pattern": (
        *("--save-interval-updates", 1),
        *("--keep-interval-updates", 1),
    ),
    "validate_after_updates": ("--validate-interval-updates", 1),
    "max_valid_steps": ("--max-tokens-valid", 20),
}
"""Options beside which another one has an effect; the run without it has them, too. MODEL stands
for the trained checkpoint."""
CLOCK = re.compile(
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d|\b(wps|ups|train_wall|wall|gb_free)[ =\"':]+[\d.]+"
    r"|in [\d.]+ ?s\b|[\d.]+ (sentences|tokens)/s|[\d:]+ left|left[ =][\d:]+|[\d.]+\s?seconds"
    r"|[Tt](otal|ranslation) time: [\d.]+"
)
"""Parts of output that differ between equal runs."""


@functools.cache
def parser(command: str) -> argparse.ArgumentParser:
    """The parser of a command, with the options of its task, model, loss and optimizer."""
    fairseq_ext.register()
    make, words = PARSERS[command]
    full = make()
    if words:
        options.parse_args_and_arch(full, words)
    return full


def actions(command: str) -> dict[str, argparse.Action]:
    # pad, eos and unk are those of BLEU's settings, which no command takes.
    return {
        action.dest: action
        for action in parser(command)._actions
        if action.option_strings and action.dest not in ("pad", "eos", "unk")
    }


def another_value(action: argparse.Action) -> tuple[object, ...]:
    """The words of an option with another value than its default."""
    option = action.option_strings[-1]
    if action.nargs == 0:
        return (option,)
    if action.dest in OTHER_VALUES:
        return (option, *OTHER_VALUES[action.dest])
    if action.choices:
        return (option, next(value for value in action.choices if value != action.default))
    if action.type in (int, float) and isinstance(action.default, int | float):
        return (option, action.default + 1 if action.default >= 0 else 1)
    return (option, 1)


def ignored(command: str) -> set[str]:
    return {name for name, commands in IGNORED.items() if command in commands}


def effective(command: str) -> Iterator[str]:
    """The options of a command that should change something here."""
    silent = {*ignored(command), *UNSEEN, *UNSEEN_IN[command], *ONLY_IN_TASK, "help", "user_dir"}
    silent |= {name for name, commands in REFUSED.items() if command in commands}
    for name in actions(command):
        if name not in silent and not (name in ONLY_WITH and name not in BESIDE):
            yield name


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus, its binary form and a trained model."""
    folder = tmp_path_factory.mktemp("effects")
    binarize(digits_corpus(folder / "text", train=60, valid=20, test=20), folder / "bin")
    words = ("--save-dir", folder / "model", *TRAIN, "--max-epoch", 12)
    run_any("fairseq-train", folder / "bin", *words, cwd=folder)
    return folder


def run_any(name: str, *words: object, cwd: Path, stdin: str = "") -> subprocess.CompletedProcess:
    """Run a command that may end well or not."""
    command = [forked(name), *map(str, words), "--user-dir", str(USER_DIR)]
    how = {"capture_output": True, "text": True, "env": {**os.environ, "OMP_NUM_THREADS": "1"}}
    return subprocess.run(command, cwd=cwd, input=stdin, timeout=300, **how)


def observe(folder: Path, work: Path, command: str, *words: object) -> dict[str, Any]:
    """What a run prints, writes and learns, without clocks, paths and its list of settings."""
    work.mkdir()
    stdin = ""
    bin_path, model = folder / "bin", folder / "model" / "checkpoint_last.pt"
    if command == "train":
        words = (bin_path, "--save-dir", work / "save", *TRAIN, *words)
    elif command == "preprocess":
        texts = [
            word
            for split in ("train", "valid", "test")
            for word in (f"--{split}pref", folder / "text" / split)
        ]
        words = ("-s", "src", "-t", "tgt", *texts, "--destdir", work / "bin", *words)
    else:
        words = (bin_path, "--path", model, "--cpu", *words)
        if command == "generate":
            words = (*words, "--max-tokens", 200)
        stdin = (folder / "text" / "test.src").read_text()
    words = tuple(model if word == "MODEL" else word for word in words)
    done = run_any(f"fairseq-{command}", *words, cwd=work, stdin=stdin)
    lines = (done.stdout + done.stderr).replace(str(work), "").splitlines()
    unsettled = [line for line in lines if not re.search(r"no effect|'_name'|Namespace\(", line)]
    paths = sorted(path for path in work.rglob("*") if path.is_file())
    files = {str(path.relative_to(work)): content(path) for path in paths}
    printed = [CLOCK.sub("", line) for line in unsettled]
    return {"status": done.returncode, "printed": printed, "files": files}


def content(path: Path) -> Any:
    """What a file says of a run: of a checkpoint its state, not its settings; nothing of a log."""
    if path.suffix != ".pt":
        return None if path.suffix in (".log", ".json") else path.read_bytes()
    try:
        return training_state(path)
    except KeyError as missing:  # --no-save-optimizer-state
        return str(missing)


@pytest.fixture(scope="module")
def plain_runs() -> dict[object, dict[str, Any]]:
    """Runs without the option in question, by their command and the options beside it."""
    return {}


@pytest.mark.parametrize(
    ("command", "name"), [(command, name) for command in PARSERS for name in effective(command)]
)
def test_an_option_changes_something(command, name, folder, tmp_path, plain_runs):
    beside = BESIDE.get(f"{command} {name}", BESIDE.get(name, ()))
    if (command, beside) not in plain_runs:
        plain_runs[command, beside] = observe(folder, tmp_path / "plain", command, *beside)
    words = another_value(actions(command)[name])
    run = observe(folder, tmp_path / "run", command, *beside, *words)
    assert not same_state(run, plain_runs[command, beside])
    if run["status"]:  # refused, in one line
        assert "Traceback" not in "\n".join(run["printed"])


@pytest.mark.parametrize(
    ("command", "beside", "name"),
    [
        ("train", ("--disable-validation",), "disable_validation"),
        ("train", ("--no-save",), "no_save"),
        ("generate", ("--score-reference",), "score_reference"),
        ("generate", ("--unnormalized",), "unnormalized"),
        ("generate", (*SAMPLING, "--sampling-topp", 0.5), "sampling_topp"),
    ],
)
def test_options_that_another_one_turns_off(command, beside, name, folder, tmp_path):
    names = TABLES["not with"][name].split()
    words = [word for name in names for word in another_value(actions(command)[name])]
    plain = observe(folder, tmp_path / "plain", command, *beside)
    assert plain["status"] == 0
    assert same_state(observe(folder, tmp_path / "run", command, *beside, *words), plain)


@pytest.mark.parametrize("command", PARSERS)
def test_ignored_options_change_nothing(command: str, folder: Path, tmp_path: Path) -> None:
    names = {*ignored(command), *UNSEEN} & actions(command).keys()
    names -= NOT_TOGETHER
    words = [word for name in sorted(names) for word in another_value(actions(command)[name])]
    plain = observe(folder, tmp_path / "plain", command)
    assert plain["status"] == 0
    assert same_state(observe(folder, tmp_path / "run", command, *words), plain)
