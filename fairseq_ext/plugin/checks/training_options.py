"""Refuse options of fairseq-train that cannot work, before anything is loaded."""

import importlib.util
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch

from fairseq_ext.plugin.patching import around
from fairseq_ext.training import onednn_matmul
from fairseq_ext.utils.errors import ConfigError, wrong_value
from fairseq_ext.utils.literals import literal_or
from fairseq_ext.utils.option_fields import flag
from fairseq_ext.utils.parsing import nearest

LOWER_IS_BETTER, HIGHER_IS_BETTER = ("loss", "nll_loss", "ppl"), ("accuracy", "bleu")
ALIGNMENT = "label_smoothed_cross_entropy_with_alignment"
KNOWN_METRICS = (*LOWER_IS_BETTER, *HIGHER_IS_BETTER, "alignment_loss")
LOSSES = (
    "cross_entropy",
    "label_smoothed_cross_entropy",
    "adaptive_loss",
    "distillation",
    ALIGNMENT,
)
"""Criterions whose metrics are all in :data:`KNOWN_METRICS`; others may have any metric."""
BLEU_SEARCH = (
    *("beam", "max_len_a", "max_len_b", "min_len", "lenpen", "unkpen", "unnormalized"),
    *("temperature", "no_repeat_ngram_size", "match_source_len", "diversity_rate"),
    *("diverse_beam_groups", "diverse_beam_strength", "sampling", "sampling_topk", "sampling_topp"),
)
"""The options of a search that ``--eval-bleu-args`` can have."""


def refuse(cfg: Any) -> None:
    """Raise :class:`ConfigError` with the first fault of the options of a training, if any."""
    checks = (_numbers, _precision, _packages, _sharding, _criterion, _bleu, _metric, _model, _data)
    for faults in checks:
        for fault in faults(cfg):
            raise ConfigError(fault)


def dictionary(option: str, text: str) -> dict[Any, Any]:
    """Read ``text``, the value of ``option``, as a dictionary; raise ConfigError if it is not."""
    values = literal_or(text, None)
    if not isinstance(values, dict):
        raise wrong_value(option, "a dictionary such as \"{'dropout': 0.1}\" (quote it)", text)
    return values


def _clash(option: str, other: str) -> str:
    return f"`{option}` does not go with `{other}`; leave one out."


def _need(option: str, other: str) -> str:
    return f"`{option}` must have `{other}`."


def _numbers(cfg: Any) -> Iterator[str]:
    """Yield errors about `--optimizer`, and about numbers with which training cannot run."""
    optimization, dataset = cfg.optimization, cfg.dataset
    dictionary("--optimizer-overrides", cfg.checkpoint.optimizer_overrides)
    if cfg.optimizer is None:
        yield "`--optimizer` is missing; give for example `--optimizer adam`."
    for option, value, lowest in (
        ("--lr", min(optimization.lr), 0),
        ("--clip-norm", optimization.clip_norm, 0),
        ("--update-freq", min(optimization.update_freq), 1),
        ("--max-tokens", dataset.max_tokens, 1),
        ("--batch-size", dataset.batch_size, 1),
        ("--warmup-updates", getattr(cfg.lr_scheduler, "warmup_updates", None), 0),
        ("--distributed-world-size", cfg.distributed_training.distributed_world_size, 1),
        ("--seed", cfg.common.seed, 0),
        ("--log-interval", cfg.common.log_interval, 1),
        ("--validate-interval", dataset.validate_interval, 1),
        ("--save-interval", cfg.checkpoint.save_interval, 1),
        ("--encoder-embed-dim", getattr(cfg.model, "encoder_embed_dim", None), 1),
        ("--decoder-embed-dim", getattr(cfg.model, "decoder_embed_dim", None), 1),
    ):
        if value is not None and not value >= lowest:  # refuses NaN, too
            yield f"`{option}` must be at least {lowest}, but is {value:g}."
    for name in ("dropout", "attention_dropout", "activation_dropout"):
        share = getattr(cfg.model, name, None)
        if share is not None and not 0 <= share <= 1:
            yield f"`{flag(name)}` must be from 0 to 1, but is {share:g}."
    text = getattr(cfg.optimizer, "adam_betas", None)
    betas = literal_or(text, None) if isinstance(text, str) else (0, 0)
    is_pair = isinstance(betas, tuple | list) and len(betas) == 2
    if not is_pair or not all(isinstance(b, int | float) and 0 <= b < 1 for b in betas):
        yield f"`--adam-betas` must be two numbers below 1 such as '(0.9, 0.98)', but is {text}."
    for name in ("epoch2lr", "update2lr"):  # of `--lr-scheduler manual`
        schedule = getattr(cfg.lr_scheduler, name, "{}")
        rates = literal_or(schedule.replace(" ", ""), None)
        if not isinstance(rates, dict) or not all(map(_is_rate, rates, rates.values())):
            yield f"`--{name}` must be such as \"{{'1-3': 0.1, '4': 0.01}}\", but is {schedule}."


