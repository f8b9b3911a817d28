"""Make ``fairseq-hydra-train`` work, and make it refuse what ``fairseq-train`` refuses.

Most checks (refusals, locks, interruption, errors in one line) wrap ``call_main``.
fairseq-hydra-train imports ``common.user_dir``, and with it this plugin, only within ``call_main``,
so the call that is already running has no checks. Therefore :func:`_add_defaults`, the first
function that runs after the import, calls ``call_main`` again, now with all checks. After that
training, the exception :class:`_Done` ends the first call, which would train once more.

A named architecture is a model with other default sizes. fairseq-hydra-train fills in the model's
default sizes first, and then ignores those of the architecture.
"""

import logging
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from fairseq_ext.checkpoints.layout import section
from fairseq_ext.plugin.patching import around, running
from fairseq_ext.utils import error_messages
from fairseq_ext.utils.errors import ConfigError
from fairseq_ext.utils.parsing import nearest

HYDRA = "fairseq_cli.hydra_train"
_patched_call = ContextVar("_patched_call", default=False)


class _Done(BaseException):
    """Raised after the training with checks, so that fairseq-hydra-train does not train again."""


@around("fairseq.distributed.utils:call_main", patch="fairseq-hydra-train")
def _call_main(original: Callable, *arguments: Any, **options: Any) -> Any:
    """Record that the patched `call_main` is running: :func:`_add_defaults` must not call it again.

    Problem: fairseq-hydra-train imports `common.user_dir` too late for our checks of options,
    locks and interruption, and it gives a named architecture the model's default sizes.
    """
    before = _patched_call.set(True)
    try:
        return original(*arguments, **options)
    finally:
        _patched_call.reset(before)


@around("fairseq_cli.train:add_defaults", patch="fairseq-hydra-train")
def _add_defaults(original: Callable, cfg: Any) -> None:
    """Start training with all checks; fairseq calls this as soon as the plugin is imported."""
    hydra = next(running(HYDRA), None)
    if hydra is None or _patched_call.get():
        return original(cfg)
    import torch.distributed
    from fairseq.distributed.utils import call_main

    with _in_one_line():
        complete(cfg)
        if torch.distributed.is_initialized():  # a process that fairseq has started for a GPU
            return original(cfg)
        call_main(cfg, hydra.pre_main)
    # without this filter, fairseq-hydra-train would log a crash
    logging.getLogger(HYDRA).addFilter(lambda _: not isinstance(sys.exc_info()[1], _Done))
    cfg.common.suppress_crashes = True  # `_Done` must not end fairseq-hydra-train
    raise _Done


@around("fairseq_cli.hydra_train:_hydra_main", patch="fairseq-hydra-train")
def _hydra_main(original: Callable, cfg: Any, **options: Any) -> Any:
    """Check the options of a job that starts with the plugin loaded: all but a sweep's first."""
    with _in_one_line():
        complete(cfg)
        return original(cfg, **options)


@contextmanager
def _in_one_line() -> Iterator[None]:
    """Exit on an error in the ``with`` block with one line; Hydra would print a traceback."""
    try:
        yield
    except Exception as error:
        status = error_messages.report(error)
        if status is None:
            raise
        raise SystemExit(status) from None


def complete(cfg: Any) -> None:
    """Complete ``cfg`` as the parser of fairseq-train would.

    ``memory_efficient_fp16`` switches ``fp16`` on (likewise for bf16), and an architecture sets
    sizes. Raise ConfigError if the name of the model, task, criterion, optimizer or scheduler is
    not registered.
    """
    from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_REGISTRY
    from fairseq.registry import REGISTRIES
    from fairseq.tasks import TASK_REGISTRY

    registries = {"model": {**MODEL_REGISTRY, **ARCH_MODEL_REGISTRY}, "task": TASK_REGISTRY}
    for part in ("criterion", "optimizer", "lr_scheduler"):
        registries[part] = REGISTRIES[part]["registry"]
    for part, names in registries.items():
        name = section(cfg, part).get("_name")
        if name is not None and name not in names:
            raise ConfigError(
                f"`{part}._name` must be one of the {len(names)} names that `fairseq-train "
                f"--user-dir … --help` lists, but is `{name}`{nearest(name, names)}"
            )
    for precision in ("fp16", "bf16"):
        if cfg.common[f"memory_efficient_{precision}"]:
            cfg.common[precision] = True
    fill_in_architecture(cfg)


def fill_in_architecture(cfg: Any) -> None:
    """Set the options that ``cfg.model`` lacks to the defaults of its architecture.

    fairseq's own architectures are skipped, and keep the default sizes of their model: in the first
    job of a sweep, fairseq sets these sizes before it imports this plugin, and later jobs should
    not differ from the first.
    """
    from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY, MODEL_DATACLASS_REGISTRY
    from omegaconf import open_dict

    model = cfg.get("model")
    settings = {"_name": model} if isinstance(model, str) else section(cfg, "model")
    name = settings.get("_name")
    if name not in ARCH_CONFIG_REGISTRY or name in MODEL_DATACLASS_REGISTRY:
        return
    if ARCH_MODEL_REGISTRY[name].__module__.startswith("fairseq."):
        return
    options = Namespace(**settings)
    ARCH_CONFIG_REGISTRY[name](options)
    with open_dict(cfg):
        cfg.model = vars(options)
