"""Make updates take less time and memory.

Results change only by rounding and by the random numbers of dropout. ``--bf16-products`` rounds
the large matrix products to bf16.
"""

import contextlib
import logging
from collections.abc import Callable
from typing import Any

import torch

# torch.jit.script compiles the source of fairseq's dropout with the names of this module
import torch.nn.functional as F  # noqa: F401
from torch import Tensor

from fairseq_ext.base import dropout as sixteen_bits
from fairseq_ext.plugin.patching import acting, add_options, around, replacing
from fairseq_ext.training import adam, loss, onednn_matmul
from fairseq_ext.utils import memory

logger = logging.getLogger(__name__)

SMOOTHED = "fairseq.criterions.label_smoothed_cross_entropy:LabelSmoothedCrossEntropyCriterion"
PLAIN = "fairseq.criterions.cross_entropy:CrossEntropyCriterion"
STOCK_MODULES = {target.partition(":")[0] for target in (SMOOTHED, PLAIN)}
READING_LOGITS = ("compute_loss", "get_lprobs_and_target")


def obstacle(criterion: Any, model: Any) -> str | None:
    """Return why the loss of ``model`` cannot be computed in chunks; None if it can.

    The result is a phrase for the log, such as ``--amp``. Only fairseq's own criteria, and those
    that have a method ``obstacle`` which returns None, are known not to need the logits of all
    tokens at once.
    """
    from fairseq_ext.training import chunked_output

    for method in READING_LOGITS:
        owner = chunked_output.owner_of(criterion, method)
        if owner is not object and owner.__module__ not in STOCK_MODULES:
            if "obstacle" not in vars(owner):
                return f"the loss of {owner.__name__}"
            if reason := criterion.obstacle():
                return reason
    if getattr(criterion, "report_accuracy", False):
        return "--report-accuracy"
    first = next(model.parameters(), None)
    if first is None:
        return f"the model {type(model).__name__}, which has no parameters"
    if torch.is_autocast_enabled(first.device.type):
        return "--amp"
    if first.dtype is torch.float16:
        return "--fp16"  # chunks round their gradients before the loss scale makes them larger
    return chunked_output.obstacle(model)


@around(f"{SMOOTHED}.forward", f"{PLAIN}.forward", patch="loss in chunks")
def leave_output_to_loss(
    original: Callable, self: Any, model: Any, sample: dict[str, Any], reduce: bool = True
) -> Any:
    """Let the model return features instead of logits, so that :func:`loss_in_chunks` can be used.

    If there is an :func:`obstacle`, log it, and compute the loss from all logits, as fairseq does.

    Problem: The logits, log-probabilities and gradients of a whole batch are matrices of tokens
    × vocabulary, which cost memory and time.
    """
    from fairseq_ext.training import chunked_output

    if reduce and not getattr(self, "_needs_logits", False):
        reason = obstacle(self, model)
        if not reason:
            with chunked_output.deferred(model):
                return original(self, model, sample, reduce)
        logger.info("the loss is not computed in chunks, because of %s", reason)
        self._needs_logits = True
    return original(self, model, sample, reduce)


@around(f"{SMOOTHED}.compute_loss", f"{PLAIN}.compute_loss", patch="loss in chunks")
def loss_in_chunks(
    original: Callable, self: Any, model: Any, net_output: Any, sample: Any, reduce: bool = True
) -> tuple[Tensor, Tensor]:
    """Return the loss and the negative log-likelihood of a batch, both summed over its tokens.

    If the loss is computed in chunks, ``net_output[0]`` is features ``[B, T, C]``: ``B`` sentences
    of ``T`` tokens with ``C`` channels. Otherwise it is logits, and fairseq's method runs.
    """
    from fairseq_ext.training import chunked_output

    if not chunked_output.is_deferred(model):
        return original(self, model, net_output, sample, reduce)
    begin = getattr(self, "ignore_prefix_size", 0)
    features = net_output[0][:, begin:]
    target = model.get_targets(sample, net_output)[:, begin:]
    output = chunked_output.output_layer(model, features)
    smoothing = getattr(self, "eps", None)  # plain cross-entropy has none
    losses = loss.smoothed_nll(output, target, smoothing or 0.0, self.padding_idx)
    return losses if smoothing is not None else (losses[0], losses[0])


@around("fairseq.optim.adam:Adam.step", patch="Adam in one pass")
def update_in_one_pass(
    original: Callable, self: Any, closure: Callable[[], Any] | None = None
) -> Any:
    """Update all weights in one fused pass if :func:`~fairseq_ext.training.adam.can_fuse` allows.

    Problem: fairseq's Adam reads and writes each tensor a dozen times per update, ours once.
    """
    if closure is not None or not adam.can_fuse(self):
        return original(self, closure)
    return adam.step(self)


FAIRSEQ_ADAM = "fairseq.optim.adam:FairseqAdam"


