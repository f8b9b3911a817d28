"""``--zero-sharding os`` with torch alone: see :mod:`fairseq_ext.training.sharding`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from fairseq_ext.plugin.table import Patch, around
from fairseq_ext.utils.errors import ConfigError

logger = logging.getLogger(__name__)


def refuse(cfg: Any) -> None:
    """Refuse options that do not go with ``--zero-sharding os``.

    Raises:
        ConfigError: an option puts all weights into one tensor, which cannot be split, or keeps
            other state than that of one optimizer.
    """
    common = cfg.common
    if cfg.distributed_training.zero_sharding != "os":
        return
    memory_efficient = common.memory_efficient_fp16 or common.memory_efficient_bf16
    half = common.fp16 or common.bf16
    if half and not memory_efficient and not common.fp16_no_flatten_grads:
        raise ConfigError(
            "`--zero-sharding os` must have `--fp16-no-flatten-grads` in half precision: without "
            "it all weights are one piece, which is not shared out."
        )
    if cfg.optimization.use_bmuf:
        raise ConfigError("`--zero-sharding os` does not go with `--use-bmuf`.")
    if getattr(cfg.optimizer, "_name", None) == "composite":
        raise ConfigError("`--zero-sharding os` does not go with `--optimizer composite`.")


@around("fairseq.optim:shard_")
def shard_by_torch(original: Callable, optimizer: Any, group: Any) -> None:
    from fairseq.distributed.utils import get_world_size

    from fairseq_ext.training import sharding

    processes = get_world_size(group)
    if processes == 1:
        return
    optimizer.optimizer = sharding.shard(optimizer.optimizer, optimizer.optimizer_config, group)
    share, total = optimizer.optimizer.share()
    logger.info(
        f"--zero-sharding os: the optimizer's state of {share:,} of {total:,} weights is in "
        f"this process, one of {processes}"
    )


PATCHES = (
    Patch(
        name="sharded optimizers",
        reason="--zero-sharding os needs fairscale, though torch brings the same",
        layers=(shard_by_torch,),
    ),
)
