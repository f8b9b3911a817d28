"""The parts of a checkpoint of fairseq, and the entries that this plugin adds to them.

A checkpoint is a dictionary:

- ``model``: the weights and buffers of the model, by name;
- ``cfg``: the options of the run, with a dictionary for each part (``model``, ``task`` …). The
  part's ``_name`` is the name by which fairseq's registries know it. Older checkpoints have the
  options of all parts in a Namespace ``args`` instead;
- ``extra_state``: the position in the data (``train_iterator``), meters, the best loss, and our
  additions :data:`DICTIONARIES`, :data:`EARLY_STOPPING` and :data:`AVERAGED`;
- ``optimizer_history``, ``last_optimizer_state``, ``task_state``, ``criterion``: training state.

Nothing here needs fairseq or torch.
"""

import copy
from argparse import Namespace
from collections.abc import Mapping
from typing import Any

DICTIONARIES = "dictionaries"  # in `extra_state`: see dictionaries.py
EARLY_STOPPING = "early_stopping"
"""In ``extra_state``: how often validation has not improved, and by which metric."""
AVERAGED = "averaged"
"""In ``extra_state``: the names of the checkpoints that were averaged into this one."""
BINARY_STAGE = "binary_stage.current"  # in `model`: the stage of a binarized model (stages.py)
CHANGES = "published.json"
"""A file beside a published model's checkpoints: what to change in them (published.py)."""

_OF_THE_OPTIMIZER = ("last_optimizer_state", "optimizer")


def section(cfg: Any, part: str) -> dict[str, Any]:
    """Return the options of one ``part`` (``model``, ``task`` …) of a configuration, or {}.

    ``cfg`` is a dictionary, plain or OmegaConf's; the part may also be a ``Namespace``.
    """
    options = cfg.get(part) if isinstance(cfg, Mapping) else None
    if type(options).__module__.startswith("omegaconf"):
        from omegaconf import OmegaConf

        options = OmegaConf.to_container(options, resolve=False)
    options = vars(options) if isinstance(options, Namespace) else options
    return dict(options) if isinstance(options, Mapping) else {}


def options(checkpoint: Mapping[str, Any], part: str) -> dict[str, Any]:
    """Return the options of one ``part`` (``model``, ``task`` …) of a checkpoint's run.

    An old checkpoint has the options of all parts in ``args``; then the result has them all.
    """
    args = checkpoint.get("args")
    return section({part: args} if args else checkpoint.get("cfg"), part)


def architecture(checkpoint: Mapping[str, Any]) -> str:
    """Return the name of the architecture that a checkpoint was trained with, or `unknown`."""
    model = options(checkpoint, "model")
    return str(model.get("arch") or model.get("_name") or "unknown")


def with_options(
    checkpoint: Mapping[str, Any], task: Mapping[str, Any], model: Mapping[str, Any]
) -> dict[str, Any]:
    """Copy a checkpoint, with another task and some other options of the model.

    ``task`` has all options of the new task, with its name as ``_name``. ``model`` has only the
    options to change, perhaps with another architecture as ``arch``.
    """
    args = checkpoint.get("args")
    if args:
        named = {name: value for name, value in task.items() if name != "_name"}
        values = {**vars(args), **model, **named, "task": task["_name"]}
        return {**checkpoint, "args": Namespace(**values)}
    cfg = checkpoint["cfg"]
    settings = {**options(checkpoint, "model"), **model}
    if "arch" in model:
        settings["_name"] = model["arch"]
    legacy = isinstance(cfg.get("model"), Namespace)
    changed = {"task": dict(task), "model": Namespace(**settings) if legacy else settings}
    return {**checkpoint, "cfg": {**cfg, **changed}}


def extra_state(checkpoint: Mapping[str, Any]) -> dict[str, Any]:
    """Return a checkpoint's ``extra_state``, or {} if there is none."""
    return checkpoint.get("extra_state") or {}


def position(checkpoint: Mapping[str, Any]) -> dict[str, Any]:
    """Return the run's position in the data, such as ``epoch``; {} if the checkpoint lacks it."""
    return extra_state(checkpoint).get("train_iterator") or {}


def num_updates(checkpoint: Mapping[str, Any]) -> int | None:
    """Return how many updates the model was trained for; None if the checkpoint does not say."""
    history = checkpoint.get("optimizer_history") or [{}]
    return history[-1].get("num_updates")


# The criterion that `fairseq-validate` uses for a model stored without its training state.
PLAIN_LOSS = {"_name": "cross_entropy", "sentence_avg": False}
# What fairseq's hub interface reads from a checkpoint, for a model stored without these options.
FOR_THE_HUB = {
    "generation": {"replace_unk": None, "print_alignment": None},
    "dataset": {"max_tokens": None, "batch_size": 64},
    "tokenizer": None,
    "bpe": None,
}


def before_training() -> dict[str, Any]:
    """Return a checkpoint's entries at update 0, without weights and options."""
    start = {
        "criterion_name": "none",
        "optimizer_name": "none",
        "lr_scheduler_state": {},
        "num_updates": 0,
    }
    return {
        "args": None,
        "criterion": None,
        "task_state": {},
        "optimizer_history": [start],
        "extra_state": {"train_iterator": {"epoch": 1, "iterations_in_epoch": 0, "version": 2}},
    }


def without_weights(checkpoint: Mapping[str, Any]) -> dict[str, Any]:
    """Copy a checkpoint without its weights, their moving average and the optimizer's state."""
    small = {**without_training_state(checkpoint), "last_optimizer_state": None}
    del small["model"]
    if checkpoint.get("last_optimizer_state") is not None:
        small["last_optimizer_state"] = {}
    return copy.deepcopy(small)


def without_training_state(checkpoint: Mapping[str, Any]) -> dict[str, Any]:
    """Return a checkpoint without the optimizer's state and the moving average of its weights."""
    extra = extra_state(checkpoint).items()
    remaining = {name: value for name, value in extra if not name.startswith("ema")}
    result = {name: value for name, value in checkpoint.items() if name not in _OF_THE_OPTIMIZER}
    return {**result, "extra_state": remaining}


def ties(state: Mapping[str, Any]) -> dict[str, str]:
    """Map the name of each tied tensor to the name of the first tensor that it is tied to.

    Tensors are tied if they have the same address, type, shape and strides. The first tensor of a
    group has no entry. Empty tensors, whose address is always 0, have none either.
    """
    first: dict[tuple[Any, ...], str] = {}
    tied: dict[str, str] = {}
    for name, tensor in state.items():
        key = tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()
        if tensor.numel() and first.setdefault(key, name) != name:
            tied[name] = first[key]
    return tied


def differences(report: str) -> str:
    """Shorten to one line torch's report on weights that do not fit a model."""
    return "; ".join(f"{line.strip():.160}" for line in report.splitlines()[1:4])
