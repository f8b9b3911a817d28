"""Let the loss compute a model's output layer, so that the logits can be computed in chunks.

Inside ``with deferred(model)``, a model returns features, the input of its output layer, instead of
logits. :func:`output_layer` then gives the loss the features with the weights of that layer.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

from fairseq.distributed.legacy_distributed_data_parallel import LegacyDistributedDataParallel
from fairseq.distributed.module_proxy_wrapper import ModuleProxyWrapper
from fairseq.models import BaseFairseqModel
from fairseq.models.fairseq_decoder import FairseqDecoder
from fairseq.models.lstm import LSTMDecoder
from fairseq.models.transformer import TransformerDecoderBase, TransformerModelBase
from torch import Tensor, nn
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
    attributes = vars(unwrapped(model).decoder)
    attributes["output_layer"] = _unchanged  # in the instance, to hide the class's method
    try:
        yield
    finally:
        del attributes["output_layer"]


def is_deferred(model: nn.Module) -> bool:
    """Return whether the code runs inside ``with deferred(model)``."""
    return vars(getattr(unwrapped(model), "decoder", model)).get("output_layer") is _unchanged


def output_layer(model: nn.Module, features: Tensor) -> OutputLayer:
    """Return the output layer of ``model`` with its input ``features``; compute no logits.

    ``features`` is ``[B, T, C]``: ``T`` target tokens of each of ``B`` sentences.
    """
    decoder: FairseqDecoder = unwrapped(model).decoder
    owner = owner_of(decoder, "output_layer")
    if "last_product" in vars(owner):
        return decoder.last_product(features)
    if owner is not LSTMDecoder:
        module = decoder.output_projection
    else:
        module = decoder.embed_tokens if decoder.share_input_output_embed else decoder.fc_out
    return OutputLayer(features, module.weight, getattr(module, "bias", None))


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
