"""Make a checkpoint from a packed model; it gives the same translations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairseq_ext.binary.kernels import unpack_signs
from fairseq_ext.binary.linear import GRANULARITIES, BinaryLinear
from fairseq_ext.binary.packed import layers, model_file, runtime
from fairseq_ext.binary.packed.model_file import PackedModel
from fairseq_ext.checkpoints import dictionaries, layout, storage
from fairseq_ext.utils.errors import CheckpointError, FairseqExtError

MOST_CORRECTIONS = 20


def unpack(packed: PackedModel) -> dict[str, Any]:
    """A checkpoint of fairseq, in fp32.

    A packed model does not have the latent weights. Here they become ``±B`` (with ``xnor``, ``±``
    the level), so that binarizing them gives the same signs and levels. int8 tables become floats.

    Raises:
        CheckpointError: the configuration and the numbers do not fit each other.
    """
    cfg = runtime.configuration(packed)
    task = runtime.own_task(packed, cfg)
    model = runtime.build(packed, cfg, task)
    state = packed.state()
    for name, (table, scale) in packed.tables().items():
        state[name] = layers.dequantize(table, scale)
    for name, inputs in packed.layers.items():
        bits, level = packed.layer(name)
        layer = model.get_submodule(name)
        state[f"{name}.weight"] = latent_weight(layer, unpack_signs(bits, inputs), level)
    for name, one in packed.tied.items():
        state[name] = state[one]
    _require_fit(model.state_dict(), state)
    start = layout.before_training()
    words = (task.source_dictionary.symbols, task.target_dictionary.symbols)
    cfg = {part: dict(values) for part, values in packed.cfg.items()}
    return {
        **start,
        "cfg": {**cfg, "criterion": layout.PLAIN_LOSS},
        "model": {name: state[name] for name in model.state_dict()},
        "extra_state": {**start["extra_state"], layout.DICTIONARIES: dictionaries.record(*words)},
    }


def unpack_file(path: str | Path, output: str | Path | None = None) -> dict[str, Any]:
    """:func:`unpack` the file ``path`` into ``output``, which appears whole or not at all.

    Args:
        path: the packed model.
        output: the checkpoint; None to return it alone.

    Raises:
        CheckpointError: as :func:`unpack`, or the file cannot be read.
    """
    packed = model_file.read(path)
    try:
        checkpoint = unpack(packed)
    except FairseqExtError as error:
        raise type(error)(f"{path}: {error}") from None
    if output is not None:
        storage.save(checkpoint, output)
    return checkpoint


def latent_weight(layer: BinaryLinear, signs: Tensor, level: Tensor) -> Tensor:
    """Weights ``[N, K]`` that ``layer`` binarizes to these signs and levels.

    Args:
        layer: its options say how weights are binarized; its own weight is not read.
        signs: ``[N, K]`` bool, true for ``+``.
        level: ``[N]``.
    """
    binarizer, dim = layer.weight_binarizer, GRANULARITIES[layer.granularity]
    size = level[:, None] if binarizer.kind == "xnor" else 2 * level[:, None]
    latent = torch.where(signs, size, -size)
    if binarizer.kind != "xnor":
        return latent
    # The mean of equal numbers can be off in its last bit; each row's first number corrects that.
    for _ in range(MOST_CORRECTIONS):
        _, found = binarizer.signs(latent, dim)
        missing = level[:, None] - found
        if not missing.any():
            break
        if layer.granularity == "tensor":
            latent[:1, :1] += torch.where(signs[:1, :1], 1, -1) * missing[:1] * latent.numel()
        else:
            latent[:, :1] += torch.where(signs[:, :1], 1, -1) * missing * latent.shape[1]
    return latent


def _require_fit(expected: dict[str, Tensor], state: dict[str, Tensor]) -> None:
    for name in expected.keys() | state.keys():
        if name not in state or name not in expected:
            raise CheckpointError(f"`{name}` is {'only' if name in state else 'not'} in it.")
        if expected[name].shape != state[name].shape:
            raise CheckpointError(
                f"`{name}` is {list(state[name].shape)}, but must be {list(expected[name].shape)}."
            )