@around(f"{FAIRSEQ_ADAM}.multiply_grads", patch="gradients scaled by Adam")
def multiply_in_step(original: Callable, self: Any, c: Any) -> None:
    """Leave it to Adam's fused pass to multiply the gradients by ``c``.

    Problem: fairseq reads and writes all gradients once to divide them by the number of tokens, and
    again to clip their norm.
    """
    if adam.can_scale(self.optimizer):
        self.optimizer.grad_factor *= c
    else:
        original(self, c)


@around(f"{FAIRSEQ_ADAM}.clip_grad_norm", patch="gradients scaled by Adam")
def clip_in_step(
    original: Callable, self: Any, max_norm: float, aggregate_norm_fn: Callable | None = None
) -> Tensor:
    """Leave it to Adam's fused pass to clip the gradients; return their norm before clipping."""
    if not adam.can_scale(self.optimizer):
        return original(self, max_norm, aggregate_norm_fn)
    norm = original(self, 0.0, aggregate_norm_fn) * self.optimizer.grad_factor
    if max_norm > 0:
        self.optimizer.grad_factor *= (max_norm / (norm + 1e-6)).clamp_(max=1)
    return norm


@around(f"{FAIRSEQ_ADAM}.zero_grad", patch="gradients scaled by Adam")
def forget_factor(original: Callable, self: Any) -> None:
    """Zero the gradients, and delete the factor by which Adam's step should have multiplied them.

    The factor is left over if there was no step, for example because of an overflow.
    """
    vars(self.optimizer).pop("grad_factor", None)
    original(self)


MIXIN = "fairseq.optim.fp16_optimizer:_FP16OptimizerMixin"


@around(f"{MIXIN}._sync_fp16_grads_to_fp32", patch="fp32 copies at once")
def copy_gradients_at_once(original: Callable, self: Any) -> None:
    """Copy all gradients to the gradients of the fp32 weights in one call.

    Problem: With --fp16 and --bf16 fairseq copies gradients and weights one by one, and a GPU waits
    while the host starts hundreds of copies in every update.
    """
    if self._needs_sync:
        weights = [weight for weight in self.fp16_params if weight.requires_grad]
        copies = _fp32_copies(self, weights, "grad")
        if copies is not None and all(weight.grad is not None for weight in weights):
            torch._foreach_copy_(copies, [weight.grad for weight in weights])
            self._needs_sync = False
    original(self)


@around(f"{MIXIN}._sync_fp32_params_to_fp16", patch="fp32 copies at once")
def copy_weights_at_once(original: Callable, self: Any) -> None:
    """Copy all fp32 weights to the model's half-precision weights in one call."""
    weights = [weight for weight in self.fp16_params if weight.requires_grad]
    copies = _fp32_copies(self, weights, "data")
    if copies is None:
        return original(self)
    torch._foreach_copy_([weight.data for weight in weights], copies)


def _fp32_copies(optimizer: Any, weights: list[Tensor], part: str) -> list[Tensor] | None:
    """Return ``data`` or ``grad`` (``part``) of the fp32 copy of each of ``weights``.

    The tensors have the shapes of the weights. fairseq keeps one copy for each weight, or a single
    flat copy of all weights. Return None if a weight's copy has no ``grad``, or if the flat copy
    is on several devices or has another size than all ``weights`` together.
    """
    copies = optimizer.fp32_params
    if not optimizer.has_flat_params:
        pairs = zip(optimizer.fp16_params, copies, strict=True)
        parts = [getattr(copy, part) for weight, copy in pairs if weight.requires_grad]
        return None if any(tensor is None for tensor in parts) else parts
    if not isinstance(copies, dict) or len(copies) > 1:
        return None
    (flat,) = copies.values()
    sizes = [weight.numel() for weight in weights]
    if flat.numel() != sum(sizes):
        return None
    parts = getattr(flat, part).split(sizes)
    return [tensor.view_as(weight) for tensor, weight in zip(parts, weights, strict=True)]


def total_norm(gradients: list[Tensor], chunk_size: int = 0) -> Tensor:
    """Return the L2 norm of all gradients together, a scalar in fp32.

    Some of the gradients may be sparse. ``chunk_size`` is ignored: fairseq passes it to apex.
    """
    dense = [part.coalesce().values() if part.is_sparse else part for part in gradients]
    norms = torch._foreach_norm(dense, 2, dtype=torch.float32)
    return torch.linalg.vector_norm(torch.stack([norm.to(dense[0].device) for norm in norms]))


@acting("norm of gradients in one pass")
def norm_in_one_pass() -> None:
    """Make fairseq compute the norm of gradients with :func:`total_norm`.

    Problem: Without apex, fairseq computes the norms of gradients one by one.
    """
    from fairseq import utils

    utils.multi_tensor_total_norm = total_norm
    utils.multi_tensor_l2norm_available = True