def _is_rate(times: Any, rate: Any) -> bool:
    """Whether ``--lr-scheduler manual`` can read the rate of some epochs or updates."""
    is_range = isinstance(times, str) and re.fullmatch(r"\d+(,\d+)*|\d+-\d+", times)
    return bool(is_range) and isinstance(rate, int | float)


def _precision(cfg: Any) -> Iterator[str]:
    """Yield errors about ``--fp16`` or ``--amp`` without CUDA, and about ``--bf16-products``."""
    on_gpu = torch.cuda.is_available() and not cfg.common.cpu
    # `memory_efficient_fp16` also sets `fp16`, so that the option that was given comes first
    names = ("memory_efficient_fp16", "fp16", "amp", "memory_efficient_bf16", "bf16")
    half = [flag(name) for name in names if getattr(cfg.common, name)]
    if half and not on_gpu and "bf16" not in half[0]:
        yield f"`{half[0]}` trains on a CUDA device only; leave it out, or use `--bf16`."
    if not getattr(cfg.optimization, "bf16_products", False):
        return
    if half:
        yield _clash("--bf16-products", half[0])
    if on_gpu:
        yield "`--bf16-products` is for training on a CPU; on a GPU, use `--bf16` or `--amp`."
    if not onednn_matmul.is_replaceable():
        yield "`--bf16-products` needs oneDNN and a newer torch; update torch, or leave it out."


def _packages(cfg: Any) -> Iterator[str]:
    """Yield errors about options that need a missing package; fairseq would ignore them or fail."""
    common, backend = cfg.common, cfg.distributed_training.ddp_backend
    for is_set, option, *packages in (
        (common.tpu and not common.bf16, "--tpu", "torch_xla"),
        (backend in ("fully_sharded", "slowmo"), f"--ddp-backend {backend}", "fairscale"),
        (common.tensorboard_logdir, "--tensorboard-logdir", "tensorboard", "tensorboardX"),
        (common.wandb_project, "--wandb-project", "wandb"),
        (common.aim_repo, "--aim-repo", "aim"),
        (common.azureml_logging, "--azureml-logging", "azureml"),
    ):
        if is_set and not any(map(importlib.util.find_spec, packages)):
            yield (
                f"`{option}` needs the package {packages[0]}, which is not installed: `pip install "
                f"{packages[0].replace('azureml', 'azureml-core')}`, or leave the option out."
            )


def _sharding(cfg: Any) -> Iterator[str]:
    """Yield errors about options that do not go with ``--zero-sharding os``."""
    common, option = cfg.common, "--zero-sharding os"
    if cfg.distributed_training.zero_sharding != "os":
        return
    lean = common.memory_efficient_fp16 or common.memory_efficient_bf16
    if (common.fp16 or common.bf16) and not lean and not common.fp16_no_flatten_grads:
        yield _need(option, "--fp16-no-flatten-grads")  # else all weights are one tensor
    if cfg.optimization.use_bmuf:
        yield _clash(option, "--use-bmuf")
    if getattr(cfg.optimizer, "_name", None) == "composite":
        yield _clash(option, "--optimizer composite")


def _criterion(cfg: Any) -> Iterator[str]:
    """Yield errors if the model or the data lack what the criterion needs."""
    from fairseq.models import ARCH_MODEL_REGISTRY

    criterion = getattr(cfg.criterion, "_name", None) or ""
    name = getattr(cfg.model, "arch", None) or getattr(cfg.model, "_name", None) or ""
    if criterion == ALIGNMENT:
        if reason := getattr(ARCH_MODEL_REGISTRY.get(name), "no_alignment", ""):
            yield f"`--criterion {criterion}` does not go with `--arch {name}`: {reason}."
        if not getattr(cfg.task, "load_alignments", False):
            yield _need(f"--criterion {criterion}", "--load-alignments")
    # lstm and fconv_lm have cutoffs by default, which only adaptive_loss reads
    has_cutoff = getattr(cfg.model, "adaptive_softmax_cutoff", None)
    if has_cutoff and "cross_entropy" in criterion and not name.startswith(("lstm", "fconv_lm")):
        yield _need("--adaptive-softmax-cutoff", "--criterion adaptive_loss")


