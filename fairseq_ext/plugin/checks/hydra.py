"""Make ``fairseq-hydra-train`` work, and make it refuse what ``fairseq-train`` refuses.

Most checks of the plugin wrap fairseq's function ``call_main``: they refuse options, lock
``--save-dir``, handle signals, and report errors in one line. fairseq-hydra-train imports the
plugin too late for these checks, so it trains in this order:

1. fairseq-hydra-train calls ``call_main``, which has no checks yet. This first call imports
   ``common.user_dir``, and with it the plugin.
2. The first call goes on with fairseq's function ``add_defaults``, which the plugin has replaced by
   :func:`_add_defaults`. This function calls ``call_main`` again. The second call has all checks,
   and trains.
3. The exception :class:`_Done` ends the first call, which would otherwise train once more.

An architecture such as ``transformer_iwslt_de_en`` is a name for a model class (``transformer``)
with default sizes. fairseq-hydra-train uses the default sizes of the class instead;
:func:`fill_in_architecture` mends this for the architectures of the plugin.
"""

import logging
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from fairseq_ext.checkpoints.layout import section
from fairseq_ext.plugin.patching import around, replaced, running
from fairseq_ext.utils import error_messages
from fairseq_ext.utils.errors import ConfigError
from fairseq_ext.utils.parsing import nearest

HYDRA = "fairseq_cli.hydra_train"
_checks = Namespace(running=False)  # global, because a process runs one training at a time


class _Done(BaseException):
    """Raised when the training has ended, so that fairseq-hydra-train does not train again."""


@around("fairseq.distributed.utils:call_main", patch="fairseq-hydra-train")
def _call_main(original: Callable, *arguments: Any, **options: Any) -> Any:
    """Call fairseq's ``call_main``, and record meanwhile that the checks are running.

    The record tells :func:`_add_defaults`, which ``call_main`` calls, not to start the checks
    again. Arguments and result are those of ``call_main``, which trains the model.

    Problem: fairseq-hydra-train imports the plugin (`common.user_dir`) so late that options are
    not checked, the folder is not locked, and signals are not handled. It also trains a named
    architecture in the default sizes of its model class, not in those of the architecture.
    """
    with replaced(_checks, "running", True):
        return original(*arguments, **options)


@around("fairseq_cli.train:add_defaults", patch="fairseq-hydra-train")
def _add_defaults(original: Callable, cfg: Any) -> None:
    """Train with all checks if fairseq-hydra-train has started without them.

    Then raise :class:`_Done`, so that fairseq-hydra-train does not train a second time. In three
    cases, just call fairseq's function: in another command, if the checks are already running, or
    in a process that fairseq has started for a GPU.
    """
    hydra = next(running(HYDRA), None)
    if hydra is None or _checks.running:
        return original(cfg)
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
    """Complete and check the options of a training job, then run it.

    With ``--multirun``, the first job loads the plugin, so only later jobs run through this
    function.
    """
    with _in_one_line():
        complete(cfg)
        return original(cfg, **options)


@contextmanager
def _in_one_line() -> Iterator[None]:
    """Report an error of the ``with`` block in one line, and exit; raise unexpected errors."""
    try:
        yield
    except Exception as error:
        status = error_messages.report(error)
        if status is None:
            raise
        raise SystemExit(status) from None


def complete(cfg: Any) -> None:
    """Complete ``cfg`` as the parser of fairseq-train would.

    Switch ``fp16`` on if ``memory_efficient_fp16`` is on, and likewise for bf16. Fill in the
    default sizes of a named architecture. Raise ConfigError if the name of the model, task,
    criterion, optimizer or scheduler is not registered.
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

    Architectures of fairseq itself are left alone, so that all jobs of ``--multirun`` train them in
    the same sizes: for the first job, fairseq chooses the sizes before it loads the plugin.
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
