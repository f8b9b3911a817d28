"""Refuse options of fairseq-train that cannot work, by name, before anything is loaded."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from typing import Any

from fairseq_ext.plugin.checks.interruption import last_checkpoint
from fairseq_ext.plugin.features import async_checkpoints
from fairseq_ext.plugin.table import Patch, around
from fairseq_ext.utils.errors import ConfigError
from fairseq_ext.utils.literals import literal
from fairseq_ext.utils.parsing import nearest

HIGHER_IS_BETTER = ("accuracy", "bleu")
LOWER_IS_BETTER = ("loss", "nll_loss", "ppl")


def refuse(cfg: Any) -> None:
    """Refuse options that fairseq-train accepts although they cannot work."""
    _require_basics(cfg)
    _require_packages(cfg)
    _check_sharding(cfg)
    _check_alignment_loss(cfg)
    _check_bleu(cfg)
    _check_direction(cfg.checkpoint)
    _check_model(cfg)
    if isinstance(betas := getattr(cfg.optimizer, "adam_betas", None), str):
        _check_betas(betas)
    dataset = cfg.dataset
    if dataset.dataset_impl == "cached":
        raise ConfigError(
            "`--dataset-impl cached` does not go with fairseq-train, which reads a batch before "
            "anything is cached. Leave it out, or give `--dataset-impl lazy`."
        )
    validates = not dataset.disable_validation
    if validates and dataset.combine_valid_subsets and dataset.valid_subset != "valid":
        raise ConfigError(
            "`--combine-valid-subsets` must have `--valid-subset valid`, the name of what it "
            f"combines, but that is `{dataset.valid_subset}`."
        )
    if getattr(cfg.task, "num_batch_buckets", 0) and not dataset.max_tokens:
        raise ConfigError("`--num-batch-buckets` must have `--max-tokens`, which is missing.")
    if validates and dataset.train_subset in dataset.valid_subset.split(","):
        raise ConfigError(
            f"`--valid-subset` must not be the training subset (`{dataset.train_subset}`): fairseq "
            "would then train nothing. Binarize a copy of it under another name."
        )


def _require_basics(cfg: Any) -> None:
    """Check options without a default, and numbers too small for a training to run."""
    optimization, dataset = cfg.optimization, cfg.dataset
    if cfg.optimizer is None:
        raise ConfigError("`--optimizer` is missing; give for example `--optimizer adam`.")
    require_batch_size(dataset)
    for option, value, lowest in (
        ("--lr", min(optimization.lr), 0),
        ("--clip-norm", optimization.clip_norm, 0),
        ("--update-freq", min(optimization.update_freq), 1),
        ("--max-tokens", dataset.max_tokens, 1),
        ("--batch-size", dataset.batch_size, 1),
        ("--warmup-updates", getattr(cfg.lr_scheduler, "warmup_updates", None), 0),
        ("--distributed-world-size", cfg.distributed_training.distributed_world_size, 1),
        ("--seed", cfg.common.seed, 0),
    ):
        if value is not None and not value >= lowest:  # refuses NaN, too
            raise ConfigError(f"`{option}` must be at least {lowest}, but is {value:g}.")


def _check_betas(text: str) -> None:
    """Refuse `--adam-betas` that are not two numbers below 1."""
    betas = literal(text)
    if not (
        isinstance(betas, tuple | list)
        and len(betas) == 2
        and all(isinstance(beta, int | float) and 0 <= beta < 1 for beta in betas)
    ):
        raise ConfigError(
            "`--adam-betas` must be two numbers of at least 0 and below 1 such as '(0.9, 0.98)', "
            f"but is {text}."
        )


def require_batch_size(dataset: Any) -> None:
    """Raise :class:`ConfigError` if no option of ``cfg.dataset`` limits the size of batches."""
    if dataset.max_tokens is None and dataset.batch_size is None:
        raise ConfigError(
            "`--max-tokens` or `--batch-size` is missing; give for example `--max-tokens 4000`."
        )


def _require_packages(cfg: Any) -> None:
    """Refuse options whose package is missing; fairseq would ignore them or show a traceback."""
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
            raise ConfigError(
                f"`{option}` needs the package {packages[0]}, which is not installed: `pip install "
                f"{packages[0].replace('azureml', 'azureml-core')}`, or leave the option out."
            )


def _check_sharding(cfg: Any) -> None:
    """Refuse options that ``--zero-sharding os`` cannot work with; it distributes whole tensors."""
    common = cfg.common
    if cfg.distributed_training.zero_sharding != "os":
        return
    memory_efficient = common.memory_efficient_fp16 or common.memory_efficient_bf16
    half = common.fp16 or common.bf16
    if half and not memory_efficient and not common.fp16_no_flatten_grads:
        raise ConfigError(
            "`--zero-sharding os` must have `--fp16-no-flatten-grads` in half precision: without "
            "it all weights are one piece, which is not shared out."
        )
    if cfg.optimization.use_bmuf:
        raise ConfigError("`--zero-sharding os` does not go with `--use-bmuf`.")
    if getattr(cfg.optimizer, "_name", None) == "composite":
        raise ConfigError("`--zero-sharding os` does not go with `--optimizer composite`.")


def _check_alignment_loss(cfg: Any) -> None:
    """Refuse guided alignment of a model that has none, or without alignments to learn from."""
    from fairseq.models import ARCH_MODEL_REGISTRY

    criterion = "label_smoothed_cross_entropy_with_alignment"
    if getattr(cfg.criterion, "_name", None) != criterion:
        return
    model = ARCH_MODEL_REGISTRY.get(getattr(cfg.model, "_name", None))
    reason = getattr(model, "no_alignment", "")
    if reason:
        raise ConfigError(
            f"`--criterion {criterion}` does not go with `--arch {cfg.model._name}`: {reason}."
        )
    if not getattr(cfg.task, "load_alignments", False):
        raise ConfigError(
            f"`--criterion {criterion}` must have `--load-alignments`: without it, fairseq trains "
            "as if there were no alignments. Binarize them with `fairseq-preprocess "
            "--align-suffix`."
        )


def _check_bleu(cfg: Any) -> None:
    """Check the options of ``--eval-bleu``, which fairseq reads only after the first epoch."""
    from fairseq.data.encoders import TOKENIZER_REGISTRY

    task = cfg.task
    if not hasattr(task, "eval_bleu"):
        return
    if not task.eval_bleu:
        if cfg.checkpoint.best_checkpoint_metric == "bleu":
            raise ConfigError("`--best-checkpoint-metric bleu` must have `--eval-bleu`.")
        return
    for name in ("eval_bleu_args", "eval_bleu_detok_args"):
        value, option = getattr(task, name) or "{}", f"--{name.replace('_', '-')}"
        try:
            right = isinstance(json.loads(value), dict)
        except ValueError:
            right = False
        if not right:
            raise ConfigError(
                f"`{option}` must be JSON such as '{{\"beam\": 4}}' (quote it), but is {value}."
            )
    tokenizers = list(TOKENIZER_REGISTRY)
    if task.eval_bleu_detok not in tokenizers:
        raise ConfigError(
            f"`--eval-bleu-detok` must be one of {', '.join(tokenizers)}, but is "
            f"`{task.eval_bleu_detok}`{nearest(task.eval_bleu_detok, tokenizers)}"
        )


def _check_model(cfg: Any) -> None:
    """Refuse options of the model that would end in a Python error when it is built or trained."""
    import torch

    model = cfg.model
    for side in ("encoder", "decoder"):
        config = getattr(model, side, None)
        layers = getattr(model, f"{side}_layers_to_keep", getattr(config, "layers_to_keep", None))
        if layers is not None and not isinstance(layers, str):
            raise ConfigError(
                f"`--{side}-layers-to-keep` does not go with this architecture, for which fairseq "
                f"cannot read it; train with `--{side}-layers {len(layers)}`."
            )
    noise = getattr(model, "quant_noise_scalar", None) or 0
    noise = noise or getattr(getattr(model, "quant_noise", None), "scalar", None) or 0
    if noise and (cfg.common.cpu or not torch.cuda.is_available()):
        raise ConfigError(
            "`--quant-noise-scalar` needs a GPU, on which fairseq measures the ranges of weights; "
            "leave it out."
        )
    noise = getattr(model, "quant_noise_pq", None) or 0
    noise = noise or getattr(getattr(model, "quant_noise", None), "pq", None) or 0
    if not 0 <= noise < 1:
        raise ConfigError(f"`--quant-noise-pq` must be at least 0 and below 1, but is {noise:g}.")
    cutoff, criterion = getattr(model, "adaptive_softmax_cutoff", None), cfg.criterion
    name = getattr(model, "arch", None) or getattr(model, "_name", None) or ""
    if name.startswith(("lstm", "fconv_lm")):  # their default, which only adaptive_loss reads
        cutoff = None
    if cutoff and "cross_entropy" in (getattr(criterion, "_name", None) or ""):
        raise ConfigError(
            f"`--criterion {criterion._name}` does not go with `--adaptive-softmax-cutoff`; give "
            "`--criterion adaptive_loss`."
        )
    if getattr(getattr(cfg, "ema", None), "ema_seed_model", None) is not None:
        raise ConfigError(
            "`--ema-seed-model` does not work: fairseq reads its file as torch did before 2.6. "
            "Start from the weights of that file by `--finetune-from-model`."
        )


def _check_direction(checkpoint: Any) -> None:
    """Check which direction of a metric is better; the wrong one would keep the worst model."""
    metric, maximize = checkpoint.best_checkpoint_metric, checkpoint.maximize_best_checkpoint_metric
    if metric in HIGHER_IS_BETTER and not maximize:
        raise ConfigError(
            f"`--best-checkpoint-metric {metric}` must have `--maximize-best-checkpoint-metric`: "
            "the highest value is the best one."
        )
    if metric in LOWER_IS_BETTER and maximize:
        raise ConfigError(
            f"`--best-checkpoint-metric {metric}` does not go with "
            "`--maximize-best-checkpoint-metric`: the lowest value is the best one."
        )


class UnknownMetricError(ConfigError):
    """The error that validation does not measure a metric; every process of the job raises it."""


@around("fairseq_cli.train:validate")
def _validate(
    original: Callable, cfg: Any, trainer: Any, task: Any, epoch_itr: Any, subsets: list[str]
) -> Any:
    """Save a checkpoint if the first validation shows that the metric has a wrong name.

    An existing checkpoint is kept, because it stores the best value; a new one could not.
    """
    from fairseq import checkpoint_utils

    try:
        return original(cfg, trainer, task, epoch_itr, subsets)
    except UnknownMetricError as error:
        last = last_checkpoint(cfg.checkpoint)
        _meet()
        if last is None:
            checkpoint_utils.save_checkpoint(cfg.checkpoint, trainer, epoch_itr, None)
            async_checkpoints.WRITER.wait()
            last = last_checkpoint(cfg.checkpoint)
        _meet()  # if another process ended first, this one would be stopped while saving
        cure = f" With one of them, training continues from {last}." if last else ""
        raise ConfigError(f"{error}{cure}") from None


def _meet() -> None:
    """Wait for the other processes of the job."""
    import torch.distributed

    if torch.distributed.is_initialized():
        torch.distributed.barrier()


@around("fairseq_cli.train:get_valid_stats")
def _get_valid_stats(
    original: Callable, cfg: Any, trainer: Any, stats: dict[str, Any], *rest: Any
) -> Any:
    metric = cfg.checkpoint.best_checkpoint_metric
    if metric not in stats:
        raise UnknownMetricError(
            f"`--best-checkpoint-metric` must be one of {', '.join(stats)}, but is "
            f"`{metric}`{nearest(metric, stats)}"
        )
    return original(cfg, trainer, stats, *rest)


PATCHES = (
    Patch(
        name="name of the best checkpoint's metric",
        reason="one that validation does not measure ends in `KeyError` after the first epoch, "
        "which is lost",
        layers=(_get_valid_stats, _validate),
    ),
)
