"""Allow enough open files: workers that load data need some for each batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fairseq_ext.plugin import probes
from fairseq_ext.plugin.table import Layer, Patch
from fairseq_ext.utils.errors import EnvironmentProblem

ENOUGH = 4096
LEAST = 64
"""A tiny run with one process and one worker needs about 40."""


def allow_open_files() -> None:
    """Raise the limit of this process as far as needed and allowed.

    Raises:
        EnvironmentProblem: the system allows too few open files.
    """
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    if limit != unlimited and limit < ENOUGH:
        limit = ENOUGH if most == unlimited else min(ENOUGH, most)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, most))
    if limit != unlimited and limit < LEAST:
        raise EnvironmentProblem(
            f"this process may have only {limit} files open at a time, but needs at least {LEAST}. "
            "Allow more: ulimit -n 4096"
        )


def close_if_open(original: Callable) -> Callable:
    """Let the destructor of a data set do nothing if its file could not be opened."""

    def __del__(self: Any) -> None:
        if getattr(self, "_bin_buffer_mmap", None) is not None:
            original(self)

    return __del__


PATCHES = (
    Patch(
        name="open files",
        reason="where a worker that loads data runs out of them, fairseq waits for it forever",
        act=allow_open_files,
    ),
    Patch(
        name="data sets that were never opened",
        reason="where a data set cannot be opened, two tracebacks of destructors follow the error",
        until="fairseq's destructors look whether there is a file to close",
        needed=probes.closes_what_is_not_open,
        layers=(
            Layer("fairseq.data.indexed_dataset:MMapIndexedDataset.__del__", close_if_open),
            Layer("fairseq.data.indexed_dataset:MMapIndexedDataset.Index.__del__", close_if_open),
        ),
    ),
)
