"""Store binary and ternary weights in a bundle: their signs, and a level for each row."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fairseq_ext.binary.binarize import TERNARY
from fairseq_ext.binary.linear import BinaryLinear
from fairseq_ext.engine.program import pack_bits
from fairseq_ext.engine.tensors import BITS, LEVELS, TRITS, pack_trits
from fairseq_ext.utils.errors import CheckpointError


@torch.no_grad()
def binary_weights(model: nn.Module) -> tuple[dict[str, Any], dict[str, dict[str, Tensor]]]:
    """Return the weights that are binary or ternary in a model's current stage.

    Returns:
        What their readers must know: ``binarizer``, ``granularity`` and the ``inputs`` K of each;
        and by the name of each weight the tensors that keep it, by the ending of their names.

    Raises:
        CheckpointError: there are none. The message is the end of a sentence.
    """
    layers = {
        f"{name}.weight": layer
        for name, layer in model.named_modules()
        if isinstance(layer, BinaryLinear) and layer.binary_weights
    }
    if not layers:
        raise CheckpointError(_reason(model))
    ways = {(layer.weight_binarizer.kind, layer.granularity) for layer in layers.values()}
    ((kind, granularity),) = ways  # options of the whole model
    ending, pack = (TRITS, pack_trits) if kind == TERNARY else (BITS, pack_bits)
    weights = {}
    for name, layer in layers.items():
        signs, levels = layer.signs()
        packed = torch.from_numpy(pack(signs.cpu().numpy()))
        weights[name] = {ending: packed, LEVELS: levels.contiguous()}
    inputs = {name: layer.in_features for name, layer in layers.items()}
    return {"binarizer": kind, "granularity": granularity, "inputs": inputs}, weights


def _reason(model: nn.Module) -> str:
    explanation = "Only binary weights can be stored in bits."
    stage = getattr(model, "binary_stage", None)
    if stage is not None and stage.index == 0 and stage.stages:
        return (
            "is in the float stage of its training (`--stage-updates`); train on until its "
            f"weights are binary. {explanation}"
        )
    return f"has no binary weights. {explanation}"
