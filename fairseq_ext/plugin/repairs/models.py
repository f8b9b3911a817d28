"""Repair layers of fairseq's models, checkpoints of half-precision training, and moving averages.

- fairseq keeps a second copy of an encoder layer's weights for torch's fused layer
  (“BetterTransformer”), which would silently replace a Linformer's attention.
- Dynamic convolutions (``--decoder-conv-type dynamic``) compute a kernel of K taps for each token,
  and take the softmax over all K taps (Wu et al., 2019, equation 4). In training, fairseq takes it
  over fewer taps if all sentences are short.
- fairseq leaves the modules' buffers ``version`` out of a moving average (``--store-ema``). So it
  mistakes the averaged model for one of a very old fairseq, without layer norm after the last
  layer.
"""

import logging
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_ext.checkpoints.layout import ties
from fairseq_ext.plugin.patching import around, replaced

logger = logging.getLogger(__name__)

LAYER = "fairseq.modules.transformer_layer:TransformerEncoderLayerBase"
DYNAMIC = "fairseq.modules.dynamic_convolution:DynamicConv_scripatable?"  # not in fairseq 0.12.2

COPIES = tuple(
    f"{name}_{kind}"
    for name in ("in_proj", "out_proj", "fc1", "fc2")
    for kind in ("weight", "bias")
)


@around(f"{LAYER}.__init__", patch="weights kept twice")
def without_copies(original: Callable, self: Any, *args: Any, **options: Any) -> None:
    """Build an encoder layer without fairseq's second copy of its weights.

    Problem: fairseq's encoder layers keep a second copy of their weights. After a checkpoint is
    loaded, they compute with this copy, even if a model has replaced their attention.
    """
    try:
        original(self, *args, **options)
    except AttributeError:  # which fairseq raises as it copies a layer without biases
        if "load_to_BT" not in vars(self):
            raise
    for name in COPIES:
        self._parameters.pop(name, None)
    self.BT_version = False  # there is no fused layer


@around(f"{LAYER}._load_from_state_dict", patch="weights kept twice")
def load_once(
    original: Callable, self: Any, state: dict[str, Any], prefix: str, *rest: Any
) -> None:
    """Load a layer's weights, but not fairseq's second copy of them."""
    for name in COPIES:
        state.pop(prefix + name, None)
    torch.nn.Module._load_from_state_dict(self, state, prefix, *rest)


@around(f"{DYNAMIC}.reset_parameters", patch="unused weights that nothing initializes")
def _initialize_unused_bias(original: Callable, self: Any) -> None:
    """Set the bias of a dynamic convolution to 0, even if the convolution does not use it.

    Problem: A dynamic convolution that uses no bias still stores one, and never initializes it. So
    checkpoints of equal trainings differ, and a NaN in the bias looks like divergence.
    """
    original(self)
    torch.nn.init.zeros_(self.conv_bias)


@around(f"{DYNAMIC}._forward_unfolded", patch="dynamic convolution of short sentences")
def over_all_taps(
    original: Callable, self: Any, x: Tensor, incremental_state: Any, query: Tensor
) -> Tensor:
    """Compute a dynamic convolution, with a softmax over all ``K`` taps even in short sentences.

    ``x`` and the result are ``[T, B, C]``: ``T`` tokens of each of ``B`` sentences with ``C``
    channels. If ``T`` is below ``K``, ``x`` is padded at its end to ``K`` tokens. The convolution
    is causal, so the padding does not change the tokens before it.

    Problem: The decoder's dynamic convolution has K taps. If the longest target of a batch has
    fewer tokens, fairseq takes the softmax over only that many taps in training and scoring, but
    over K taps in generation. So the probability of a sentence depends on its batch. The model
    generates with other kernels than in training, and repeats phrases.
    """
    missing = self.kernel_size - len(x)
    causal = self.padding_l == self.kernel_size - 1
    if incremental_state is not None or missing <= 0 or not causal:
        return original(self, x, incremental_state, query)
    at_end = (0, 0, 0, 0, 0, missing)
    padded = original(self, F.pad(x, at_end), None, F.pad(query, at_end))
    return padded[: len(x)]


@around("fairseq.nan_detector:NanDetector.add_hooks", patch="report of a NaN")
def watch_tensors(original: Callable, self: Any, module: torch.nn.Module) -> None:
    """Make fairseq's search for NaN gradients look at every tensor in a layer's output.

    Problem: When gradients are not finite, fairseq repeats the update to find the layer to blame.
    The repetition ends in `StopIteration`, because fairseq's hooks fail on an encoder, whose output
    is not a tensor.
    """
    from fairseq.utils import apply_to_sample

    def watch(tensor: Tensor) -> None:
        if tensor.requires_grad:
            tensor.register_hook(lambda gradient: self.bhook_fn(module, None, gradient))

    def watch_all(module: torch.nn.Module, _: Any, output: Any) -> None:
        apply_to_sample(watch, [output])

    if self.forward:
        self.fhooks.append(module.register_forward_hook(self.fhook_fn))
    if self.backward:
        self.bhooks.append(module.register_forward_hook(watch_all))


FP16, LEAN_FP16 = "fairseq.optim:FP16Optimizer", "fairseq.optim:MemoryEfficientFP16Optimizer"


SCALER_COUNTERS = ("_iter", "_last_overflow_iter", "_last_rescale_iter", "_overflows_since_rescale")