@around("fairseq.trainer:Trainer.__init__", patch="memory kept for reuse")
def keep_memory(original: Callable, self: Any, *args: Any, **kwargs: Any) -> None:
    """Make a training on the CPU keep freed memory for reuse.

    Problem: glibc returns large freed blocks to the system. For each gradient of a large
    vocabulary, the system has to provide and clear such a block again.
    """
    original(self, *args, **kwargs)
    if self.device.type == "cpu":
        memory.keep()


@around("fairseq.trainer:Trainer._set_seed", patch="seed of each update")
def seed_cpu(original: Callable, self: Any) -> None:
    """Seed only the CPU's generator for an update on a CPU.

    Problem: Before each update on a CPU, torch also records the seed for three other types of
    devices. Each record has a trace of the Python stack, which takes time.
    """
    if self.device.type != "cpu":
        return original(self)
    torch.default_generator.manual_seed(self.cfg.common.seed + self.get_num_updates())


@around("fairseq.models.fairseq_model:BaseFairseqModel.train", patch="mode of each update")
def change_mode(original: Callable, self: Any, mode: bool = True) -> Any:
    """Switch between training and evaluation only if some module is not in the desired mode.

    Problem: fairseq sets every module's mode twice in each update, even if no mode changes.
    """
    if _all_in_mode(self, mode):
        return self
    return original(self, mode)


def _all_in_mode(module: Any, mode: bool) -> bool:
    # `modules()` would take three times as long, because it also composes names.
    children = module._modules.values()
    return module.training is mode and all(
        _all_in_mode(child, mode) for child in children if child is not None
    )


@replacing(
    "fairseq.modules.fairseq_dropout:FairseqDropout.forward", patch="dropout from 16-bit numbers"
)
def draw_sixteen_bits(original: Callable) -> Callable:
    """Return a dropout ``forward`` that draws 16 random bits for each value on the CPU.

    Problem: On the CPU torch draws a 32-bit number for each value, which takes longer than the rest
    of dropout.
    """

    def forward(self: Any, x: Tensor, inplace: bool = False) -> Tensor:
        if x.device.type != "cpu" or not sixteen_bits.active_rate(self):
            return original(self, x, inplace)
        return sixteen_bits.dropout(x, self.p)

    return forward


@acting("matrix products in bf16")
def add_bf16_products() -> None:
    """Add ``--bf16-products`` (only matrix products in bf16) to the options of fairseq-train.

    Problem: fairseq trains either in fp32 or entirely in bf16. Processors with instructions for
    bf16 multiply matrices at least about twice as fast in bf16 as in fp32. All other operations
    lose accuracy in bf16, but are not faster.
    """
    from fairseq.dataclass.configs import OptimizationConfig

    text = (
        "on a CPU, round the factors and results of large matrix products with weights to bf16 in "
        "training; weights, products within attention, all other operations, validation and "
        "checkpoints stay in fp32"
    )
    add_options(OptimizationConfig, {"bf16_products": (bool, False, text)})


@around("fairseq.trainer:Trainer.train_step", patch="matrix products by oneDNN")
def train_by_onednn(original: Callable, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Multiply the matrices of an update with oneDNN, if MKL is slow on this processor.

    With ``--bf16-products``, always use oneDNN.

    Problem: MKL uses AVX-512 on Intel's processors only. So on AMD processors of family 26 or
    later, torch's fp32 matrix products take twice as long as necessary.
    """
    with _products(self.device, bf16=getattr(self.cfg.optimization, "bf16_products", False)):
        return original(self, *args, **kwargs)


@around("fairseq.trainer:Trainer.valid_step", patch="matrix products by oneDNN")
def validate_by_onednn(original: Callable, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Validate in fp32, also with ``--bf16-products``; use oneDNN if MKL is slow here."""
    with _products(self.device, bf16=False):
        return original(self, *args, **kwargs)


def _products(device: torch.device, bf16: bool) -> contextlib.AbstractContextManager:
    if device.type == "cpu" and (bf16 or onednn_matmul.is_slow()):
        return onednn_matmul.by_onednn(bf16)
    return contextlib.nullcontext()


@around("fairseq.trainer:Trainer.__init__", patch="slow bf16")
def warn_of_slow_bf16(original: Callable, self: Any, cfg: Any, *args: Any, **kwargs: Any) -> None:
    """Log a warning if ``--bf16`` or ``--bf16-products`` is slower than fp32 on this CPU.

    Problem: Processors without bf16 instructions take several times as long with --bf16.
    """
    original(self, cfg, *args, **kwargs)
    option = "--bf16" if cfg.common.bf16 else "--bf16-products"
    requested = cfg.common.bf16 or getattr(cfg.optimization, "bf16_products", False)
    if not requested or self.device.type != "cpu" or not self.is_data_parallel_master:
        return
    ratio = onednn_matmul.times_as_long(converted=not cfg.common.bf16)
    if ratio > 1:
        logger.warning(
            f"{option}: on this processor matrix products take {ratio:.1f} times as long as in "
            "fp32; without the option training is faster, and more accurate."
        )
