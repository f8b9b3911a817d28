"""Load packed models wherever fairseq loads checkpoints (fairseq-generate, translate, hubs)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from fairseq import tasks
from fairseq.data import Dictionary
from fairseq.dataclass.utils import overwrite_args_by_name
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_REGISTRY, FairseqEncoderDecoderModel
from fairseq.tasks import FairseqTask
from fairseq.tasks.translation import TranslationTask
from omegaconf import DictConfig, OmegaConf
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fairseq_ext.base.transformer import TranslationTransformer
from fairseq_ext.binary.kernels import PackedWeight
from fairseq_ext.binary.linear import BinaryLinear
from fairseq_ext.binary.packed import layers, model_file
from fairseq_ext.binary.packed.model_file import PackedModel
from fairseq_ext.checkpoints import registry_checks
from fairseq_ext.checkpoints.dictionaries import difference
from fairseq_ext.checkpoints.layout import differences
from fairseq_ext.utils.errors import CheckpointError, FairseqExtError

MOST_POSITIONS = 10**6
_FILLS = ("normal_", "uniform_", "trunc_normal_")  # of torch.nn.init and of tensors


def load(
    path: str | Path, overrides: dict[str, Any] | None = None, task: FairseqTask | None = None
) -> tuple[nn.Module, DictConfig, FairseqTask]:
    """Load a model that computes with bits; fairseq's ``load_model_ensemble_and_task`` calls this.

    Args:
        path: the packed model.
        overrides: options to change in its configuration.
        task: the task set up for the data; None for the task it was trained with.

    Raises:
        CheckpointError: the file cannot be used, or has other dictionaries than the data.
    """
    packed = model_file.read(path)
    cfg = configuration(packed)
    overwrite_args_by_name(cfg, overrides or {})
    words = _dictionaries(path, packed)
    if task is None:
        try:
            _require_binary(cfg)
            _kind_of_task(cfg)
        except CheckpointError as error:
            raise CheckpointError(f"{path}: {error}") from None
        task = tasks.setup_task(cfg.task, from_checkpoint=True)
    for side, own in zip(model_file.SIDES, words, strict=True):
        theirs = getattr(task, f"{side}_dictionary", None)
        differing = difference(theirs.symbols if theirs else [], own.symbols)
        if differing:
            raise CheckpointError(
                f"{path} was packed with another {side} dictionary than the data's: there, "
                f"{differing}. Use the dictionaries it was trained with."
            )
    try:
        return _filled(build(packed, cfg, task), packed), cfg, task
    except FairseqExtError as error:
        raise type(error)(f"{path}: {error}") from None


def _dictionaries(path: str | Path, packed: PackedModel) -> tuple[Dictionary, Dictionary]:
    try:
        return packed.dictionaries()
    except (ValueError, RuntimeError) as error:  # not UTF-8, no words with counts, or a word twice
        raise CheckpointError(f"{path}: its dictionaries cannot be read.") from error


def configuration(packed: PackedModel) -> DictConfig:
    """The configuration of a packed model in the form that fairseq's functions take."""
    return OmegaConf.create(packed.cfg)


def own_task(packed: PackedModel, cfg: DictConfig) -> FairseqTask:
    """The task it was trained with, with its own dictionaries and no data.

    Raises:
        CheckpointError: there is no such task.
    """
    return _kind_of_task(cfg)(cfg.task, *_dictionaries("the file", packed))


def _kind_of_task(cfg: DictConfig) -> type[TranslationTask]:
    kind = _registered(tasks.TASK_REGISTRY, cfg.task.get("_name"))
    if kind is None or not issubclass(kind, TranslationTask):
        raise CheckpointError(f"its task `{cfg.task.get('_name')!s:.40}` is unknown here.")
    return kind


def _require_binary(cfg: DictConfig) -> None:
    """Refuse an architecture whose layers cannot be binary, before anything is built."""
    name = cfg.model.get("_name") or cfg.model.get("arch")
    known = {**MODEL_REGISTRY, **ARCH_MODEL_REGISTRY}
    kind = _registered(known, name)
    if kind is None or not issubclass(kind, TranslationTransformer):
        raise CheckpointError(f"its architecture `{name!s:.40}` is none of a binary model.")


def _registered(registry: Mapping[str, type], name: Any) -> type | None:
    return registry.get(name) if isinstance(name, str) else None


