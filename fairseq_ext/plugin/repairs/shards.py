"""Make `fairseq-generate --num-shards N --shard-id I` work; fairseq accepts and ignores it.

The batches are the same as without shards, and shard I takes every N-th of them. So each sentence
is in one shard, with exactly the same scores as without shards.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fairseq_ext.plugin.table import Patch, around
from fairseq_ext.utils.errors import ConfigError


@around("fairseq_cli.generate:main")
def _generate(original: Callable, cfg: Any) -> Any:
    count, shard = cfg.dataset.num_shards, cfg.dataset.shard_id
    require_shard(count, shard)
    if count == 1:
        return original(cfg)
    distributed = cfg.distributed_training
    if distributed.distributed_world_size > 1:
        raise ConfigError(
            "`--num-shards` and `--distributed-world-size` both split the set; give one."
        )
    # fairseq-generate needs no other settings of distributed training
    distributed.distributed_world_size, distributed.distributed_rank = count, shard
    try:
        return original(cfg)
    except ZeroDivisionError as error:
        if not _after_no_batches(error):
            raise
        print(f"shard {shard} of {count} has no sentences", file=sys.stderr)
        return None
    finally:
        if cfg.common_eval.results_path is not None:
            _name_by_shard(Path(cfg.common_eval.results_path), count, shard)


def require_shard(count: int, shard: int) -> None:
    """Check `--num-shards` and `--shard-id`.

    Raises:
        ConfigError: there is no such shard.
    """
    if count < 1:
        raise ConfigError(f"`--num-shards` must be at least 1, but is {count}.")
    if not 0 <= shard < count:
        raise ConfigError(
            f"`--shard-id` must be from 0 to {count - 1}, as `--num-shards` is {count}, but is "
            f"{shard}."
        )


def _after_no_batches(error: ZeroDivisionError) -> bool:
    """Whether fairseq divided by zero because an empty shard has no speed."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return frame.f_code.co_name == "_main"


def _name_by_shard(results: Path, count: int, shard: int) -> None:
    """Name the results `generate-test.1-of-2.txt`, so that shards can share a folder."""
    for path in results.glob("generate-*.txt"):
        path.replace(path.with_name(f"{path.stem}.{shard}-of-{count}.txt"))


PATCHES = (
    Patch(
        name="shards of a test set",
        reason="fairseq-generate ignores --num-shards and --shard-id: each shard is the whole set",
        layers=(_generate,),
    ),
)
