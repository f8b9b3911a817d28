"""Let the loss compute a model's output layer, so that the logits can be computed in chunks.

Inside ``with deferred(model)``, a model returns features, the input of its output layer, instead of
logits. :func:`output_layer` then gives the loss the features with the weights of that layer.

An embedding table may be tied to the output layer: both have one weight. For the gradient of the
table, torch would allocate a second matrix of the size of the weight. Instead, this module adds the
rows of the batch's tokens to the weight's gradient.
"""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from fairseq.distributed.legacy_distributed_data_parallel import LegacyDistributedDataParallel
from fairseq.distributed.module_proxy_wrapper import ModuleProxyWrapper
from fairseq.models import BaseFairseqModel
from fairseq.models.fairseq_decoder import FairseqDecoder
from fairseq.models.lstm import LSTMDecoder
from fairseq.models.transformer import TransformerDecoderBase, TransformerModelBase
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.parallel import DistributedDataParallel

from fairseq_ext.training.loss import OutputLayer

WRAPPERS = (ModuleProxyWrapper, DistributedDataParallel, LegacyDistributedDataParallel)


def obstacle(model: nn.Module) -> str | None:
    """Return the reason why the loss cannot compute the output layer of ``model`` in chunks.

    The reason is a phrase for messages, such as ``adaptive softmax``. If the loss can compute the
    layer, return None.
    """
    if getattr(model, "find_unused_parameters", False):
        return "--find-unused-parameters"
    inner = unwrapped(model)
    decoder = getattr(inner, "decoder", None)
    if not isinstance(inner, BaseFairseqModel) or not isinstance(decoder, FairseqDecoder):
        return f"the model {type(inner).__name__}"
    for part in (inner, decoder):  # code outside fairseq and this package may change the logits
        if not owner_of(part, "forward").__module__.startswith("fairseq"):
            return f"the forward pass of {type(part).__name__}"
    if decoder.adaptive_softmax is not None:
        return "adaptive softmax"
    if (
        owner_of(inner, "get_normalized_probs") not in (BaseFairseqModel, TransformerModelBase)
        or owner_of(decoder, "get_normalized_probs") is not FairseqDecoder
    ):
        return f"the probabilities of {type(inner).__name__}"
    if "output_layer" in vars(decoder):  # an attribute hides the class's method
        return "an output layer of its own"
    owner = owner_of(decoder, "output_layer")
    plain = isinstance(getattr(decoder, "output_projection", nn.Identity()), nn.Linear)
    stock = owner is LSTMDecoder or (owner is TransformerDecoderBase and plain)
    if not stock and "last_product" not in vars(owner):
        return f"the output layer of {type(decoder).__name__}"
    return None


@contextlib.contextmanager
def deferred(model: nn.Module) -> Iterator[None]:
    """Make ``model`` return features instead of logits inside a ``with`` block.

    :func:`obstacle` must return None for this model.
    """
    inner: Any = unwrapped(model)
    replacements: list[tuple[nn.Module, str, Callable]] = [
        (inner.decoder, "output_layer", _unchanged)
    ]
    if inner is model:  # several processes would not exchange the rows that `_embed` adds
        for table in _tied_embeddings(inner):
            replacements.append((table, "forward", partial(_embed, table)))
    for module, method, replacement in replacements:
        vars(module)[method] = replacement  # in the instance, to hide the class's method
    try:
        yield
    finally:
        for module, method, _ in replacements:
            del vars(module)[method]


def is_deferred(model: nn.Module) -> bool:
    """Return whether the code runs inside ``with deferred(model)``."""
    return vars(getattr(unwrapped(model), "decoder", model)).get("output_layer") is _unchanged


def output_layer(model: nn.Module, features: Tensor) -> OutputLayer:
    """Return the output layer of ``model`` with its input ``features``; compute no logits.

    ``features`` is ``[B, T, C]``: ``T`` target tokens of each of ``B`` sentences.
    """
    decoder: FairseqDecoder = unwrapped(model).decoder
    if "last_product" in vars(owner_of(decoder, "output_layer")):
        return decoder.last_product(features)
    module = _output_module(decoder)
    return OutputLayer(features, module.weight, getattr(module, "bias", None))


def _output_module(decoder: FairseqDecoder) -> Any:
    if owner_of(decoder, "output_layer") is not LSTMDecoder:
        return decoder.output_projection
    return decoder.embed_tokens if decoder.share_input_output_embed else decoder.fc_out


def _tied_embeddings(model: BaseFairseqModel) -> list[nn.Embedding]:
    """Return the embedding tables that are tied to the output layer and can use :func:`_embed`.

    The others need torch's own gradient: a table with ``max_norm``, ``scale_grad_by_freq`` or
    ``sparse``, a weight with hooks, and a weight that is not on the CPU.
    """
    weight = _output_module(model.decoder).weight
    if not weight.is_cpu or weight._backward_hooks or weight._post_accumulate_grad_hooks:
        return []
    sides = (getattr(model, "encoder", None), model.decoder)
    tables = {getattr(side, "embed_tokens", None) for side in sides}
    return [
        table
        for table in tables
        if type(table) is nn.Embedding
        and table.weight is weight
        and not (table.max_norm or table.scale_grad_by_freq or table.sparse)
    ]


def _embed(table: nn.Embedding, tokens: Tensor) -> Tensor:
    """Look up embeddings ``[B, T, C]``; the backward pass adds to ``table.weight.grad`` in place.

    The output layer adds its gradient to the same tensor, earlier or later in the backward pass.
    """
    return _Embed.apply(torch.empty(0, requires_grad=table.weight.requires_grad), table, tokens)


class _Embed(torch.autograd.Function):
    """The autograd function of :func:`_embed`.

    torch calls ``backward`` only if a tensor among the arguments requires a gradient. ``table`` is
    a module, and ``tokens`` are integers. So there is a third argument, ``anchor``: an empty tensor
    that requires a gradient if the table's weight does.
    """

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, table: nn.Embedding, tokens: Tensor) -> Tensor:
        ctx.table, ctx.tokens = table, tokens
        return F.embedding(tokens, table.weight, table.padding_idx)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None, None]:
        _add_rows(ctx.table, ctx.tokens, grad)
        return None, None, None


def _add_rows(table: nn.Embedding, tokens: Tensor, grad: Tensor) -> None:
    weight = table.weight
    if weight.grad is None:
        weight.grad = torch.zeros_like(weight)
    counted = tokens.ne(-1 if table.padding_idx is None else table.padding_idx)
    weight.grad.index_add_(0, tokens[counted], grad[counted])


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the model inside the wrappers of distributed training."""
    while isinstance(model, WRAPPERS):
        model = model.module
    return model


def _unchanged(features: Tensor, **unused: Any) -> Tensor:
    return features


def owner_of(instance: object, method: str) -> type:
    """Return the class that defines a method of ``instance``, or ``object`` if none does."""
    return next((owner for owner in type(instance).__mro__ if method in vars(owner)), object)
