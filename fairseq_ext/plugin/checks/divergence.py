"""End a diverging training with an error of one line, and keep its last good checkpoint.

fairseq checks only gradients. This module also checks the losses of training and validation, and
the weights before they are saved.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from fairseq_ext.plugin.checks.processes import last_checkpoint
from fairseq_ext.plugin.patching import around
from fairseq_ext.utils.errors import DivergenceError


@around("fairseq.trainer:Trainer.train_step", patch="divergence")
def _train_step(original: Callable, self: Any, samples: Any, *rest: Any, **options: Any) -> Any:
    """Make an update; raise DivergenceError if its loss or gradients are NaN or infinite.

    Problem: When a loss, gradient or weight is NaN or infinite, training ends in a traceback or
    goes on, and saves the broken model as the last checkpoint.
    """
    update = self.get_num_updates() + 1
    try:
        logged = original(self, samples, *rest, **options)
    except FloatingPointError as error:
        if str(error).startswith("gradients are"):
            fault = "its gradients are NaN or infinite"
        elif str(error).startswith("Minimum loss scale"):
            smallest = self.cfg.common.min_loss_scale
            fault = f"fp16 overflows even at the smallest loss scale ({smallest})"
        else:
            raise
        raise DivergenceError(_message(self, update, fault)) from error
    loss = _loss(logged)
    if loss is not None:
        if not math.isfinite(loss):
            raise DivergenceError(_message(self, update, f"its loss is {loss}"))
        self.last_finite_loss = (update, loss)
    return logged


@around("fairseq.trainer:Trainer.valid_step", patch="divergence")
def _valid_step(original: Callable, self: Any, sample: Any, *rest: Any, **options: Any) -> Any:
    logged = original(self, sample, *rest, **options)
    loss = _loss(logged)
    if loss is not None and not math.isfinite(loss):
        fault = f"after it, the loss of a batch of the validation set is {loss}"
        raise DivergenceError(_message(self, self.get_num_updates(), fault))
    return logged


@around("fairseq.trainer:Trainer._check_grad_norms", patch="divergence")
def _check_grad_norms(original: Callable, self: Any, grad_norm: torch.Tensor) -> None:
    """Compare the norms of gradients among processes, as fairseq does.

    If a norm is NaN or infinite, raise an error that says so. fairseq's error would say that
    the processes' gradients differ.
    """
    try:
        original(self, grad_norm)
    except FloatingPointError as error:
        if torch.isfinite(grad_norm).all():
            raise
        raise FloatingPointError("gradients are Nan/Inf") from error


@around("fairseq.checkpoint_utils:save_checkpoint", patch="divergence")
def _save_checkpoint(original: Callable, cfg: Any, trainer: Any, *rest: Any, **options: Any) -> Any:
    name = _not_finite(trainer)
    if name is not None:
        fault = f"after it, `{name}` is NaN or infinite, so the model is not saved"
        raise DivergenceError(_message(trainer, trainer.get_num_updates(), fault))
    return original(cfg, trainer, *rest, **options)


def _not_finite(trainer: Any) -> str | None:
    """Return the name of a NaN or infinite weight of the model or its moving average, or None."""
    models = {"": trainer.get_model()}
    if trainer.cfg.ema.store_ema:
        models["moving average of "] = trainer.ema.get_model()
    for prefix, model in models.items():
        for name, parameter in model.named_parameters():
            if not torch.isfinite(parameter).all():
                return prefix + name
    return None


def _loss(logged: Mapping[str, Any] | None) -> float | None:
    """Return the loss that a step has logged, or None if fairseq skipped the step."""
    loss = (logged or {}).get("loss")
    return None if loss is None else float(loss)


def _message(trainer: Any, update: int, fault: str) -> str:
    when, loss = getattr(trainer, "last_finite_loss", (0, 0.0))
    history = f"the last finite loss was {loss:g} (update {when})" if when else "no loss was finite"
    common = trainer.cfg.common
    precision = ", or `--bf16` or fp32" if common.fp16 or common.amp else ""
    last = last_checkpoint(trainer.cfg.checkpoint)
    start = f"{last} is unchanged: continue from it" if last else "No checkpoint was saved: begin"
    return (
        f"training diverged at update {update}: {fault}; {history}. {start} with a lower `--lr`, "
        f"more `--warmup-updates` or `--clip-norm 1`{precision}."
    )