def build(packed: PackedModel, cfg: DictConfig, task: FairseqTask) -> FairseqEncoderDecoderModel:
    """Build the model in its stage, from float layers without numbers (on the meta device).

    Raises:
        CheckpointError: the configuration does not describe a binary model.
    """
    _require_binary(cfg)
    _refuse_endless(packed, cfg)
    try:
        with _NoMemory():
            model = task.build_model(cfg.model, from_checkpoint=True)
        model.binary_stage.enter(packed.stage)
    except FairseqExtError:
        raise
    except Exception as error:  # a made-up configuration can lead to any error
        raise CheckpointError(
            f"its configuration describes no binary model ({type(error).__name__})."
        ) from error
    for name, inputs in packed.layers.items():
        layer = _submodule(model, name)
        found = (packed.layer(name)[0].shape[0], inputs)
        if not isinstance(layer, BinaryLinear) or not layer.binary_weights:
            raise CheckpointError(f"its configuration has no binary weights in `{name}`.")
        if found != (layer.out_features, layer.in_features):
            raise CheckpointError(f"`{name}` is {found}, but must be {tuple(layer.weight.shape)}.")
    return model


def _filled(model: nn.Module, packed: PackedModel) -> nn.Module:
    """Fill in packed layers, int8 tables and all other numbers."""
    for name, inputs in packed.layers.items():
        bits, level = packed.layer(name)
        weight = PackedWeight(bits, 2 * level, inputs)
        layers.exchange(model, name, layers.PackedLinear(_submodule(model, name), weight))
    for name, (table, scale) in packed.tables().items():
        path = name.removesuffix(".weight")
        old = _submodule(model, path)
        if getattr(old, "weight", table).shape != table.shape:
            raise CheckpointError(
                f"`{name}` is {list(table.shape)}, but must be {list(old.weight.shape)}."
            )
        if not isinstance(old, layers.Int8Table):
            layers.use_table(model, path, table, scale)
    load_state(model, packed)
    output = getattr(model.decoder, "output_projection", None)
    if type(output) is nn.Linear:
        model.decoder.output_projection = layers.FloatOutput(output)
    return model.requires_grad_(False)


def load_state(model: nn.Module, packed: PackedModel) -> None:
    """Load the state into a model, and check that no parameter is left without numbers.

    Raises:
        CheckpointError: the state does not fit the model.
    """
    try:
        nn.Module.load_state_dict(model, packed.state(), strict=True, assign=True)
    except RuntimeError as error:
        raise CheckpointError(f"its parts do not fit: {differences(str(error))}.") from None
    missing = [n for n, p in (*model.named_parameters(), *model.named_buffers()) if p.is_meta]
    if missing:
        raise CheckpointError(f"`{missing[0]}` is not in it.")


def _refuse_endless(packed: PackedModel, cfg: DictConfig) -> None:
    """Refuse sizes that a file of this size cannot have, before anything is built."""
    most = sum(tensor.nbytes for tensor in packed.tensors.values())
    for name, value in cfg.model.items():
        if name.endswith("_layers"):
            most_here, right = len(packed.tensors), isinstance(value, int) and value >= 0
        else:
            most_here, right = max(most, MOST_POSITIONS), True
        if not right or (isinstance(value, int) and value > most_here):
            raise CheckpointError(f"its configuration has `{name}` {value!r:.40}.")
    try:
        registry_checks.require_sizes(dict(cfg.model))
    except CheckpointError as error:
        raise CheckpointError(f"its configuration {error}.") from None


def _submodule(model: nn.Module, path: str) -> nn.Module:
    try:
        return model.get_submodule(path)
    except AttributeError:
        raise CheckpointError(f"its configuration has no layer `{path}`.") from None


class _NoMemory(TorchFunctionMode):
    """Make ``torch.empty`` use no memory: all parameters are replaced later."""

    def __torch_function__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.empty and kwargs.get("device") is None:
            kwargs = {**kwargs, "device": "meta"}
        if getattr(func, "__name__", "") in _FILLS:
            tensor = args[0] if args else kwargs.get("tensor")
            if isinstance(tensor, Tensor) and tensor.is_meta:
                return tensor  # torch would load its compiler for these: seconds and 70 MB
        return func(*args, **kwargs)
