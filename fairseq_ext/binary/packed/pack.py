"""Make a packed model from a checkpoint."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.tasks.translation import TranslationTask
from torch import Tensor, nn
from tqdm import tqdm

from fairseq_ext.binary.kernels import pack_signs
from fairseq_ext.binary.linear import GRANULARITIES, BinaryLinear
from fairseq_ext.binary.packed.layers import quantize
from fairseq_ext.binary.packed.model_file import FLOATS, SIDES, PackedModel, is_packed
from fairseq_ext.checkpoints.layout import BINARY_STAGE
from fairseq_ext.checkpoints.portable import model_settings, task_settings, ties
from fairseq_ext.decoding import models
from fairseq_ext.utils.errors import CheckpointError, ConfigError

TABLES = ("embed_tokens.weight", "output_projection.weight")


def pack_file(
    path: str | Path, data: str | Path, *, dtype: str = "fp32", int8_embeddings: bool = False
) -> PackedModel:
    """Load a checkpoint and pack it.

    Args:
        path: the checkpoint.
        data: folder with the dictionaries it was trained with.
        dtype, int8_embeddings: as for :func:`pack`.

    Raises:
        CheckpointError: it cannot be read, is packed already or does not translate; see also
            :func:`pack`.
        DataError: there are no dictionaries.
    """
    if is_packed(path):
        raise CheckpointError(f"{path} is packed already; give the checkpoint it was made of.")
    (trained,), cfg, task = models.load(data, [path])
    try:
        return pack(trained, cfg, task, dtype=dtype, int8_embeddings=int8_embeddings)
    except CheckpointError as error:
        raise CheckpointError(f"{path} {error}") from None


@torch.no_grad()
def pack(
    model: nn.Module,
    cfg: Any,
    task: TranslationTask,
    *,
    dtype: str = "fp32",
    int8_embeddings: bool = False,
) -> PackedModel:
    """Pack a model: one bit for each weight that is binary in the model's stage.

    Args:
        model: a trained model that is not prepared for generation.
        cfg: the configuration, which has the sections ``model`` and ``task``.
        task: the task, which has the dictionaries.
        dtype: the type of all other numbers except the levels: ``fp32``, ``fp16`` or ``bf16``.
        int8_embeddings: store embeddings and output projection in int8, a scale for each row.

    Raises:
        ConfigError: the type is unknown.
        CheckpointError: nothing in it is binary, or a number does not fit the type.
    """
    if dtype not in FLOATS:
        raise ConfigError(f"`--dtype` must be one of {', '.join(FLOATS)}, but is {dtype} instead.")
    settings = {"model": model_settings(cfg.model), "task": task_settings(cfg.task, task)}
    _require_binary(model, settings["model"])
    tensors: dict[str, Tensor] = {}
    layers = binary_layers(model)
    for name, layer in tqdm(layers.items(), desc="pack", unit=" layers", disable=None):
        _pack_layer(tensors, name, layer)
    packed = {f"{name}.weight" for name in layers}
    rest = {n: t for n, t in model.state_dict().items() if n not in packed and n != BINARY_STAGE}
    tied = ties(rest)
    for name in rest.keys() - tied.keys():
        _store(tensors, name, rest[name], dtype, int8_embeddings and name.endswith(TABLES))
    for side, words in zip(SIDES, (task.source_dictionary, task.target_dictionary), strict=True):
        tensors[f"dictionary.{side}"] = _text(words)
    sizes = {name: layer.in_features for name, layer in layers.items()}
    return PackedModel(settings, int(model.binary_stage.index), sizes, tied, tensors)


def binary_layers(model: nn.Module) -> dict[str, BinaryLinear]:
    """Layers whose weights are binary in the model's stage, by their path."""
    modules = model.named_modules()
    return {n: m for n, m in modules if isinstance(m, BinaryLinear) and m.binary_weights}


def _require_binary(model: nn.Module, settings: dict[str, Any]) -> None:
    if binary_layers(model):
        return
    again = "Only binary weights can be packed."
    if settings.get("muse_fused"):
        raise CheckpointError(f"is a MUSE with fused matrices, and not binarized. {again}")
    stage = getattr(model, "binary_stage", None)
    if stage is not None and stage.index == 0 and stage.stages:
        raise CheckpointError(
            "is in the float stage of its training (`--stage-updates`); train on until its "
            f"weights are binary. {again}"
        )
    raise CheckpointError(f"has no binary weights. {again}")


def _pack_layer(tensors: dict[str, Tensor], name: str, layer: BinaryLinear) -> None:
    dim = GRANULARITIES[layer.granularity]
    _, level = layer.weight_binarizer.signs(layer.weight, dim)
    level = level.float().expand(layer.out_features, 1).squeeze(1)
    if not (layer.weight.isfinite().all() and (2 * level).isfinite().all()):
        raise CheckpointError(f"holds weights in `{name}` that are not finite; use another one.")
    tensors[f"{name}.weight.bits"] = pack_signs(layer.weight)
    tensors[f"{name}.weight.level"] = level.contiguous().clone()


def _store(tensors: dict[str, Tensor], name: str, value: Tensor, dtype: str, int8: bool) -> None:
    if not value.is_floating_point():
        tensors[name] = value.contiguous()
        return
    stored = value if int8 else value.to(FLOATS[dtype])
    if not stored.isfinite().all():
        raise CheckpointError(
            f"holds numbers in `{name}` that are not finite in {dtype}; give another `--dtype`."
        )
    if int8:
        tensors[f"{name}.int8"], tensors[f"{name}.scale"] = quantize(value)
    else:
        tensors[name] = stored.contiguous().clone()


def _text(words: Dictionary) -> Tensor:
    file = io.StringIO()
    words.save(file)
    return torch.frombuffer(bytearray(file.getvalue().encode("utf-8")), dtype=torch.uint8)