def _master_weights(optimizer: Any) -> list[Tensor]:
    weights = getattr(optimizer, "fp32_params", [])
    return list(weights.values()) if isinstance(weights, dict) else list(weights)


@around(f"{FP16}.state_dict", f"{LEAN_FP16}.state_dict", patch="half precision after resume")
def save_half_precision(original: Callable, self: Any) -> dict[str, Any]:
    """Return the state of the optimizer, with fp32 master weights and the loss scaler's state.

    Problem: Checkpoints do not store fp32 master weights and the loss scaler's state. So a resumed
    run starts with rounded weights, and with the loss scaler's counters reset.
    """
    state = original(self)
    if weights := _master_weights(self):
        state["fp32_params"] = [tensor.data for tensor in weights]
    if self.scaler is not None:
        state["scaler"] = {name: getattr(self.scaler, name) for name in SCALER_COUNTERS}
    return state


@around(
    f"{FP16}.load_state_dict", f"{LEAN_FP16}.load_state_dict", patch="half precision after resume"
)
def restore_half_precision(
    original: Callable, self: Any, state: dict[str, Any], *args: Any, **kwargs: Any
) -> None:
    """Restore the loss scaler's state and the fp32 master weights, if the checkpoint has them.

    If a saved master weight does not round to the model's weight, somebody has changed the model in
    the file. Then the master weight becomes an fp32 copy of the model's weight.
    """
    original(self, state, *args, **kwargs)
    saved = state.get("fp32_params", [])
    weights = _master_weights(self)
    if [tensor.shape for tensor in weights] == [tensor.shape for tensor in saved]:
        for tensor, old in zip(weights, saved, strict=True):
            rounded = old.to(tensor.device, self.fp16_params[0].dtype).float()
            if torch.equal(rounded, tensor.data):  # else the model's weights have been changed
                tensor.data.copy_(old)
    if self.scaler is not None:
        vars(self.scaler).update(state.get("scaler", {}))


@around("fairseq.optim:AMPOptimizer.state_dict", patch="half precision after resume")
def save_loss_scale(original: Callable, self: Any) -> dict[str, Any]:
    return {**original(self), "grad_scaler": self.scaler.state_dict()}


@around("fairseq.optim:AMPOptimizer.load_state_dict", patch="half precision after resume")
def restore_loss_scale(
    original: Callable, self: Any, state: dict[str, Any], *args: Any, **kwargs: Any
) -> None:
    original(self, state, *args, **kwargs)
    if state.get("grad_scaler"):
        self.scaler.load_state_dict(state["grad_scaler"])


@around("fairseq.models.ema.ema:EMA._step_internal", patch="--store-ema of every model")
def average_once(
    original: Callable, self: Any, new_model: torch.nn.Module, updates: int | None = None
) -> None:
    """Update the average of ``--store-ema``: average tied weights once, and copy integer tensors.

    Problem: fairseq mistakes the average of a pre-norm Transformer for a model of a very old
    fairseq, and drops its last layer norms. Tied weights decay once for each of their names. A
    model with an integer buffer ends in `result type Float can't be cast`.
    """
    averages = self.fp32_params if self.config.ema_fp32 else self.model.state_dict()
    repeated = ties(averages)
    for name, value in new_model.state_dict().items():
        if name in repeated or name not in averages:  # fairseq does not keep later names either
            continue
        if not value.is_floating_point() or name in self.skip_keys or "version" in name:
            averages[name].copy_(value)
        else:
            averages[name].mul_(self.decay).add_(value.to(averages[name]), alpha=1 - self.decay)
    self.restore(dict(averages))  # with the modules' version numbers, which fairseq leaves out


@around("fairseq.models.ema.ema:EMA.step", patch="--store-ema after resume")
def count_all_updates(
    original: Callable, self: Any, new_model: torch.nn.Module, updates: int | None = None
) -> None:
    """Count the updates of ``--ema-update-freq`` from the run's first update, also after a resume.

    Problem: --ema-update-freq starts counting again after a resume. Resuming with --store-ema from
    a checkpoint without an average ends in `KeyError: 'model'`.
    """
    if updates is not None:
        self.update_freq_counter = (updates - 1) % max(1, self.config.ema_update_freq)
    original(self, new_model, updates)


@around("fairseq.trainer:Trainer.load_checkpoint", patch="--store-ema after resume")
def begin_at_weights(
    original: Callable, self: Any, filename: str, *rest: Any, **options: Any
) -> Any:
    """Load a checkpoint; if it has no average, start ``--store-ema`` from its weights."""
    from fairseq import checkpoint_utils

    if not self.cfg.ema.store_ema:
        return original(self, filename, *rest, **options)
    load = checkpoint_utils.load_checkpoint_to_cpu

    def load_with_average(*rest: Any, **options: Any) -> dict[str, Any]:
        state = load(*rest, **options)
        if "ema" not in state["extra_state"]:
            logger.info(f"{filename} has no average: `--store-ema` begins with its weights")
            state["extra_state"]["ema"] = state["model"]
        return state

    with replaced(checkpoint_utils, "load_checkpoint_to_cpu", load_with_average):
        extra_state = original(self, filename, *rest, **options)
    if extra_state is not None:
        extra_state.pop("ema", None)  # these weights would stay in memory
    return extra_state
