"""Train on CPUs in several processes (``torchrun`` or spawned), in bf16, with sharded optimizers.

fairseq counts CUDA devices to find the number of processes, and assumes a TPU for ``--bf16``.
"""

import importlib.util
import logging
import os
from collections.abc import Callable
from typing import Any

import torch

from fairseq_ext.plugin import register
from fairseq_ext.plugin.checks.processes import leave_quietly
from fairseq_ext.plugin.patching import around
from fairseq_ext.utils.errors import ConfigError

logger = logging.getLogger(__name__)


def join_processes(options: Any) -> None:
    """Set how the processes of a CPU job connect; ``options`` is ``cfg.distributed_training``."""
    from torch.distributed.elastic.utils.distributed import get_free_port

    if options.distributed_init_method is None:
        if int(os.environ.get("WORLD_SIZE", 1)) > 1 and "RANK" in os.environ:
            options.distributed_init_method = "env://"
            options.distributed_world_size = int(os.environ["WORLD_SIZE"])
            options.distributed_rank = int(os.environ["RANK"])
            options.distributed_no_spawn = True
        elif options.distributed_world_size > 1:
            port = options.distributed_port if options.distributed_port > 0 else get_free_port()
            options.distributed_init_method = f"tcp://localhost:{port}"
            options.distributed_num_procs = options.distributed_world_size
    if options.distributed_init_method is not None:
        options.distributed_backend = "gloo"


def require_one_job(options: Any) -> None:
    """Raise ConfigError if ``torchrun`` has started several processes, but the world size is 1.

    Then fairseq ignores ``torchrun``, and each process would train a model of its own in the same
    folder. ``--distributed-world-size 1`` is the default on a machine with one GPU. ``options`` is
    ``cfg.distributed_training``.
    """
    launched = int(os.environ.get("WORLD_SIZE", 1)) if "RANK" in os.environ else 1
    if launched > 1 and options.distributed_world_size == 1:
        raise ConfigError(
            f"torchrun has started {launched} processes, but `--distributed-world-size` is 1 (one "
            f"for each GPU). Give `--distributed-world-size {launched}`, or `--cpu`."
        )


def spawned(index: int, main: Callable, cfg: Any, kwargs: dict[str, Any]) -> None:
    """Register this plugin in the spawned process ``index``, then call ``main(cfg, **kwargs)``."""
    register()
    from fairseq.distributed.utils import distributed_main

    leave_quietly()
    distributed_main(index, main, cfg, kwargs)


@around("fairseq.distributed.utils:call_main", patch="processes on the CPU")
def start_on_cpu(original: Callable, cfg: Any, main: Callable, **kwargs: Any) -> None:
    """Start the processes of a job that runs on CPUs; leave all other jobs to fairseq.

    Problem: Several processes cannot train on CPUs. If torchrun starts them, fairseq divides by the
    number of CUDA devices, which is zero. Otherwise fairseq starts one process per CUDA device. It
    also passes device ids to DDP, which refuses them for a module on the CPU.
    """
    training = cfg.distributed_training
    if cfg.common.tpu or (torch.cuda.is_available() and not cfg.common.cpu):
        require_one_job(training)
        return original(cfg, main, **kwargs)
    join_processes(training)
    if training.distributed_init_method is None or training.distributed_no_spawn:
        return original(cfg, main, **kwargs)
    kwargs["start_rank"] = training.distributed_rank
    training.distributed_rank = None  # fairseq adds the index of each process to start_rank
    processes = training.distributed_num_procs or training.distributed_world_size
    torch.multiprocessing.spawn(spawned, args=(main, cfg, kwargs), nprocs=processes)


@around("fairseq.distributed.utils:call_main", patch="bf16 without a TPU")
def forget_tpu(original: Callable, cfg: Any, main: Callable, **kwargs: Any) -> None:
    """Run a command, with ``--tpu`` off if the library for TPUs is not installed.

    Problem: --bf16 switches --tpu on, so that training ends if torch_xla is missing.
    """
    if cfg.common.bf16 and importlib.util.find_spec("torch_xla") is None:
        for group in (cfg.common, cfg.distributed_training, cfg.task):
            if getattr(group, "tpu", False):
                group.tpu = False
    original(cfg, main, **kwargs)


@around(
    "fairseq.models.distributed_fairseq_model:DistributedDataParallel", patch="processes on the CPU"
)
def without_device_ids(
    original: Callable, module: torch.nn.Module, **options: Any
) -> torch.nn.Module:
    """Wrap a module in torch's DistributedDataParallel; on a CPU, leave out device ids."""
    if all(parameter.device.type == "cpu" for parameter in module.parameters()):
        options.update(device_ids=None, output_device=None)
    return original(module=module, **options)


@around("fairseq.distributed.utils:all_gather_list", patch="processes on the CPU")
def gather_on_cpu(
    original: Callable, data: Any, group: Any = None, max_size: int = 16384
) -> list[Any]:
    """Return a list of all processes' ``data``; the backend gloo needs no GPU for this."""
    from fairseq.distributed.utils import get_global_group, get_world_size

    group = group or get_global_group()
    if torch.distributed.get_backend(group) != "gloo":
        return original(data, group, max_size)
    gathered: list[Any] = [None] * get_world_size(group)
    torch.distributed.all_gather_object(gathered, data, group)
    return gathered


@around("fairseq.distributed.utils:_broadcast_object_slow", patch="resume on several processes")
def send_object(original: Callable, obj: Any, src_rank: int, group: Any, dist_device: Any) -> Any:
    """Send ``obj`` from rank ``src_rank`` to all ranks by pickle, and return it on each rank.

    Pickle is safe here, because the sender has already checked the checkpoint.

    Problem: Rank 0 cannot send a loaded checkpoint to the other ranks, because weights_only=True
    refuses the configuration objects in it.
    """
    message = [obj]
    torch.distributed.broadcast_object_list(message, src_rank, group, dist_device)
    return message[0]


@around("fairseq.optim:shard_", patch="sharded optimizers")
def shard_by_torch(original: Callable, optimizer: Any, group: Any) -> None:
    """Replace the optimizer by :class:`ShardedOptimizer` if there are several processes.

    Problem: --zero-sharding os needs fairscale, although torch can shard optimizers.
    """
    from fairseq.distributed.utils import get_world_size

    from fairseq_ext.training.sharded_optimizer import ShardedOptimizer

    processes = get_world_size(group)
    if processes == 1:
        return
    single = optimizer.optimizer
    optimizer.optimizer = ShardedOptimizer(
        single.param_groups, type(single), group, **optimizer.optimizer_config
    )
    share, total = optimizer.optimizer.share()
    logger.info(
        f"--zero-sharding os: the optimizer's state of {share:,} of {total:,} weights is in "
        f"this process, one of {processes}"
    )
