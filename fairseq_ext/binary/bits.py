"""Binary weights as they are kept in a bundle: a bit each, and a level for each row."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fairseq_ext.binary.linear import BinaryLinear
from fairseq_ext.engine.program import pack_bits
from fairseq_ext.utils.errors import CheckpointError


@torch.no_grad()
def binary_weights(model: nn.Module) -> tuple[dict[str, Any], dict[str, tuple[Tensor, Tensor]]]:
    """The weights that are binary in a model's stage.

    Returns:
        What their readers must know: the ``binarizer`` and the ``inputs`` K of each; and by the
        name of each weight its bits ``[N, K / 8]`` and levels ``[N]``.

    Raises:
        CheckpointError: there are none. The message is the end of a sentence.
    """
    layers = {
        name: layer
        for name, layer in model.named_modules()
        if isinstance(layer, BinaryLinear) and layer.binary_weights
    }
    if not layers:
        raise CheckpointError(_reason(model))
    weights = {}
    for name, layer in layers.items():
        weight = layer.binarized_weight().float()
        bits = torch.from_numpy(pack_bits(weight.cpu().numpy()))
        weights[f"{name}.weight"] = bits, weight.abs().amax(1).contiguous()
    kinds = {layer.weight_binarizer.kind for layer in layers.values()}
    (kind,) = kinds  # an option of the whole model
    inputs = {f"{name}.weight": layer.in_features for name, layer in layers.items()}
    return {"binarizer": kind, "inputs": inputs}, weights


def _reason(model: nn.Module) -> str:
    explanation = "Only binary weights can be stored in bits."
    stage = getattr(model, "binary_stage", None)
    if stage is not None and stage.index == 0 and stage.stages:
        return (
            "is in the float stage of its training (`--stage-updates`); train on until its "
            f"weights are binary. {explanation}"
        )
    return f"has no binary weights. {explanation}"