def _bleu(cfg: Any) -> Iterator[str]:
    """Yield errors about ``--eval-bleu`` and its options."""
    from fairseq.data.encoders import TOKENIZER_REGISTRY

    task = cfg.task
    if not getattr(task, "eval_bleu", False):
        if hasattr(task, "eval_bleu") and cfg.checkpoint.best_checkpoint_metric == "bleu":
            yield _need("--best-checkpoint-metric bleu", "--eval-bleu")
        return
    for name in ("eval_bleu_args", "eval_bleu_detok_args"):
        value = getattr(task, name) or "{}"
        try:
            values = json.loads(value)
        except ValueError:
            values = None
        if not isinstance(values, dict):
            yield f"`{flag(name)}` must be JSON such as '{{\"beam\": 4}}', but is {value}."
        elif name == "eval_bleu_args":
            yield from _bleu_search(values)
    tokenizers = list(TOKENIZER_REGISTRY)
    if task.eval_bleu_detok not in tokenizers:
        yield (
            f"`--eval-bleu-detok` must be one of {', '.join(tokenizers)}, but is "
            f"`{task.eval_bleu_detok}`{nearest(task.eval_bleu_detok, tokenizers)}"
        )


def _bleu_search(values: dict[str, Any]) -> Iterator[str]:
    """Yield errors about `--eval-bleu-args`: names that fairseq would ignore, and wrong types."""
    from fairseq.dataclass.configs import GenerationConfig

    for name, value in values.items():
        if name not in BLEU_SEARCH:
            yield (
                f"`--eval-bleu-args` may have {', '.join(BLEU_SEARCH)}, but has "
                f"`{name}`{nearest(name, BLEU_SEARCH)}"
            )
            return
        kind = GenerationConfig.__dataclass_fields__[name].type
        if type(value) is not kind and (kind, type(value)) != (float, int):
            yield f"`{name}` in `--eval-bleu-args` must not be {json.dumps(value)}."


def _metric(cfg: Any) -> Iterator[str]:
    """Yield errors about ``--best-checkpoint-metric`` and ``--maximize-best-checkpoint-metric``."""
    metric, maximize = cfg.checkpoint.best_checkpoint_metric, "--maximize-best-checkpoint-metric"
    is_set = cfg.checkpoint.maximize_best_checkpoint_metric
    if metric in HIGHER_IS_BETTER and not is_set:
        yield _need(f"--best-checkpoint-metric {metric}", maximize)
    if metric in LOWER_IS_BETTER and is_set:
        yield _clash(f"--best-checkpoint-metric {metric}", maximize)
    if metric not in KNOWN_METRICS and getattr(cfg.criterion, "_name", None) in LOSSES:
        yield _unknown_metric(metric, KNOWN_METRICS)


def _unknown_metric(metric: str, names: Any) -> str:
    return (
        f"`--best-checkpoint-metric` must be one of {', '.join(names)}, but is "
        f"`{metric}`{nearest(metric, names)}"
    )


def _model(cfg: Any) -> Iterator[str]:
    """Yield errors about model options with which building or training the model would fail."""
    model = cfg.model
    for side in ("encoder", "decoder"):
        layers = getattr(model, f"{side}_layers_to_keep", None)
        if layers is not None and not isinstance(layers, str):
            yield (
                f"`--{side}-layers-to-keep` does not work with this architecture; train with "
                f"`--{side}-layers {len(layers)}`."
            )
    scalar, pq = (getattr(model, f"quant_noise_{kind}", 0) for kind in ("scalar", "pq"))
    if scalar and (cfg.common.cpu or not torch.cuda.is_available()):
        yield "`--quant-noise-scalar` needs a GPU; leave it out."
    if not 0 <= pq < 1:
        yield f"`--quant-noise-pq` must be at least 0 and below 1, but is {pq:g}."
    if getattr(getattr(cfg, "ema", None), "ema_seed_model", None) is not None:
        yield "`--ema-seed-model` does not work; start from its file by `--finetune-from-model`."


def _data(cfg: Any) -> Iterator[str]:
    """Yield errors about validation sets."""
    dataset = cfg.dataset
    if dataset.disable_validation:
        return
    if dataset.combine_valid_subsets and dataset.valid_subset != "valid":
        yield _need("--combine-valid-subsets", "--valid-subset valid")
    if dataset.train_subset in dataset.valid_subset.split(","):
        yield (
            f"`--valid-subset` must not be the training subset (`{dataset.train_subset}`): fairseq "
            "would then train nothing. Binarize a copy of it under another name."
        )


@around("fairseq_cli.train:get_valid_stats", patch="name of the best checkpoint's metric")
def _get_valid_stats(
    original: Callable, cfg: Any, trainer: Any, stats: dict[str, Any], *rest: Any
) -> Any:
    """Complete the results of a validation as fairseq does.

    Raise :class:`ConfigError` if ``stats`` lacks the ``--best-checkpoint-metric``.

    Problem: If validation does not measure --best-checkpoint-metric, training ends in `KeyError`
    after the first epoch.
    """
    metric = cfg.checkpoint.best_checkpoint_metric
    if metric not in stats:
        raise ConfigError(_unknown_metric(metric, stats))
    return original(cfg, trainer, stats, *rest)
